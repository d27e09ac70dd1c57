package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// abreast is how many columns fit beside each other; a table that has more is
// continued below.
const abreast = 4

const (
	reading = "Figures are medians. ± is how far the sample furthest off lies from the median, in percent of it, and 2.00x is " +
		"twice the figure of what the table compares with."
	promises = "What gabion holds itself to, and what it came to here."
)

// layout is how a report spells its parts.
type layout interface {
	heading(level int, s string)
	paragraph(s string)
	facts(m Machine)
	table(rows [][]string) // the first row names the columns
}

func (r *Report) writeText(w io.Writer) error {
	var p terminal
	r.lay(&p)
	_, err := p.WriteTo(w)
	return err
}

func (r *Report) writeMarkdown(w io.Writer) error {
	var p markdown
	r.lay(&p)
	_, err := p.WriteTo(w)
	return err
}

func (r *Report) lay(l layout) {
	l.facts(r.Machine)
	l.paragraph(reading)
	section := ""
	for _, t := range r.Tables {
		if t.Section != section {
			section = t.Section
			l.heading(1, section)
		}
		l.heading(2, t.Name)
		l.paragraph(t.caption())
		for columns := range slices.Chunk(t.Columns, abreast) {
			l.table(t.rows(columns))
		}
	}
	rows := [][]string{{"", "measured", "bound", "goal", ""}}
	for _, t := range r.Tables {
		for _, g := range t.Targets {
			row := t.judge(g).row()
			row[0] = t.Name + ": " + row[0]
			rows = append(rows, row)
		}
	}
	if len(rows) > 1 {
		l.heading(1, "targets")
		l.paragraph(promises)
		l.table(rows)
	}
}

// caption returns what stands above a table.
func (t *Table) caption() string {
	var parts []string
	if t.Note != "" {
		parts = append(parts, t.Note)
	}
	if t.Baseline != "" {
		parts = append(parts, "Compared with "+t.Baseline+".")
	}
	if t.Rounds > 0 {
		parts = append(parts, fmt.Sprintf("Rounds: at most %d.", t.Rounds))
	}
	return strings.Join(parts, " ")
}

// rows returns a table's names and figures.
func (t *Table) rows(columns []Column) [][]string {
	rows := [][]string{{""}}
	for _, s := range t.Subjects {
		rows = append(rows, []string{s.Name})
	}
	for _, c := range columns {
		rows[0] = append(rows[0], c.Name+", "+string(c.Unit))
		cells := make([][]string, len(t.Subjects))
		for i, s := range t.Subjects {
			cells[i] = t.cell(s, c.Name)
		}
		for i, cell := range align(cells) {
			rows[i+1] = append(rows[i+1], cell)
		}
	}
	return rows
}

// cell returns a median, how far the samples are spread, and what the median is
// to the baseline's; nothing if nothing has been measured.
func (t *Table) cell(s *Subject, column string) []string {
	figure, ok := s.figure(column)
	if !ok {
		return nil
	}
	cell := []string{digits(figure), "", ""}
	if samples := s.Samples[column]; len(samples) > 1 && figure != 0 {
		off := max(slices.Max(samples)-figure, figure-slices.Min(samples))
		cell[1] = fmt.Sprintf("±%.0f%%", 100*off/math.Abs(figure))
	}
	if times, ok := t.ratio(Cell{s.Name, column}, Cell{t.Baseline, column}); ok {
		cell[2] = digits(times) + "x"
	}
	return cell
}

// align makes one string of each row, in which all the cells stand below each
// other, to the right.
func align(rows [][]string) []string {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	lines := make([]string, len(rows))
	for i, row := range rows {
		var cells []string
		for j, cell := range row {
			if widths[j] > 0 {
				cells = append(cells, strings.Repeat(" ", widths[j]-utf8.RuneCountInString(cell))+cell)
			}
		}
		lines[i] = strings.Join(cells, " ")
	}
	return lines
}

// at returns a figure, and whether it has been measured.
func (t *Table) at(c Cell) (float64, bool) {
	s := t.subject(c.Subject)
	if s == nil {
		return 0, false
	}
	return s.figure(c.Column)
}

// ratio returns what one figure is to another.
func (t *Table) ratio(of, to Cell) (float64, bool) {
	a, ok := t.at(of)
	b, ok2 := t.at(to)
	if !ok || !ok2 || b == 0 {
		return 0, false
	}
	return a / b, true
}

// A judgement is what became of a target.
type judgement struct {
	Target
	unit     Unit
	figure   float64
	measured bool
}

