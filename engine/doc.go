// Package engine keeps rate limits in a Pebble store, so that they survive
// restarts, crashes and power cuts.
//
//	l, err := engine.Open("limits", nil)
//	if err != nil {
//		return err
//	}
//	defer l.Close()
//
//	d, err := l.Throttle([]byte("user:42"), limit.PerMinute(30), 1)
//	switch {
//	case err != nil:
//		return err // the store has failed
//	case !d.Allowed:
//		return fmt.Errorf("try again in %v", d.RetryAfter)
//	}
//
// A key holds one of three kinds of limit. Throttle spaces events evenly, with
// bursts up to a bound (GCRA). TakeQuota spends a budget that is whole again
// when its window has closed, on requests that have ids, each of them once
// however often it is sent. Allow and Increment record events in a rolling
// list, so many in any span of time. Another kind's method on a key returns
// ErrWrongKind, until the key has expired or is Reset.
//
// A denial is an answer and no error. Probe and ProbeQuota give the answers that
// Throttle and TakeQuota would give, Peek and Wait tell of a list, and none of
// them changes anything. Do carries out a whole pipeline for one wait, View
// reads many keys from one snapshot.
//
// # Several at once, and giving back
//
// ThrottleAll charges several keys, or none of them if one denies; ThrottleEach
// decides them one after the other, for one wait. Refund gives events of a rate
// back, and RefundQuota what a request has taken, once however often it is called.
//
// # In an application's store
//
// New starts a limiter in a Pebble store that the application has opened, and
// keeps to the keys under Options.Prefix. Then a debit and what it pays for can be
// one atomic batch: Update calls a function with a transaction, which decides on
// any number of keys and has a batch for the application's own writes. See New for
// what the two have in common: log, stalls, snapshots, and the logger.
//
// Package httplimit is middleware for net/http.
//
// # Durability
//
// Under Always, the default, whatever a call has answered is on disk: what it
// charged, and what it saw others charge. A crash takes back nothing that
// anybody was told. Under Interval and Never calls don't wait, and a crash
// takes back the newest operations, whole ones only.
//
// When a write fails every call under way gets an error that wraps ErrStorage,
// and so does every later one: a store that can't write is not asked what it
// holds. The process goes on; open the store again once the disk
// is mended. No failure of the disk ends the process or panics: what Pebble would
// do that for is latched and goes to Options.Logger, and Failed tells of it. Check
// tells whether a store that nobody has open is whole.
//
// Checkpoint copies a store while it is open, and Restore makes a store from such
// a copy. They are for stores that Open has made.
//
// # Time
//
// The engine's clock is the wall clock's reading when the store was opened,
// plus what the monotonic clock has counted since, plus, on Linux, the time
// that the machine was suspended. It never goes back: every batch carries the
// time of its newest change, and the clock begins at that if the wall clock has
// fallen behind it. Options.Now takes another clock, with which a test can let
// hours pass at once.
//
// What has expired is absent at once, and deleted in the background: see
// Options.PurgeWait. Purge and Compact don't wait for that.
//
// DESIGN.md, beside this package's source, says how it works and why so.
package engine
