package query

import "tallyroll/internal/web/api"

// AppendJSON appends the answer.
func (a *totalAnswer) AppendJSON(j *api.JSON) {
	j.Raw(`{"as_of":`)
	j.Time(a.AsOf)
	j.Raw(`,"totals":`)
	totalList(a.Totals).AppendJSON(j)
	j.Raw(`}`)
}

// totalList is the totals of an answer.
type totalList []total

func (t totalList) AppendJSON(j *api.JSON) {
	j.List(len(t), func(i int) { t[i].AppendJSON(j) })
}

func (t *total) AppendJSON(j *api.JSON) {
	j.Raw(`{"key":`)
	j.Text(t.Key)
	if t.Window != "" {
		j.Raw(`,"window":`)
		j.Text(t.Window)
	}
	j.Raw(`,"from":`)
	j.Time(t.From)
	j.Raw(`,"to":`)
	j.Time(t.To)
	appendBounds(j, t.Total, t.Lower, t.Upper)
	j.Raw(`,"cell":`)
	j.Text(t.Cell)
	j.Raw(`,"complete":`)
	j.Truth(t.Complete)
	if !t.CountingSince.IsZero() {
		j.Raw(`,"counting_since":`)
		j.Time(t.CountingSince)
	}
	if t.SumOver != nil {
		t.SumOver.appendFields(j)
	}
	if t.Explained != nil {
		j.Raw(`,"explain":`)
		j.Value(t.Explain) // long, and rarely asked for
	}
	j.Raw(`}`)
}

// appendFields appends the fields that a sum adds to a total.
func (s *SumOver) appendFields(j *api.JSON) {
	j.Raw(`,"counters":`)
	j.Number(int64(s.Counters))
	if len(s.Groups) == 0 {
		return
	}
	j.Raw(`,"groups":`)
	j.List(len(s.Groups), func(i int) {
		g := &s.Groups[i]
		j.Raw(`{"group":`)
		j.Text(g.Group)
		j.Raw(`,"counters":`)
		j.Number(int64(g.Counters))
		appendBounds(j, g.Total, g.Lower, g.Upper)
		j.Raw(`}`)
	})
}

// appendBounds appends the fields of an estimate.
func appendBounds(j *api.JSON, total, lower int64, upper bound) {
	j.Raw(`,"total":`)
	j.Number(total)
	j.Raw(`,"lower":`)
	j.Number(lower)
	j.Raw(`,"upper":`)
	j.Raw(upper.String())
}
