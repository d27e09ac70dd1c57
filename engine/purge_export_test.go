package engine

import "github.com/gabiondb/gabion/codec"

// Guesses returns the numbers of the sidecars that are no more than guesses.
func (l *Limiter) Guesses() (numbers []int) {
	for n := range codec.Sidecars {
		sh, sc := l.sidecar(n)
		sh.mu.Lock()
		if !sc.exact {
			numbers = append(numbers, n)
		}
		sh.mu.Unlock()
	}
	return numbers
}
