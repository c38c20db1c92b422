package main

import (
	"math"
	"regexp/syntax"
	"strings"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/strutil"
)

// What a query may cost, before Redis is asked and the engine runs. The engine checks its samples and its time between
// steps and between series. What it does between two such checks is bounded here: it makes room for all steps of a
// subquery at once, works through all windows of a series, compiles and matches regular expressions, makes a heap per
// group, and recurses over the expression. The rest is left to its checks, and to the watch on memory.

const (
	// maxTokens bounds how deep an expression is. The parser's time grows with its square, and the engine's stack with it.
	maxTokens = 4000
	// maxGroups bounds the groups and character classes of regular expressions. The parser's time grows with the square
	// of how deep groups are, and a class can take 5 kB.
	maxGroups = 500
	// maxInstructions bounds what the regular expressions of a query compile to, at 40 bytes each. Those of a{1000} are
	// a thousand.
	maxInstructions = 100_000
	// maxLabels bounds the bytes of the labels of a series: a label_replace with "$1$1" doubles one.
	maxLabels = 64 << 10
	// labelsPerSample times PROMQL_MAX_SAMPLES bounds the bytes of the labels of all series that are made at once, and of
	// an answer.
	labelsPerSample = 64
	// nameBytes is the longest name of a counter (hit.MaxName).
	nameBytes = 512
	// numberBytes is the longest label that count_values makes of a number.
	numberBytes = 24
	// heapBytes is what a sample takes in a heap of topk.
	heapBytes = 48
	// subqueryStep is the step of a subquery that has none.
	subqueryStep = time.Minute
)

// sorting are functions that sort each window. This many comparisons per sample are more than they need.
var sorting = map[string]float64{"quantile_over_time": 16, "mad_over_time": 16}

// checkText bounds what it costs to parse the texts of a parameter together.
func (s *service) checkText(name string, texts ...string) error {
	size, tokens := 0, 0
	for _, text := range texts {
		size += len(text)
	}
	if size > s.settings.MaxQuery {
		return refused("parameter %q has %d bytes: at most %d are allowed (PROMQL_MAX_QUERY_BYTES): ask about fewer at once", name, size, s.settings.MaxQuery)
	}
	var w weights
	for _, text := range texts {
		lexer, isPattern := parser.Lex(text), false
		for item := (parser.Item{}); ; {
			lexer.NextItem(&item)
			if item.Typ == parser.EOF || item.Typ == parser.ERROR {
				break // the parser says what is wrong
			}
			tokens++
			if tokens > maxTokens {
				return refused("parameter %q has more than %d names, numbers and signs, which is the most allowed: ask in several queries", name, maxTokens)
			}
			if item.Typ == parser.STRING && isPattern {
				if pattern, err := strutil.Unquote(item.Val); err == nil {
					if _, err := w.add(pattern); err != nil {
						return err
					}
				}
			}
			isPattern = item.Typ == parser.EQL_REGEX || item.Typ == parser.NEQ_REGEX || isPattern && item.Typ == parser.COMMENT
		}
	}
	return nil
}

// extent is the most that an expression can give. Its numbers are floats, because products of them can be larger than
// any integer.
type extent struct {
	series float64 // over all steps
	value  float64 // bytes of a label's value
	labels float64 // bytes of all labels of a series
}

// cost adds up what a query costs.
type cost struct {
	settings *Settings
	text     int // bytes of the query
	weights  weights

	evaluations float64
	// fixed is at how many steps a range with @ is evaluated. Its selector's hints do not say.
	fixed float64
}

// costOf bounds what it costs to evaluate an expression. Its error is a *apiError.
func (s *service) costOf(text string, expr parser.Expr, over moments) (cost, error) {
	c := cost{settings: &s.settings, text: len(text)}
	_, err := c.of(expr, over.grid())
	return c, err
}

// weights adds up what regular expressions need before they are compiled.
type weights struct{ groups, instructions int }

// add returns the number of instructions that a regular expression compiles to, or a few more.
func (w *weights) add(pattern string) (instructions int, err error) {
	w.groups += groupsOf(pattern)
	if w.groups <= maxGroups {
		if re, err := syntax.Parse(pattern, syntax.Perl); err == nil { // if not, the parser or the engine says why
			instructions = instructionsOf(re)
			w.instructions += instructions
		}
	}
	if w.groups > maxGroups || w.instructions > maxInstructions {
		return 0, refused("the regular expressions of this query are too large: at most %d groups and character classes, and %d characters after repetitions such as {10} are written out, are allowed together: name counters with key=~\"a|b\"", maxGroups, maxInstructions)
	}
	return instructions, nil
}

func groupsOf(pattern string) (n int) {
	for i := 0; i < len(pattern); i++ {
		switch pattern[i] {
		case '(', '[':
			n++
		case '\\':
			i++
			if i < len(pattern) && (pattern[i] == 'p' || pattern[i] == 'P') { // a class by name
				n++
			}
		}
	}
	return n
}

func instructionsOf(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)
	for _, sub := range re.Sub {
		n += instructionsOf(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1) // at most 1000, of nested ones the product
	}
	return n
}

// grid is the steps at which something is evaluated, in milliseconds.
type grid struct{ span, step float64 }

func (g grid) steps() float64 { return math.Floor(g.span/g.step) + 1 }

// add counts evaluations: a value at a step, or a sample in the window of a function at a step.
func (c *cost) add(n float64) error {
	c.evaluations += n
	if c.evaluations > float64(c.settings.MaxEvaluations) {
		return tooManyEvaluations(c.settings.MaxEvaluations)
	}
	return nil
}

func tooManyEvaluations(most int64) error {
	return refused("this query needs more than %d evaluations, which is the most allowed (PROMQL_MAX_EVALUATIONS). They are its steps times the samples in its ranges, and what label_replace matches: choose a longer step, a shorter range, in brackets [range:step] a longer step, or fewer counters", most)
}

func (c *cost) of(expr parser.Expr, g grid) (out extent, err error) {
	switch e := expr.(type) {
	case *parser.ParenExpr:
		return c.of(e.Expr, g)
	case *parser.MatrixSelector:
		return c.of(e.VectorSelector, g)
	case *parser.SubqueryExpr:
		return c.subquery(e, g)
	case *parser.NumberLiteral, *parser.StringLiteral:
		out.series = 1
	case *parser.VectorSelector:
		out = c.selector(e)
	case *parser.UnaryExpr:
		out, err = c.of(e.Expr, g)
	case *parser.BinaryExpr:
		out, err = c.binary(e, g)
	case *parser.AggregateExpr:
		out, err = c.aggregation(e, g)
	case *parser.Call:
		out, err = c.call(e, g)
	default:
		err = refused("nobody knows what a part of this query costs (%T)", e)
	}
	if err != nil {
		return extent{}, err
	}
	if out.labels > maxLabels {
		return extent{}, refused("this query can make labels of %.0f bytes per series: at most %d are allowed: replace or join fewer labels", out.labels, maxLabels)
	}
	samples := float64(c.settings.MaxSamples) // the engine holds no more
	out.series = min(out.series, samples)
	return out, c.add(min(max(out.series, 1)*g.steps(), samples))
}

func (c *cost) selector(e *parser.VectorSelector) extent {
	series := float64(c.settings.MaxCounters)
	keys, metrics := keyMatchers(e.LabelMatchers)
	for _, m := range keys {
		if n := len(spelledBy(m)); n > 0 {
			series = min(series, float64(n))
		}
	}
	return extent{series * float64(len(metrics)), nameBytes, float64(len("__name__") + len(uniqueName) + len(keyLabel) + nameBytes)}
}

// subquery bounds the steps of a subquery: the engine makes room for all of them at once.
func (c *cost) subquery(e *parser.SubqueryExpr, g grid) (extent, error) {
	inner := subqueryGrid(e)
	if inner.span < 1 || inner.step < 1 {
		return extent{}, refused("a subquery's range and step are 1ms or longer")
	}
	if !fixed(e.Timestamp, e.StartOrEnd) {
		inner.span += g.span
	}
	if steps := inner.steps(); steps > float64(c.settings.MaxSamples) {
		return extent{}, refused("a subquery has %.0f steps: at most %d are allowed (PROMQL_MAX_SAMPLES): choose a shorter range or, in brackets [range:step], a longer step", steps, c.settings.MaxSamples)
	}
	return c.of(e.Expr, inner)
}

func (c *cost) binary(e *parser.BinaryExpr, g grid) (extent, error) {
	left, err := c.of(e.LHS, g)
	if err != nil {
		return extent{}, err
	}
	right, err := c.of(e.RHS, g)
	if err != nil {
		return extent{}, err
	}
	out := widest(left, right)
	switch {
	case e.Op == parser.LOR:
		out.series = left.series + right.series
	case e.VectorMatching != nil && len(e.VectorMatching.Include) > 0: // each series of one side can get the labels of each of the other
		out.series, out.labels = left.series*right.series, left.labels+right.labels
	}
	return out, nil
}

