package main

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"sync"
	"time"

	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	"golang.org/x/time/rate"
)

const inThrottled = "throttled/throttled, in memory"

// openEach opens a limiter that decides on one key at a time, whoever calls.
// Each key is charged once.
func openEach(ctx context.Context, keys *keySet, take func(key string) (allowed bool, err error), close func() error) (*limiter, error) {
	decide := func(drawn []int) error {
		for _, k := range drawn {
			allowed, err := take(keys.string(k))
			if err != nil {
				return err
			}
			if !allowed {
				return fmt.Errorf("%w: %q is denied", errDecision, keys.string(k))
			}
		}
		return nil
	}
	for i := range keys.n {
		if err := decide([]int{i}); err != nil {
			return nil, err
		}
	}
	return &limiter{func(crowd) decider { return decide }, close}, ctx.Err()
}

// openThrottled opens a store without a bound on its keys, which is quicker
// than one that evicts them.
func openThrottled(ctx context.Context, _ string, keys *keySet) (*limiter, error) {
	store, err := memstore.NewCtx(0)
	if err != nil {
		return nil, err
	}
	l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
		MaxRate:  throttled.PerDuration(int(wide.Count), wide.Period),
		MaxBurst: int(wide.Burst),
	})
	if err != nil {
		return nil, err
	}
	// By default it gives up after ten others have changed a key meanwhile, as
	// they do on a hot one.
	l.SetMaxCASAttemptsLimit(math.MaxInt)
	return openEach(ctx, keys, func(key string) (bool, error) {
		limited, _, err := l.RateLimitCtx(ctx, key, 1)
		return !limited, err
	}, func() error { return nil })
}

// openGoLimiter opens a store whose window is a day, since it gives back less
// than it should of so many tokens when a window ends.
func openGoLimiter(ctx context.Context, _ string, keys *keySet) (*limiter, error) {
	store, err := memorystore.New(&memorystore.Config{
		Tokens:       uint64(wide.Burst),
		Interval:     24 * time.Hour,
		InitialAlloc: keys.n,
	})
	if err != nil {
		return nil, err
	}
	return openEach(ctx, keys, func(key string) (bool, error) {
		_, _, _, ok, err := store.Take(ctx, key)
		return ok, err
	}, func() error { return store.Close(context.WithoutCancel(ctx)) })
}

// rateMap has a limiter of x/time/rate for each key, in parts with a mutex each.
type rateMap struct {
	seed  maphash.Seed
	parts [256]struct {
		mu       sync.RWMutex
		limiters map[string]*rate.Limiter // guarded by mu
		_        [64]byte                 // parts share no line of the processor's cache
	}
}

func openTimeRate(ctx context.Context, _ string, keys *keySet) (*limiter, error) {
	m := &rateMap{seed: maphash.MakeSeed()}
	for i := range m.parts {
		m.parts[i].limiters = make(map[string]*rate.Limiter)
	}
	return openEach(ctx, keys, func(key string) (bool, error) { return m.limiter(key).Allow(), nil }, func() error { return nil })
}

func (m *rateMap) limiter(key string) *rate.Limiter {
	p := &m.parts[maphash.String(m.seed, key)%uint64(len(m.parts))]
	p.mu.RLock()
	l := p.limiters[key]
	p.mu.RUnlock()
	if l != nil {
		return l
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if l = p.limiters[key]; l == nil {
		l = rate.NewLimiter(rate.Limit(float64(wide.Count)/wide.Period.Seconds()), int(wide.Burst))
		p.limiters[key] = l
	}
	return l
}
