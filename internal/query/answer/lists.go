package answer

import (
	"bytes"
	"context"
	"encoding/csv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/platform/release"
	"tallyroll/internal/query/fresh"
	"tallyroll/internal/web"
	"tallyroll/internal/web/access"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
)

// TopQuestion is what the endpoint top over NATS takes, as JSON.
type TopQuestion struct {
	Window string     `query:"window" hint:"window" json:"window" required:"true" doc:"How far to look back: a whole number and a unit (s, m, h, d, w, y)." example:"1h"`
	Limit  api.Number `query:"limit" hint:"a whole number from 1 to 1000" json:"limit" doc:"The most counters to list: 1 to 1000. Default: 20." example:"20"`
	At     api.Moment `query:"at" json:"at" doc:"The end of the window: an RFC 3339 time, Unix milliseconds, or a time before now such as -7d. Default: now." example:"\"2026-11-21T10:00:00Z\""`
	Prefix string     `query:"prefix" hint:"name" emptyWith:"group" json:"prefix" doc:"Only counters whose names begin like this. It may be empty with group." example:"shop."`
	Group  api.Number `query:"group" hint:"a whole number from 1 to 16" json:"group" doc:"List groups of counters whose names have this many first parts in common, separated by . or /. 1 to 16." example:"2"`
	FreshParams
}

// TopParams is what GET /v1/top takes.
type TopParams struct {
	TopQuestion
	Format string `query:"format" hint:"json or csv" doc:"json or csv; it takes precedence over the header Accept. Default: json." example:"csv"`

	Accept string `header:"Accept" hidden:"true"`
}

// TopAnswer lists the largest counters or groups.
type TopAnswer struct {
	AsOf          time.Time    `json:"as_of" doc:"Every hit stored before this moment is in the answer. 1970-01-01T00:00:00Z if some stream has not been counted yet." example:"2026-11-21T10:00:00.2Z"`
	Window        string       `json:"window" doc:"The window as it was asked for." example:"1h"`
	Complete      bool         `json:"complete" doc:"False if hits of the window are known to be missing, or may be: counting began, or hits were discarded unread, after it began; or floor is null." example:"true"`
	CountingSince time.Time    `json:"counting_since,omitzero" doc:"When counting of these streams began; absent if that is unknown." example:"2026-10-01T08:00:00Z"`
	Floor         window.Bound `json:"floor" nullable:"true" doc:"No counter, or group, with more hits in the window is missing from the list. Null if it is unknown, because no worker has counted lately: the window ends more than 5 seconds after as_of." example:"37"`
	Top           []topTotal   `json:"top" doc:"The counters or groups by total, the largest first; those with the same total by name."`
}

type topTotal struct {
	Key      string       `json:"key" doc:"The counter or the group." example:"api-1"`
	Counters int          `json:"counters,omitempty" doc:"Of a group: how many counters have hits in the window, or may have some." example:"12"`
	Total    int64        `json:"total" doc:"The hits in the window, as /v1/total gives them; of a group, the sum of its counters' totals." example:"1234"`
	Lower    int64        `json:"lower" doc:"There were at least this many hits." example:"1229"`
	Upper    window.Bound `json:"upper" nullable:"true" doc:"There were at most this many hits; null if floor is." example:"1241"`
}

// Top checks parameters and answers. Its errors are for the client.
func (d *Service) Top(ctx context.Context, part string, p *TopQuestion) (TopAnswer, error) {
	limit, err := p.Limit.Parse("limit", defaultTop, 1, maxTop)
	if err != nil {
		return TopAnswer{}, web.InputProblem(err, part)
	}
	if p.Window == "" {
		return TopAnswer{}, web.BadInput("window", "missing: must be %s", api.WindowHint).Problem(part)
	}
	in := &Input{Part: part, WindowsParam: "window", Windows: []string{p.Window}, at: p.At, prefix: p.Prefix,
		group: p.Group}
	periods, err := in.Periods()
	if err == nil && in.isSum() {
		err = in.checkSum()
	}
	if err != nil {
		return TopAnswer{}, web.InputProblem(err, part)
	}
	return d.top(ctx, in, periods[0], int(limit))
}