func (c *cost) aggregation(e *parser.AggregateExpr, g grid) (extent, error) {
	if e.Param != nil {
		if _, err := c.of(e.Param, g); err != nil {
			return extent{}, err
		}
	}
	out, err := c.of(e.Expr, g)
	if err != nil {
		return extent{}, err
	}
	grouped, groups := e.Without || len(e.Grouping) > 0, 1.0
	if grouped {
		groups = out.series
	}
	switch e.Op {
	case parser.LIMIT_RATIO:
	case parser.TOPK, parser.BOTTOMK, parser.LIMITK:
		k := out.series
		if n, ok := unwrap(e.Param).(*parser.NumberLiteral); ok && n.Val < k {
			k = n.Val
		}
		if groups*k*heapBytes > c.labelBytes() {
			return extent{}, refused("%s with by or without can need %.0f places here, one for each series in each group: at most %.0f are allowed (%d bytes per PROMQL_MAX_SAMPLES): ask for fewer series, with a number in place of an expression", e.Op, groups*k, c.labelBytes()/heapBytes, labelsPerSample)
		}
	default:
		series := out.series
		if !grouped {
			out = extent{series: 1} // without labels
		}
		if e.Op == parser.COUNT_VALUES { // at each step, other values can make other series
			out.series = min(series*g.steps(), float64(c.settings.MaxSamples))
			return c.label(out, len(textOf(e.Param)), numberBytes)
		}
	}
	return out, nil
}

func (c *cost) call(e *parser.Call, g grid) (extent, error) {
	out := extent{series: 1}
	for _, arg := range e.Args {
		a, err := c.of(arg, g)
		if err != nil {
			return extent{}, err
		}
		out = widest(out, a)
		switch arg := unwrap(arg).(type) {
		case *parser.SubqueryExpr:
			if err := c.add(g.steps() * subqueryGrid(arg).steps() * max(1, sorting[e.Func.Name])); err != nil {
				return extent{}, err
			}
		case *parser.MatrixSelector: // querier.windows bounds it, when it knows the cells
			if vs := arg.VectorSelector.(*parser.VectorSelector); fixed(vs.Timestamp, vs.StartOrEnd) {
				c.fixed = max(c.fixed, g.steps())
			}
		}
	}
	switch e.Func.Name {
	case "scalar", "vector":
		out.series = 1
	case "absent", "absent_over_time": // the labels are those that the matchers spell out
		return extent{1, float64(c.text), float64(c.text)}, nil
	case "label_replace":
		instructions, err := c.weights.add(textOf(e.Args[4]))
		if err != nil {
			return extent{}, err
		}
		if err := c.add(float64(instructions) * (out.value + 1) * out.series); err != nil {
			return extent{}, err
		}
		template := textOf(e.Args[2])
		return c.label(out, len(textOf(e.Args[1])), float64(len(template))+float64(strings.Count(template, "$"))*out.value)
	case "label_join":
		parts := float64(len(e.Args) - 3)
		return c.label(out, len(textOf(e.Args[1])), parts*(out.value+float64(len(textOf(e.Args[2])))))
	}
	return out, nil
}

// subqueryGrid is that of one evaluation.
func subqueryGrid(e *parser.SubqueryExpr) grid {
	step := e.Step
	if step == 0 {
		step = subqueryStep
	}
	return grid{float64(e.Range.Milliseconds()), float64(step.Milliseconds())}
}

// fixed reports whether a selector or a subquery has @.
func fixed(at *int64, startOrEnd parser.ItemType) bool { return at != nil || startOrEnd != 0 }

// widest returns the most of each number.
func widest(a, b extent) extent {
	return extent{max(a.series, b.series), max(a.value, b.value), max(a.labels, b.labels)}
}

// label gives each series a further label.
func (c *cost) label(out extent, name int, value float64) (extent, error) {
	if bytes := out.series * value; bytes > c.labelBytes() {
		return extent{}, refused("this query can make labels of %.0f bytes: at most %.0f are allowed (%d per PROMQL_MAX_SAMPLES): make shorter labels, or of fewer series", bytes, c.labelBytes(), labelsPerSample)
	}
	out.value = max(out.value, value)
	out.labels += float64(name) + value
	return out, nil
}

func (c *cost) labelBytes() float64 { return labelsPerSample * float64(c.settings.MaxSamples) }

// textOf returns the text of a literal.
func textOf(e parser.Expr) string {
	if s, ok := unwrap(e).(*parser.StringLiteral); ok {
		return s.Val
	}
	return ""
}

// unwrap takes the parentheses off.
func unwrap(e parser.Expr) parser.Expr {
	for {
		p, ok := e.(*parser.ParenExpr)
		if !ok {
			return e
		}
		e = p.Expr
	}
}
