package main

import (
	"bytes"
	"image/color"
	"io"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// The measures of the plot, in points.
const (
	plotWidth   vg.Length = 760
	plotMargin  vg.Length = 12
	barHeight   vg.Length = 9
	rowHeight   vg.Length = 13
	titleHeight vg.Length = 20
	panelHeight vg.Length = 38 // of a panel without its rows
	panelGap    vg.Length = 10 // to the right and below
)

var (
	gabionColor = color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff}
	peerColor   = color.RGBA{R: 0xa8, G: 0xac, B: 0xb0, A: 0xff}
	gridColor   = color.RGBA{R: 0xe4, G: 0xe6, B: 0xe8, A: 0xff}
)

// sans is what the plot's font is drawn with by those who do not have it. The
// first of them has the same widths.
const sans = "font-family:Liberation Sans,Arial,Helvetica,sans-serif;"

// A band is some columns of a table, with panels beside each other.
type band struct {
	table   *Table
	columns []Column
	first   bool
}

func (b band) height() vg.Length {
	h := panelHeight + rowHeight*vg.Length(len(b.table.Subjects)) + panelGap
	if b.first {
		h += titleHeight
	}
	return h
}

// writePlot draws how many of what each subject does per second: for each table
// a row of panels, one for each column, with a bar for each subject.
func (r *Report) writePlot(w io.Writer) error {
	var bands []band
	height := 2*plotMargin + 2*titleHeight
	for _, t := range r.Tables {
		first := true
		for columns := range slices.Chunk(t.perSecond(), abreast) {
			b := band{t, columns, first}
			bands = append(bands, b)
			height += b.height()
			first = false
		}
	}
	svg := vgsvg.New(plotWidth, height)
	c := draw.New(svg)
	c.FillPolygon(color.White, []vg.Point{c.Min, {X: c.Max.X, Y: c.Min.Y}, c.Max, {X: c.Min.X, Y: c.Max.Y}})
	c = draw.Crop(c, plotMargin, -plotMargin, plotMargin, -plotMargin)

	c.FillText(textStyle(13), c.Max.Sub(vg.Point{X: c.Size().X}), "Per second: medians, on a logarithmic scale")
	legend(c, c.Max.Y-titleHeight)
	top := c.Max.Y - 2*titleHeight
	for _, b := range bands {
		b.draw(draw.Crop(c, 0, 0, top-b.height()-c.Min.Y, top-c.Max.Y))
		top -= b.height()
	}
	var out bytes.Buffer
	if _, err := svg.WriteTo(&out); err != nil {
		return err
	}
	_, err := w.Write(bytes.ReplaceAll(out.Bytes(), []byte("font-family:Liberation Sans;"), []byte(sans)))
	return err
}

// perSecond returns the columns to draw.
func (t *Table) perSecond() []Column {
	return slices.DeleteFunc(slices.Clone(t.Columns), func(c Column) bool {
		return c.Unit != PerSecond || !slices.ContainsFunc(t.Subjects, func(s *Subject) bool {
			figure, ok := s.figure(c.Name)
			return ok && figure > 0
		})
	})
}

func textStyle(size vg.Length) text.Style {
	return text.Style{
		Color: color.Black, Font: font.Font{Typeface: plot.DefaultFont.Typeface, Variant: "Sans", Size: size},
		XAlign: draw.XLeft, YAlign: draw.YTop, Handler: plot.DefaultTextHandler,
	}
}

func legend(c draw.Canvas, y vg.Length) {
	x := c.Min.X
	style := textStyle(9)
	for _, l := range []struct {
		name  string
		color color.Color
	}{{"gabion", gabionColor}, {"others", peerColor}} {
		rectangle(c, l.color, x, x+barHeight, y-barHeight, y)
		c.FillText(style, vg.Point{X: x + barHeight + 4, Y: y + 1}, l.name)
		x += barHeight + 4 + style.Width(l.name) + 16
	}
}

func rectangle(c draw.Canvas, fill color.Color, left, right, bottom, top vg.Length) {
	c.FillPolygon(fill, []vg.Point{{X: left, Y: bottom}, {X: right, Y: bottom}, {X: right, Y: top}, {X: left, Y: top}})
}

