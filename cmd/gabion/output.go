package main

import (
	"encoding/json"
	"io"
	"unicode/utf8"
)

// printJSON writes v to standard output as one line.
func (p *program) printJSON(v any) error { return writeJSON(p.stdout, v) }

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// keyJSON is a key in the output. JSON has no way to write bytes that are not
// UTF-8, so a key that is not goes as base64 under another name.
type keyJSON struct {
	Key       string `json:"key,omitempty"`
	KeyBase64 []byte `json:"key_base64,omitempty"`
}

func newKeyJSON(key string) keyJSON {
	if utf8.ValidString(key) {
		return keyJSON{Key: key}
	}
	return keyJSON{KeyBase64: []byte(key)}
}
