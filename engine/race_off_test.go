//go:build !race

package engine_test

// underRace tells whether the race detector is on.
const underRace = false
