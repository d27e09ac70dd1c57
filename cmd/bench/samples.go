package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

func (r *Report) writeSamples(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	return e.Encode(r)
}

// keepSamples writes the samples that there are into the file for them.
func (r *Report) keepSamples() error {
	if r.Settings.Samples == "" {
		return nil
	}
	return writeFile(r.Settings.Samples, r.writeSamples)
}

// readSamples reads what writeSamples has written, of one file or several:
// of each subject the samples of the last file that has any.
func readSamples(files []string) (*Report, error) {
	all := &Report{}
	for _, name := range files {
		r, err := readReport(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all.merge(r)
	}
	return all, nil
}

func readReport(name string) (*Report, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := &Report{}
	d := json.NewDecoder(f)
	d.DisallowUnknownFields()
	if err := d.Decode(r); err != nil {
		return nil, err
	}
	if len(r.Tables) == 0 {
		return nil, errors.New("no tables")
	}
	return r, nil
}

// merge puts what was measured later into r, and takes it over.
func (r *Report) merge(later *Report) {
	for _, f := range later.Machine {
		r.Machine = r.Machine.with(f)
	}
	for _, t := range later.Tables {
		i := slices.IndexFunc(r.Tables, func(o *Table) bool { return o.path("") == t.path("") })
		if i < 0 {
			r.Tables = append(r.Tables, t)
			continue
		}
		subjects := r.Tables[i].Subjects
		for _, s := range t.Subjects {
			switch j := slices.IndexFunc(subjects, func(o *Subject) bool { return o.Name == s.Name }); {
			case j < 0:
				subjects = append(subjects, s)
			case len(s.Samples) > 0:
				subjects[j] = s
			}
		}
		t.Subjects = subjects
		r.Tables[i] = t
	}
}

const otherValue = "; and " // between values that a fact had in different files

// with adds a fact to m. One that is there already keeps its value as well, so
// that a report of several files tells of what they were measured on.
func (m Machine) with(f Fact) Machine {
	i := slices.IndexFunc(m, func(o Fact) bool { return o.Name == f.Name })
	if i < 0 {
		return append(m, f)
	}
	if !slices.Contains(strings.Split(m[i].Value, otherValue), f.Value) {
		m[i].Value += otherValue + f.Value
	}
	return m
}
