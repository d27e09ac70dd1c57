// Command shop places orders in a store of its own for as long as it lives: each
// debits an account and writes a row, in one transaction. It prints the numbers of
// those that are answered. Its arguments are the directory of the store and the
// name of a durability.
package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

var (
	rate  = limit.Rate{Burst: 1 << 30, Count: 1, Period: time.Hour}
	quota = limit.Quota{Limit: engine.MaxLimit, Window: 24 * time.Hour}
)

func main() {
	log.SetFlags(0)
	if err := run(os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func run(dir, durability string) error {
	db, err := pebble.Open(dir, &pebble.Options{Logger: quiet{}, MemTableSize: 256 << 10})
	if err != nil {
		return err
	}
	opts := &engine.Options{Prefix: []byte("limits/"), SyncInterval: 20 * time.Millisecond, QuotaMaxLimit: engine.MaxLimit}
	for opts.Durability.String() != durability {
		opts.Durability++
	}
	l, err := engine.New(db, opts)
	if err != nil {
		return err
	}
	first := 1
	switch newest, closer, err := db.Get([]byte("newest")); {
	case err == nil:
		if _, err := fmt.Sscan(string(newest), &first); err != nil {
			return err
		}
		first++
		closer.Close()
	case err != pebble.ErrNotFound:
		return err
	}
	for n := first; ; n++ {
		if n%5 == 0 {
			err := l.Update(func(tx *engine.Tx) error { return errors.Join(place(tx, -n), pebble.ErrNotFound) })
			if !errors.Is(err, pebble.ErrNotFound) {
				return err
			}
		}
		if err := l.Update(func(tx *engine.Tx) error { return place(tx, n) }); err != nil {
			return err
		}
		fmt.Println(n)
	}
}

func place(tx *engine.Tx, n int) error {
	d, err := tx.Throttle([]byte("account"), rate, 1)
	if err != nil || !d.Allowed {
		return fmt.Errorf("Throttle = %+v, %w", d, err)
	}
	if _, err := tx.TakeQuota([]byte("quota"), fmt.Sprint(n), quota, 1); err != nil {
		return err
	}
	b := tx.Batch()
	return errors.Join(
		b.Set([]byte("newest"), fmt.Append(nil, n), nil),
		b.Set(fmt.Appendf(nil, "order %d", n), make([]byte, 100), nil))
}

// quiet is a logger that does not say what Pebble recovers from.
type quiet struct{}

func (quiet) Infof(string, ...any)              {}
func (quiet) Errorf(string, ...any)             {}
func (quiet) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }
