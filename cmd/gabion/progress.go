package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// progress begins to show how far work is, on standard error if that is a
// terminal and else nowhere: first what it begins with, then a bar. It returns
// what is to be told how much is done, and of how much, and what takes it all
// off the screen again.
func (p *program) progress(first string) (show func(done, of int), clear func()) {
	if !isTerminal(p.stderr) {
		return func(int, int) {}, func() {}
	}
	fmt.Fprintf(p.stderr, "%s ...", first)
	b := &progressBar{w: p.stderr}
	return b.show, b.clear
}

// isTerminal tells whether w is one, as far as Go can tell everywhere.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

type progressBar struct {
	w     io.Writer
	shown int // in percent
}

func (b *progressBar) show(done, of int) {
	const width = 40
	percent := int(100 * int64(done) / int64(of))
	if percent == b.shown {
		return
	}
	b.shown = percent
	full := width * percent / 100
	fmt.Fprintf(b.w, "\r[%s%s] %3d %%", strings.Repeat("#", full), strings.Repeat(".", width-full), percent)
}

// clear takes the bar off the line.
func (b *progressBar) clear() { fmt.Fprint(b.w, "\r\033[K") }