// top answers a checked input. The streams' summaries are about all counters, so the largest of a prefix, or
// of a token with prefixes, are found among all of its totals.
func (d *Service) top(ctx context.Context, in *Input, p period, limit int) (TopAnswer, error) {
	if in.isSum() || access.From(ctx).HasPrefixes() {
		return d.topGroups(ctx, in, p, limit)
	}
	found, err := Read(ctx, d.Redis, func(ctx context.Context) (read.Top, error) {
		return d.Reader.Top(ctx, p.Span, limit)
	})
	if err != nil {
		return TopAnswer{}, in.explain(err, p)
	}
	out := TopAnswer{
		AsOf: Time(found.AsOf), Window: p.Window, CountingSince: Since(found.CountingSince),
		Complete: found.Complete && !found.Range.Outruns(found.AsOf),
		Floor:    found.Range.AtMost(found.Floor, found.AsOf), Top: make([]topTotal, len(found.Counters)),
	}
	for i, c := range found.Counters {
		out.Top[i] = topTotal{Key: c.Counter, Total: c.Total, Lower: c.Lower,
			Upper: found.Range.AtMost(c.Upper, found.AsOf)}
	}
	return out, nil
}

// topGroups adds up every counter with the prefix, because the summaries of top lists have no groups: a group
// of many small counters would be missing. So it refuses more than MaxSum.
func (d *Service) topGroups(ctx context.Context, in *Input, p period, limit int) (TopAnswer, error) {
	depth := in.depth()
	var names listing
	found, err := Read(ctx, d.Redis, func(ctx context.Context) (found window.Answers, err error) {
		names, err = d.listCounters(ctx, in)
		if err != nil {
			return found, err
		}
		asked := names.upTo(d.MaxSum)
		if len(asked) == 0 {
			asked = []string{in.prefix} // for the range, and for what may be wrong with it
			if in.prefix == "" {        // any name that the caller may ask about
				asked = slices.Concat(access.From(ctx).Prefixes(), []string{othersKey})[:1]
			}
		}
		return d.Reader.Answer(ctx, questionsOf(asked, []period{p}))
	})
	if err != nil {
		return TopAnswer{}, in.explain(err, p)
	}
	if len(names.counters) > d.MaxSum {
		return TopAnswer{}, names.tooMany(in, d.MaxSum)
	}
	asOf, r := min(names.asOf, found.AsOf), found.Answers[0].Range
	out := TopAnswer{
		AsOf: Time(asOf), Window: p.Window, CountingSince: Since(names.countingSince),
		Complete: r.From >= names.completeSince && found.Answers[0].Complete && !r.Outruns(asOf),
	}
	group := func(counter string) string { return counter }
	if depth > 0 {
		group = func(counter string) string { return window.GroupOf(counter, depth) }
	}
	_, all, complete := addUp(names.counters, found.Answers, group)
	out.Complete = out.Complete && complete
	out.Top = make([]topTotal, 0, min(limit, len(all)))
	for _, g := range all {
		if len(out.Top) == limit || g.Total == 0 { // every group is known, so only these are missing
			out.Floor = max(out.Floor, g.Upper)
			continue
		}
		one := topTotal{Key: g.Group, Total: g.Total, Lower: g.Lower, Upper: r.AtMost(int64(g.Upper), asOf)}
		if depth > 0 {
			one.Counters = g.Counters
		}
		out.Top = append(out.Top, one)
	}
	out.Floor = r.AtMost(int64(out.Floor), asOf)
	return out, nil
}

// CSV returns a table with a row per counter, or per group with how many counters have hits in it. upper is
// empty if it is unknown.
func (a *TopAnswer) CSV(grouped bool) []byte {
	var out bytes.Buffer
	w := csv.NewWriter(&out)
	write := func(key, counters string, numbers ...string) {
		row := []string{key}
		if grouped {
			row = append(row, counters)
		}
		_ = w.Write(append(row, numbers...)) // a buffer takes everything
	}
	write("key", "counters", "total", "lower", "upper")
	for _, t := range a.Top {
		upper := ""
		if t.Upper < window.Unbounded {
			upper = strconv.FormatInt(int64(t.Upper), 10)
		}
		write(columnName(t.Key), strconv.Itoa(t.Counters), strconv.FormatInt(t.Total, 10),
			strconv.FormatInt(t.Lower, 10), upper)
	}
	w.Flush()
	return out.Bytes()
}

func TopExample() TopAnswer {
	return TopAnswer{
		AsOf: time.Date(2026, 11, 21, 10, 0, 0, 2e8, time.UTC), Window: "1h", Complete: true,
		CountingSince: SinceExample, Floor: 37,
		Top: []topTotal{{Key: "api-1", Total: 1234, Lower: 1229, Upper: 1241},
			{Key: "/cart", Total: 311, Lower: 309, Upper: 312}},
	}
}

