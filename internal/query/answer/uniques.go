package answer

import (
	"context"
	"time"

	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
)

// UniquesBody is what POST /v1/uniques takes.
type UniquesBody struct {
	Keys    []string   `json:"keys,omitempty" minItems:"1" doc:"Counters, each of 1 to 512 bytes of UTF-8 without control characters." example:"[\"visitors\",\"shop.visitors\"]"`
	Windows []string   `json:"windows,omitempty" maxItems:"8" doc:"How far to look back: whole numbers and units (s, m, h, d, w, y); or today, yesterday, week (since Monday), month or year, in the zone tz." example:"[\"1h\",\"24h\"]"`
	At      api.Moment `json:"at,omitempty" doc:"The end of the windows: an RFC 3339 time, a date, Unix milliseconds, or a time before now such as -7d. Default: now." example:"\"2026-11-21T10:00:00Z\""`
	From    api.Moment `json:"from,omitempty" doc:"In place of windows: the start of a range." example:"\"2026-11-21T09:00:00Z\""`
	To      api.Moment `json:"to,omitempty" doc:"With from: the end of the range, not included. Default: now." example:"1795255200000"`
	TZ      string     `json:"tz,omitempty" doc:"With dates, today, yesterday, week, month and year: the IANA time zone whose midnight counts. Default: UTC." example:"Europe/Berlin"`
	FreshParams
}

func (b *UniquesBody) Input() *Input {
	return &Input{Part: web.InBody, KeyParam: "keys", WindowsParam: "windows", Keys: b.Keys, Windows: b.Windows,
		at: b.At, from: b.From, to: b.To, hasCalendars: true, tz: b.TZ}
}

// UniquesAnswer has an estimate for each counter and window, all of one moment.
type UniquesAnswer struct {
	AsOf    time.Time `json:"as_of" doc:"Every hit stored before this moment is in the answer. 1970-01-01T00:00:00Z if some stream has not been counted yet." example:"2026-11-21T10:00:00.2Z"`
	Uniques []Unique  `json:"uniques" doc:"An estimate for every counter and window: the first counter with each of the windows, then the next one."`
}

// Unique is how many unique values the hits of one counter had in one range.
type Unique struct {
	Key           string       `json:"key" doc:"The counter." example:"visitors"`
	Window        string       `json:"window,omitempty" doc:"The window as it was asked for, such as 24h or today; absent for a range." example:"24h"`
	From          time.Time    `json:"from" doc:"The start of the window." example:"2026-11-20T10:00:00Z"`
	To            time.Time    `json:"to" doc:"The end of the window, not included." example:"2026-11-21T10:00:00Z"`
	Estimate      int64        `json:"estimate" doc:"How many unique values the hits in the window had. Of what a cell that the start cuts adds, it has the share of time that lies inside." example:"12431"`
	Lower         int64        `json:"lower" doc:"There were at least this many, with this confidence: two standard errors below the estimate of the cells that lie inside the window." example:"12180"`
	Upper         window.Bound `json:"upper" nullable:"true" doc:"There were at most this many, with this confidence: two standard errors above the estimate of all cells that the window touches. Null if it is unknown: the window ends more than 5 seconds after as_of." example:"12702"`
	Confidence    float64      `json:"confidence" doc:"How often the truth lies between lower and upper, at least. Unlike the bounds of a total, these are no certainty." example:"0.95"`
	Complete      bool         `json:"complete" doc:"False if hits of the window are known to be missing, or may be: counting began, or hits were discarded unread, after from; or upper is null." example:"true"`
	CountingSince time.Time    `json:"counting_since,omitzero" doc:"When counting of these streams began; absent if that is unknown." example:"2026-10-01T08:00:00Z"`
	Overflow      string       `json:"overflow,omitempty" doc:"A counter that may have some of the values, because new names had no room in the window (INGEST_MAX_NAMES): estimate and lower leave its values out, and upper includes them. Mostly absent." example:"web.~other.7"`
}

// Uniques checks an input and answers it. Its errors are for the client.
func (d *Service) Uniques(ctx context.Context, in *Input) (out UniquesAnswer, past bool, err error) {
	periods, err := in.totalPeriods(d.MaxKeys)
	if err != nil {
		return out, false, web.InputProblem(err, in.Part)
	}
	questions := questionsOf(in.Keys, periods)
	found, err := Read(ctx, d.Redis, func(ctx context.Context) (window.Answers, error) {
		return d.Reader.Uniques(ctx, questions)
	})
	if err != nil {
		return out, false, in.explain(err, periods...)
	}
	out = UniquesAnswer{AsOf: Time(found.AsOf), Uniques: make([]Unique, len(questions))}
	for i, q := range questions {
		out.Uniques[i] = uniqueOf(q.Counter, periods[i%len(periods)].Window, found.Answers[i], found.AsOf)
	}
	return out, endedBefore(found.Answers, found.Now), nil
}

func uniqueOf(key, windowText string, a window.Answer, asOf int64) Unique {
	return Unique{
		Key: key, Window: windowText, From: Time(a.Range.From), To: Time(a.Range.To),
		Estimate: a.Total, Lower: a.Lower, Upper: a.Range.AtMost(a.Upper, asOf), Confidence: window.UniqueConfidence,
		Complete: a.Complete && !a.Range.Outruns(asOf), CountingSince: Since(a.CountingSince), Overflow: a.Overflow,
	}
}

func UniquesExample() UniquesAnswer {
	return UniquesAnswer{
		AsOf: time.Date(2026, 11, 21, 10, 0, 0, 2e8, time.UTC),
		Uniques: []Unique{{
			Key: "visitors", Window: "24h", From: time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC),
			To:       time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC),
			Estimate: 12431, Lower: 12180, Upper: 12702, Confidence: window.UniqueConfidence, Complete: true,
			CountingSince: SinceExample,
		}},
	}
}