func (b band) draw(c draw.Canvas) {
	if b.first {
		c.FillText(textStyle(11), vg.Point{X: c.Min.X, Y: c.Max.Y}, b.table.Section+": "+b.table.Name)
		c = draw.Crop(c, 0, 0, 0, -titleHeight)
	}
	c = draw.Crop(c, 0, 0, panelGap, 0)
	style := textStyle(8)
	style.YAlign = draw.YCenter
	names := vg.Length(0)
	for _, s := range b.table.Subjects {
		names = max(names, style.Width(s.Name)+6)
	}
	low, high := b.table.extent()
	width := (c.Size().X - names) / vg.Length(max(len(b.columns), 2))
	for i, column := range b.columns {
		left := c.Min.X + names + width*vg.Length(i)
		p := b.panel(column, low, high)
		area := draw.Crop(c, left-c.Min.X, left+width-panelGap-c.Max.X, 0, 0)
		p.Draw(area)
		if i > 0 {
			continue
		}
		area = p.DataCanvas(area)
		_, y := p.Transforms(&area)
		for i, s := range b.table.Subjects {
			c.FillText(style, vg.Point{X: c.Min.X, Y: y(b.table.row(i))}, s.Name)
		}
	}
}

// row returns where the middle of a subject's bar is on the vertical axis.
func (t *Table) row(i int) float64 { return float64(len(t.Subjects)-i) - 0.5 }

// extent returns what the axes of a table reach from and to: powers of ten
// below all figures, and above all of them so far that they can be written
// behind their bars.
func (t *Table) extent() (low, high float64) {
	low, high = math.Inf(1), 0
	for _, c := range t.perSecond() {
		for _, s := range t.Subjects {
			if figure, ok := s.figure(c.Name); ok && figure > 0 {
				low, high = min(low, figure), max(high, figure)
			}
		}
	}
	low = math.Pow(10, math.Floor(math.Log10(low*0.8)))
	return low, high * math.Pow(high/low, 0.35)
}

func (b band) panel(column Column, low, high float64) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	p.Title.Text = column.Name
	p.Title.TextStyle = textStyle(9)
	p.Title.TextStyle.XAlign = draw.XCenter
	p.Title.Padding = 4
	p.HideY()
	p.Y.Min, p.Y.Max = 0, float64(len(b.table.Subjects))
	p.Y.Padding = 0
	p.X.Min, p.X.Max = low, high
	p.X.Scale = plot.LogScale{}
	p.X.Tick.Marker = decades{}
	p.X.Tick.Label.Font = textStyle(7).Font
	p.X.Tick.Length = 3
	p.X.Padding = 0
	p.X.Label.Text = "per second"
	p.X.Label.TextStyle.Font = textStyle(7).Font
	p.X.Label.Padding = 1
	grid := plotter.NewGrid()
	grid.Horizontal.Color = nil
	grid.Vertical.Color = gridColor
	p.Add(grid, bars{b.table, column})
	return p
}

// bars is a plotter of a column's figures, from top to bottom.
type bars struct {
	table  *Table
	column Column
}

func (b bars) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	style := textStyle(8)
	style.YAlign = draw.YCenter
	for i, s := range b.table.Subjects {
		figure, ok := s.figure(b.column.Name)
		if !ok || figure <= 0 {
			continue
		}
		fill := peerColor
		if strings.HasPrefix(s.Name, "gabion") {
			fill = gabionColor
		}
		middle := y(b.table.row(i))
		rectangle(c, fill, x(p.X.Min), x(figure), middle-barHeight/2, middle+barHeight/2)
		c.FillText(style, vg.Point{X: x(figure) + 3, Y: middle}, short(figure))
	}
}

// decades marks the powers of ten.
type decades struct{}

func (decades) Ticks(low, high float64) (ticks []plot.Tick) {
	for v := low; v <= high*1.001; v *= 10 {
		ticks = append(ticks, plot.Tick{Value: v, Label: short(v)})
	}
	return ticks
}

// short returns a figure with at most three significant digits and a letter for
// thousands, millions or milliards.
func short(v float64) string {
	letter := ""
	for _, l := range []string{"k", "M", "G"} {
		if v < 999.5 {
			break
		}
		v /= 1000
		letter = l
	}
	s := digits(v)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s + letter
}