const countersWindow = "24h"

var countersSpan = window.Last(24 * time.Hour)

// countersParams is what GET /v1/counters takes, and as JSON the NATS endpoint counters.
type countersParams struct {
	Prefix string     `query:"prefix" hint:"name" json:"prefix" doc:"What the names begin with. Default: all names." example:"shop."`
	Limit  api.Number `query:"limit" hint:"a whole number from 1 to 1000" json:"limit" doc:"The most names in a page: 1 to 1000. Default: 100." example:"100"`
	After  string     `query:"after" hint:"name" json:"after" doc:"The page begins after this name: next of the page before." example:"shop.checkout.eu"`
	Match  string     `query:"match" hint:"a part of the name of a counter" json:"match" doc:"What the names contain anywhere, upper or lower case (Unicode simple case folding). Default: all names." example:"Cart"`
	Totals choice     `query:"totals" json:"totals" doc:"1: the page also has the total of each counter in the last 24 hours." example:"1"`
	// After is the name of a counter here, so the messages have another name.
	AfterMessage []string `query:"after_message,explode" json:"after_message,omitempty" doc:"The answer contains this message, as with after in other questions: the name of a stream, a colon and a sequence. May repeat, at most 100 times." example:"[\"HITS:812\"]"`
	AgeParams
}

func (p *countersParams) Condition() (fresh.Condition, error) {
	return p.condition("after_message", p.AfterMessage)
}

type CountersAnswer struct {
	AsOf          time.Time `json:"as_of" doc:"Every counter with a hit stored before this moment is listed. 1970-01-01T00:00:00Z if some stream has not been counted yet." example:"2026-11-21T10:00:00.2Z"`
	Complete      bool      `json:"complete" doc:"False if hits of the longest window are known to be missing, or may be: counting began, or hits were discarded unread, after it began; or as_of is more than 5 seconds ago, because no worker has counted lately." example:"true"`
	CountingSince time.Time `json:"counting_since,omitzero" doc:"When counting of these streams began; absent if that is unknown." example:"2026-10-01T08:00:00Z"`
	Counters      []string  `json:"counters" doc:"The names, in the order of their bytes. A page can be shorter than limit, even empty, and have a next one." example:"[\"shop.cart\",\"shop.checkout.eu\"]"`
	Totals        []Total   `json:"totals,omitzero" doc:"If they were asked for: the total of each counter in the last 24 hours, as /v1/total gives it, in the same order."`
	Next          string    `json:"next,omitempty" doc:"The value of after for the next page; absent at the end." example:"shop.checkout.eu"`
}

// Counters checks parameters and answers. Its errors are for the client.
func (d *Service) Counters(ctx context.Context, part string, p *countersParams) (CountersAnswer, error) {
	limit, err := p.Limit.Parse("limit", defaultCounters, 1, maxCounters)
	if err != nil {
		return CountersAnswer{}, web.InputProblem(err, part)
	}
	for _, name := range []struct{ param, text string }{{"prefix", p.Prefix}, {"after", p.After}, {"match", p.Match}} {
		if name.text == "" {
			continue
		}
		if err := api.CheckKey(name.param, name.text); err != nil {
			return CountersAnswer{}, web.InputProblem(err, part)
		}
	}
	question := read.NamesQuestion{Prefix: p.Prefix, After: p.After, Limit: int(limit)}
	if p.Match != "" {
		question.Match = containing(p.Match)
	}
	totals, err := p.Totals.parse("totals")
	if err != nil {
		return CountersAnswer{}, web.InputProblem(err, part)
	}
	if totals {
		question.Totals = &countersSpan
	}
	found, err := Read(ctx, d.Redis, func(ctx context.Context) (read.Names, error) {
		return d.Reader.Names(ctx, question)
	})
	if bad := ClientError(err); bad != nil {
		return CountersAnswer{}, web.BadInput("totals", "%s: %v", countersWindow, bad).Problem(part)
	}
	if err != nil {
		return CountersAnswer{}, err
	}
	if found.Counters == nil {
		found.Counters = []string{} // not null
	}
	out := CountersAnswer{
		AsOf: Time(found.AsOf), Complete: found.Complete && !window.Range{To: found.Now}.Outruns(found.AsOf),
		CountingSince: Since(found.CountingSince), Counters: found.Counters, Next: found.Next,
	}
	if totals {
		out.Totals = make([]Total, len(found.Answers))
		for i, a := range found.Answers {
			out.Totals[i] = TotalOf(found.Counters[i], countersWindow, a, found.AsOf)
		}
	}
	return out, nil
}

