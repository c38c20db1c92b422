package query

// appendJSON appends the answer.
func (a *totalAnswer) appendJSON(j *jsonText) {
	j.raw(`{"as_of":`)
	j.time(a.AsOf)
	j.raw(`,"totals":`)
	totalList(a.Totals).appendJSON(j)
	j.raw(`}`)
}

// totalList is the totals of an answer.
type totalList []total

func (t totalList) appendJSON(j *jsonText) {
	j.list(len(t), func(i int) { t[i].appendJSON(j) })
}

func (t *total) appendJSON(j *jsonText) {
	j.raw(`{"key":`)
	j.text(t.Key)
	if t.Window != "" {
		j.raw(`,"window":`)
		j.text(t.Window)
	}
	j.raw(`,"from":`)
	j.time(t.From)
	j.raw(`,"to":`)
	j.time(t.To)
	j.bounds(t.Total, t.Lower, t.Upper)
	j.raw(`,"cell":`)
	j.text(t.Cell)
	j.raw(`,"complete":`)
	j.truth(t.Complete)
	if !t.CountingSince.IsZero() {
		j.raw(`,"counting_since":`)
		j.time(t.CountingSince)
	}
	if t.SumOver != nil {
		t.SumOver.appendFields(j)
	}
	if t.Explained != nil {
		j.raw(`,"explain":`)
		j.value(t.Explain) // long, and rarely asked for
	}
	j.raw(`}`)
}

// appendFields appends the fields that a sum adds to a total.
func (s *SumOver) appendFields(j *jsonText) {
	j.raw(`,"counters":`)
	j.number(int64(s.Counters))
	if len(s.Groups) == 0 {
		return
	}
	j.raw(`,"groups":`)
	j.list(len(s.Groups), func(i int) {
		g := &s.Groups[i]
		j.raw(`{"group":`)
		j.text(g.Group)
		j.raw(`,"counters":`)
		j.number(int64(g.Counters))
		j.bounds(g.Total, g.Lower, g.Upper)
		j.raw(`}`)
	})
}

// bounds appends the fields of an estimate.
func (j *jsonText) bounds(total, lower int64, upper bound) {
	j.raw(`,"total":`)
	j.number(total)
	j.raw(`,"lower":`)
	j.number(lower)
	j.raw(`,"upper":`)
	j.raw(upper.String())
}