func (t *Table) judge(g Target) judgement {
	j := judgement{Target: g, unit: Ratio}
	if g.To != (Cell{}) {
		j.figure, j.measured = t.ratio(g.Of, g.To)
		return j
	}
	for _, c := range t.Columns {
		if c.Name == g.Of.Column {
			j.unit = c.Unit
		}
	}
	j.figure, j.measured = t.at(g.Of)
	return j
}

// reaches tells whether the figure is as good as a bound.
func (j judgement) reaches(bound float64) bool {
	if j.AtMost {
		return j.figure <= bound
	}
	return j.figure >= bound
}

func (j judgement) verdict() string {
	switch {
	case !j.measured:
		return "not measured"
	case !j.reaches(j.Bound):
		return "MISSED"
	case j.Goal != 0 && !j.reaches(j.Goal):
		return "reached, not the goal"
	}
	return "reached"
}

func (j judgement) row() []string {
	unit := string(j.unit)
	if j.unit != Ratio {
		unit = " " + unit
	}
	which := "at least "
	if j.AtMost {
		which = "at most "
	}
	bound := func(v float64) string { return separate(strconv.FormatFloat(v, 'f', -1, 64)) + unit }
	row := []string{j.What, "", which + bound(j.Bound), "", j.verdict()}
	bounded := j.Bound != 0 || j.AtMost // else it is to be told, whatever it is
	if !bounded {
		row[2] = ""
	}
	if j.measured {
		row[1] = digits(j.figure) + unit
	}
	if j.measured && !bounded {
		row[4] = ""
	}
	if j.Goal != 0 {
		row[3] = bound(j.Goal)
	}
	return row
}

// digits returns a figure with three significant digits.
func digits(v float64) string {
	if v == 0 {
		return "0"
	}
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'e', 2, 64), 64)
	places := 2 - int(math.Floor(math.Log10(math.Abs(rounded))))
	return separate(strconv.FormatFloat(rounded, 'f', max(0, places), 64))
}

// separate puts commas between the thousands of a number.
func separate(number string) string {
	whole, fraction, point := strings.Cut(number, ".")
	for i := len(whole) - 3; i > 0 && whole[i-1] != '-'; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if !point {
		return whole
	}
	return whole + "." + fraction
}

// terminal is a report for a terminal.
type terminal struct{ bytes.Buffer }

const terminalWidth = 100

func (p *terminal) heading(level int, s string) {
	fmt.Fprintf(p, "\n%s\n%s\n", s, strings.Repeat(" =-"[level:level+1], utf8.RuneCountInString(s)))
}

func (p *terminal) paragraph(s string) {
	if s == "" {
		return
	}
	p.WriteByte('\n')
	p.lines("", s)
}

// lines writes s, broken where the width ends, after a prefix that the further
// lines leave room for.
func (p *terminal) lines(prefix, s string) {
	indent := strings.Repeat(" ", utf8.RuneCountInString(prefix))
	line := prefix
	for i, word := range strings.Fields(s) {
		switch {
		case i == 0:
			line += word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > terminalWidth:
			fmt.Fprintln(p, line)
			line = indent + word
		default:
			line += " " + word
		}
	}
	fmt.Fprintln(p, line)
}

func (p *terminal) facts(m Machine) {
	width := 0
	for _, f := range m {
		width = max(width, utf8.RuneCountInString(f.Name))
	}
	for _, f := range m {
		p.lines(fmt.Sprintf("%-*s  ", width, f.Name), f.Value)
	}
}

func (p *terminal) table(rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	p.WriteByte('\n')
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			fill := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				line.WriteString(cell + fill)
			} else {
				line.WriteString("   " + fill + cell)
			}
		}
		fmt.Fprintln(p, strings.TrimRight(line.String(), " "))
	}
}

// markdown is a report for a README.
type markdown struct{ bytes.Buffer }

var escapeMarkdown = strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`, "_", `\_`)

func (p *markdown) heading(level int, s string) {
	fmt.Fprintf(p, "\n%s %s\n", strings.Repeat("#", level+1), escapeMarkdown.Replace(s))
}

func (p *markdown) paragraph(s string) {
	if s != "" {
		fmt.Fprintf(p, "\n%s\n", escapeMarkdown.Replace(s))
	}
}

func (p *markdown) facts(m Machine) {
	for _, f := range m {
		fmt.Fprintf(p, "- %s: %s\n", f.Name, escapeMarkdown.Replace(cmp.Or(f.Value, unknown)))
	}
}

func (p *markdown) table(rows [][]string) {
	p.WriteByte('\n')
	for i, row := range rows {
		for _, cell := range row {
			fmt.Fprintf(p, "| %s ", escapeMarkdown.Replace(cell))
		}
		p.WriteString("|\n")
		if i == 0 {
			p.WriteString("|---|" + strings.Repeat("---:|", len(row)-1) + "\n")
		}
	}
}
