package engine

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/gabiondb/gabion/codec"
)

// checkOrder tells whether db has keys like those of a limiter in the order of
// their bytes, tells each from all others, and splits them in that order, too. It
// tries keys that comparers treat in ways of their own, in batches that are not
// written.
func checkOrder(db *pebble.DB, keys *codec.Keyspace) (err error) {
	defer func() {
		// A comparer may expect keys of another form.
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrComparer, r)
		}
	}()
	for _, pair := range trialPairs(keys) {
		if err := checkTrial(db, sorted(pair[:])); err != nil {
			return err
		}
	}
	tried := sorted(trialKeys(keys))
	if err := checkTrial(db, tried); err != nil {
		return err
	}
	return checkSplit(db, tried)
}

// sorted returns keys in order, each once.
func sorted(keys [][]byte) [][]byte {
	slices.SortFunc(keys, bytes.Compare)
	return slices.CompactFunc(keys, bytes.Equal)
}

// checkTrial tells whether db has tried in order, and finds each of them.
func checkTrial(db *pebble.DB, tried [][]byte) error {
	b := db.NewIndexedBatch()
	defer b.Close()
	// Pebble compares a key with the one before it only if it is the older.
	for _, key := range slices.Backward(tried) {
		if err := b.Set(key, nil, nil); err != nil {
			return storageError(err)
		}
	}
	it, err := b.NewBatchOnlyIter(context.Background(), nil)
	if err != nil {
		return storageError(err)
	}
	defer it.Close()
	it.First()
	for _, key := range tried {
		if !it.Valid() || !bytes.Equal(it.Key(), key) {
			return fmt.Errorf("%w: it has %q where %q belongs", ErrComparer, it.Key(), key)
		}
		it.Next()
	}
	for _, key := range tried {
		if !it.SeekPrefixGE(key) || !bytes.Equal(it.Key(), key) {
			return fmt.Errorf("%w: it does not find %q", ErrComparer, key)
		}
	}
	return storageError(it.Error())
}

// checkSplit tells whether db splits tried, which are in order, so that the first
// parts are in order, too: tables store them apart, and search among them.
func checkSplit(db *pebble.DB, tried [][]byte) error {
	b := db.NewIndexedBatch()
	defer b.Close()
	it, err := b.NewBatchOnlyIter(context.Background(), nil)
	if err != nil {
		return storageError(err)
	}
	defer it.Close()
	var last []byte
	for _, key := range tried {
		part, ok := splitOf(it, key)
		if !ok || bytes.Compare(last, part) > 0 {
			return fmt.Errorf("%w: it splits %q behind %q, and has %q before it", ErrComparer, key, part, last)
		}
		last = part
	}
	return nil
}

// splitOf returns the part of key that the comparer under it splits off, and
// whether that is a key which is split at its end, as it has to be. Pebble does not
// tell. But it does not seek key from a bound behind it unless the two have that
// part in common.
func splitOf(it *pebble.Iterator, key []byte) (part []byte, ok bool) {
	defer it.SetBounds(nil, nil)
	same := func(bound, key []byte) bool {
		it.SetBounds(nil, bound)
		it.SeekPrefixGE(key)
		return it.Error() == nil
	}
	n := 1 + sort.Search(len(key)-1, func(n int) bool { return same(key[:1+n], key) })
	if n < len(key) {
		return key[:n], true
	}
	smaller := bytes.Clone(key)
	if smaller[len(key)-1] == 0 {
		return key, true
	}
	smaller[len(key)-1]--
	return key, !same(smaller, key)
}

// trialPairs returns pairs of keys that a comparer may take for one.
func trialPairs(keys *codec.Keyspace) (pairs [][2][]byte) {
	long := strings.Repeat("k", MaxKeyLen-1)
	for _, users := range [][2]string{
		{"A", "a"}, {"aB", "ab"}, {"\u00c9", "\u00e9"}, {"\u00e9", "e\u0301"}, {"1", "01"}, {"1", "1.0"}, {"a", "a "}, {"a", " a"},
		{"a", "a\x00"}, {"a\x00", "a\x00\x00"}, {"\xfe", "\xff"}, {"a-b", "a_b"}, {"a/b", "a//b"}, {"a", "a@0"}, {long + "0", long + "1"},
	} {
		a, b := []byte(users[0]), []byte(users[1])
		pairs = append(pairs,
			[2][]byte{keys.AppendHead(nil, 7, a), keys.AppendHead(nil, 7, b)},
			[2][]byte{keys.AppendChunkKey(nil, 7, a, 1), keys.AppendChunkKey(nil, 7, b, 1)},
			[2][]byte{keys.AppendRequestKey(nil, 7, a, "id"), keys.AppendRequestKey(nil, 7, b, "id")})
	}
	user := []byte("a")
	for bit := range 8 {
		n := uint64(1) << (bit * 8)
		pairs = append(pairs,
			[2][]byte{keys.AppendHead(nil, 0, user), keys.AppendHead(nil, uint16(n), user)},
			[2][]byte{keys.AppendChunkKey(nil, 0, user, 0), keys.AppendChunkKey(nil, 0, user, int64(n))},
			[2][]byte{keys.AppendRequestKey(nil, 0, user, "id"), keys.AppendRequestKey(nil, int64(n), user, "id")},
			[2][]byte{keys.AppendSidecarKey(nil, 0), keys.AppendSidecarKey(nil, 1<<bit)})
	}
	for _, ids := range [][2]string{{"a", "A"}, {"id-1", "id_1"}, {"id-1", "id-01"}, {"id", "id-"}} {
		pairs = append(pairs, [2][]byte{keys.AppendRequestKey(nil, 7, user, ids[0]), keys.AppendRequestKey(nil, 7, user, ids[1])})
	}
	return pairs
}

// trialKeys returns keys as a limiter has them, in no order. Comparers may see
// numbers, versions, or lengths in them, or what separates one part from another.
func trialKeys(keys *codec.Keyspace) [][]byte {
	const alphabet = "\x00\x01\x02\x08\x09\x0c\x0d 09@AZaz_\x7f\x80\xfe\xff"
	users := [][]byte{[]byte("a"), []byte("A"), []byte("a/2"), []byte("a/10"), []byte("a@1"), []byte("a@10"), []byte("a@9"), {0}, {0xff}}
	rng := rand.New(rand.NewPCG(1, 2)) // the same keys each time
	for range 50 {
		user := make([]byte, 1+rng.IntN(20))
		for i := range user {
			user[i] = alphabet[rng.IntN(len(alphabet))]
		}
		users = append(users, user)
	}
	trial := [][]byte{keys.AppendMeta(nil, codec.MetaIdentity), keys.AppendMeta(nil, codec.MetaMark)}
	for s := range 256 {
		trial = append(trial, keys.AppendHead(nil, 1, []byte{'a', byte(s), '1'}))
	}
	for i, user := range users {
		trial = append(trial,
			keys.AppendSidecarKey(nil, uint8(i)),
			keys.AppendHead(nil, 1, user), // beside each other
			keys.AppendHead(nil, uint16(rng.Uint32()), user))
		for _, ordinal := range []int64{0, 1, rng.Int64()} {
			trial = append(trial, keys.AppendChunkKey(nil, 1, user, ordinal))
		}
		for _, deadline := range []int64{1, rng.Int64()} {
			trial = append(trial,
				keys.AppendRequestKey(nil, deadline, user, "id-9"),
				keys.AppendRequestKey(nil, deadline, user, "id-10"))
		}
	}
	return trial
}