// containing returns a function that reports whether a name contains a text, by Unicode's simple case
// folding: the Kelvin sign equals k, but ß is not ss.
func containing(text string) func(name string) bool {
	text = folded(text)
	return func(name string) bool { return strings.Contains(folded(name), text) }
}

// folded replaces each letter with the first of those that fold to the same.
func folded(text string) string {
	return strings.Map(func(r rune) rune {
		first := r
		for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
			first = min(first, next)
		}
		return first
	}, text)
}

// About returns what can be asked. The caller supplies what the settings turn on.
func (d *Service) About(ctx context.Context, on Features) (AboutAnswer, error) {
	out := AboutAnswer{Version: release.Version(), Namespace: d.Namespace, Features: on,
		Token: aboutToken(access.From(ctx))}
	found, err := Read(ctx, d.Redis, d.Reader.About)
	if err != nil {
		return AboutAnswer{}, err
	}
	out.CountingSince, out.Declared = Since(found.CountingSince), aboutDeclared(found)
	out.addTiers(found.Layout.Tiers)
	out.addUniqueTiers(found.Layout.UniqueTiers)
	return out, nil
}

// AboutAnswer lists what can be asked of a namespace.
type AboutAnswer struct {
	Version       string         `json:"version" doc:"The release of this service." example:"1.4.0"`
	Namespace     string         `json:"namespace" doc:"TALLYROLL_NAMESPACE: what this service answers about." example:"tallyroll"`
	CountingSince time.Time      `json:"counting_since,omitzero" doc:"When counting of these streams began; absent if that is unknown." example:"2026-10-01T08:00:00Z"`
	Tiers         []AboutTier    `json:"tiers" doc:"The tiers of the namespace, the finest first."`
	Windows       []string       `json:"windows" doc:"Windows to offer, the shortest first: the usual ones that the tiers answer with at least one whole cell, and the longest of each tier. Any other window up to the longest is answered, too." example:"[\"1m\",\"5m\",\"15m\",\"1h\",\"6h\",\"24h\",\"7d\",\"30d\",\"32d\"]"`
	Steps         []string       `json:"steps" doc:"Steps of /v1/series to offer, the shortest first: the usual ones that are whole cells of a tier and fit into its window, and the cell of each tier. Any other step is rounded up to whole cells." example:"[\"1s\",\"5s\",\"10s\",\"30s\",\"1m\",\"5m\",\"15m\",\"30m\",\"1h\",\"3h\",\"6h\",\"12h\",\"1d\",\"1w\"]"`
	UniqueTiers   []AboutTier    `json:"unique_tiers,omitempty" doc:"The tiers of uniques, the finest first: their cells are the shortest steps, and their windows the longest, of /v1/uniques and of series of uniques. Absent if the namespace has none."`
	Features      Features       `json:"features" doc:"What this service can do beyond totals."`
	Declared      *AboutDeclared `json:"declared,omitempty" doc:"What an operator declared about hits from before counting began (ingest --complete-from); absent if nothing."`
	Token         *AboutToken    `json:"token,omitempty" doc:"What the token of the call may do; absent if the service needs none."`
}

// AboutDeclared is an operator's declaration that older hits were imported.
type AboutDeclared struct {
	CompleteFrom time.Time `json:"complete_from" doc:"The moment from which no hit is missing, other than those that were lost later." example:"2026-09-01T00:00:00Z"`
	At           time.Time `json:"at" doc:"When it was declared." example:"2026-10-01T09:00:00Z"`
	By           string    `json:"by" doc:"Who declared it." example:"alice"`
}

func aboutDeclared(a read.About) *AboutDeclared {
	if a.Declared.From == 0 {
		return nil
	}
	return &AboutDeclared{Time(a.Declared.From), Time(a.Declared.At), a.Declared.By}
}

type AboutToken struct {
	Name     string    `json:"name" doc:"What the file of tokens calls it; of a token of QUERY_TOKENS, the beginning of its SHA-256." example:"shop"`
	May      []string  `json:"may" doc:"Its rights: read, take, count, erase and admin, or some of them." example:"[\"read\"]"`
	Prefixes []string  `json:"prefixes,omitempty" doc:"The counters that it is about begin with one of these; absent if it is about all." example:"[\"shop.\"]"`
	Until    time.Time `json:"until,omitzero" doc:"When it ends; absent if it does not." example:"2027-01-01T00:00:00Z"`
}

