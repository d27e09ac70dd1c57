package engine_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
	"github.com/gabiondb/gabion/engine/limit/limittest"
)

func TestKindVectors(t *testing.T) {
	for _, g := range append(limittest.Quota(), limittest.Rolling()...) {
		clock := newManualClock(epoch)
		l := open(t, "s", engine.Options{Now: clock.Now})
		for _, s := range g.Steps {
			clock.Set(epoch.Add(s.At))
			c := s.Command
			n := func(i int) int64 { v, _ := strconv.ParseInt(c[i], 10, 64); return v }
			key := []byte(c[1])
			var got []int64
			var err error
			b := func(x bool) int64 {
				if x {
					return 1
				}
				return 0
			}
			ms := func(d time.Duration) int64 {
				if d == limit.Never {
					return -1
				}
				return int64((d + time.Millisecond - 1) / time.Millisecond)
			}
			switch c[0] {
			case "QUOTA.TAKE", "QUOTA.PROBE":
				q := limit.Quota{Limit: n(4), Window: time.Duration(n(5)) * time.Millisecond}
				var gr limit.Grant
				if c[0] == "QUOTA.TAKE" {
					gr, err = l.TakeQuota(key, c[2], q, n(3))
				} else {
					gr, err = l.ProbeQuota(key, c[2], q, n(3))
				}
				got = []int64{b(gr.Accepted), gr.Used, b(gr.Replay)}
			case "EXISTS":
				st, e := l.Stat(key)
				err = e
				got = []int64{b(st.Exists())}
			case "DEL":
				ok, e := l.Reset(key)
				err = e
				got = []int64{b(ok)}
			default:
				w := limit.Rolling{Limit: n(2), Window: time.Duration(n(3)) * time.Millisecond, Pause: strings.ToUpper(c[len(c)-1]) == "PAUSE"}
				switch c[0] {
				case "ROLL.ALLOW":
					a, e := l.Allow(key, w)
					err = e
					got = []int64{b(a.Allowed), a.Count, a.Limit, ms(a.Wait)}
				case "ROLL.INCR":
					amount := int64(1)
					if len(c) > 4 {
						amount = n(4)
					}
					x, e := l.Increment(key, w, amount)
					err = e
					got = []int64{x}
				case "ROLL.PEEK":
					x, e := l.Peek(key, w)
					err = e
					got = []int64{x}
				case "ROLL.WAIT":
					x, e := l.Wait(key, w)
					err = e
					got = []int64{ms(x)}
				}
			}
			if s.Err != "" {
				if !errors.Is(err, limit.ErrConflict) && !errors.Is(err, limit.ErrPolicyChanged) {
					t.Errorf("%s %d %v: %v want %v", g.Name, s.Line, c, err, s.Err)
				}
			} else if err != nil || fmt.Sprint(got) != fmt.Sprint(s.Want) {
				t.Errorf("%s line %d %v: %v %v want %v", g.Name, s.Line, c, got, err, s.Want)
			}
		}
	}
}

func TestLongList(t *testing.T) {
	clock := newManualClock(epoch)
	l := open(t, "s", engine.Options{Now: clock.Now, Durability: engine.Interval})
	w := limit.Rolling{Limit: 20000, Window: 10 * time.Second}
	for i := range 60000 {
		clock.Advance(time.Millisecond)
		a, err := l.Allow([]byte("k"), w)
		if err != nil {
			t.Fatal(i, err)
		}
		want := int64(min(i+1, 10000))
		if a.Count != want {
			t.Fatal(i, a, want)
		}
	}
	fmt.Println(l.Peek([]byte("k"), w))
	fmt.Println(l.Wait([]byte("k"), limit.Rolling{Limit: 500, Window: 10 * time.Second}))
	fmt.Println(l.Metrics())
}
func BenchmarkKinds(b *testing.B) {
	for _, n := range []int64{100, 10000, 1000000} {
		b.Run(fmt.Sprint("roll", n), func(b *testing.B) {
			clock := newManualClock(epoch)
			l := open(b, "s", engine.Options{Now: clock.Now, Durability: engine.Interval})
			w := limit.Rolling{Limit: n, Window: time.Duration(n) * time.Millisecond}
			for range n {
				clock.Advance(time.Millisecond)
				l.Allow([]byte("k"), w)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				clock.Advance(time.Millisecond)
				l.Allow([]byte("k"), w)
			}
		})
	}
	b.Run("quota", func(b *testing.B) {
		l := open(b, "s", engine.Options{Durability: engine.Interval, QuotaMaxLimit: limit.MaxLimit})
		q := limit.Quota{Limit: 1 << 50, Window: time.Hour}
		b.ReportAllocs()
		b.ResetTimer()
		for i := range b.N {
			_, err := l.TakeQuota([]byte("k"), strconv.Itoa(i), q, 1)
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}