func aboutToken(t *access.Token) *AboutToken {
	if t == nil {
		return nil
	}
	out := &AboutToken{Name: t.Name(), Prefixes: t.Prefixes(), Until: t.Until()}
	for _, right := range t.Rights() {
		out.May = append(out.May, string(right))
	}
	return out
}

// AboutTier is a tier as TIERS has it.
type AboutTier struct {
	Cell   string `json:"cell" doc:"The length of its cells." example:"1s"`
	Window string `json:"window" doc:"The longest window that it answers." example:"1m"`
}

// Features are on or off by the settings of this process, or missing in its release.
type Features struct {
	NATS    bool `json:"nats" doc:"This service is set to ask NATS: /v1/streams, /v1/rejects and /v1/watch answer, and so do requests over NATS." example:"true"`
	Limits  bool `json:"limits" doc:"/v1/take counts: QUERY_TAKE is any, or it is named and QUERY_LIMITS_FILE names a limit." example:"true"`
	Uniques bool `json:"uniques" doc:"The namespace has tiers of uniques: /v1/uniques estimates how many unique values hits had." example:"true"`
	Watch   bool `json:"watch" doc:"This service is set to ask NATS, so /v1/watch answers with the states of rules." example:"true"`
}

func (a *AboutAnswer) addTiers(tiers window.Tiers) {
	for _, t := range tiers {
		a.Tiers = append(a.Tiers, AboutTier{human.FormatDuration(t.Cell), human.FormatDuration(t.Window)})
	}
	a.Windows, a.Steps = windowsOf(tiers), stepsOf(tiers)
}

func (a *AboutAnswer) addUniqueTiers(tiers window.Tiers) {
	a.Features.Uniques = len(tiers) > 0
	for _, t := range tiers {
		a.UniqueTiers = append(a.UniqueTiers, AboutTier{human.FormatDuration(t.Cell), human.FormatDuration(t.Window)})
	}
}

func AboutExample() AboutAnswer {
	tiers, err := window.ParseTiers(window.DefaultTiers)
	if err != nil {
		panic(err) // they are our own
	}
	out := AboutAnswer{
		Version: "1.4.0", Namespace: "tallyroll", CountingSince: SinceExample,
		Features: Features{NATS: true, Limits: true, Watch: true},
	}
	out.addTiers(tiers)
	out.addUniqueTiers(window.Tiers{{Cell: 5 * time.Minute, Window: time.Hour},
		{Cell: time.Hour, Window: 24 * time.Hour}, {Cell: 24 * time.Hour, Window: 32 * 24 * time.Hour}})
	return out
}

// usualWindows and usualSteps are common choices, each as it is most often written.
var (
	usualWindows = []string{"1m", "5m", "15m", "1h", "6h", "24h", "7d", "30d", "90d", "365d"}
	usualSteps   = []string{"1s", "5s", "10s", "30s", "1m", "5m", "15m", "30m", "1h", "3h", "6h", "12h", "1d", "1w"}
)

// windowsOf are the windows that tiers are good for: below a cell of its tier, one would be all uncertainty.
func windowsOf(tiers window.Tiers) []string {
	return durationsOf(usualWindows, func(length time.Duration) bool {
		for _, t := range tiers {
			if length <= t.Window {
				return length >= t.Cell
			}
		}
		return false
	}, tiers, func(t window.Tier) time.Duration { return t.Window })
}

func stepsOf(tiers window.Tiers) []string {
	return durationsOf(usualSteps, func(length time.Duration) bool {
		return slices.ContainsFunc(tiers, func(t window.Tier) bool { return length%t.Cell == 0 && length <= t.Window })
	}, tiers, func(t window.Tier) time.Duration { return t.Cell })
}

// durationsOf are the good ones of the usual durations, and one of each tier, by length, without repetitions.
func durationsOf(usual []string, good func(time.Duration) bool, tiers window.Tiers,
	own func(window.Tier) time.Duration) []string {
	texts := make(map[time.Duration]string)
	for _, t := range tiers {
		texts[own(t)] = human.FormatDuration(own(t))
	}
	for _, text := range usual {
		length, err := human.ParseDuration(text)
		if err != nil {
			panic(err) // they are our own
		}
		if _, has := texts[length]; has || good(length) {
			texts[length] = text
		}
	}
	out := make([]string, 0, len(texts))
	for _, length := range slices.Sorted(maps.Keys(texts)) {
		out = append(out, texts[length])
	}
	return out
}
