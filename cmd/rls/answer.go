package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	units "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"tallyroll/internal/limit"
	"tallyroll/internal/limit/limitfile"
	"tallyroll/internal/window/calendar"
)

// envoyRequest is a request of Envoy's as takes.
type envoyRequest struct {
	takes        []limit.Take // each limit and key once
	unusable     []error      // overrides of Envoy's settings, in whose place the limit's own numbers decide
	kinds        []kind       // per take
	byDescriptor [][]int      // indexes of the takes of each descriptor
}

// kind is what is special about a take.
type kind struct {
	look     bool // check whether one more hit would be allowed, and count nothing
	happened bool // the hits cannot be refused; with Once of the take, they settle what the request took before
}

// parseRequest finds the limits of a request. Its error is for Envoy.
func parseRequest(m *mapping, req *rls.RateLimitRequest) (*envoyRequest, error) {
	if req.GetDomain() == "" {
		return nil, badRequest("domain: missing: must be a domain of the limits in RLS_LIMITS_FILE (envoy: domain)")
	}
	if len(req.GetDescriptors()) == 0 {
		return nil, badRequest("descriptors: empty: must be one or more descriptors, each with entries")
	}
	out := &envoyRequest{byDescriptor: make([][]int, len(req.GetDescriptors()))}
	for i, d := range req.GetDescriptors() {
		if len(d.GetEntries()) == 0 {
			return nil, badRequest("descriptors[%d].entries: empty: must be one or more entries", i)
		}
		rules := m.find(req.GetDomain(), d.GetEntries())
		values := make([]string, len(d.GetEntries()))
		for j, e := range d.GetEntries() {
			values[j] = e.GetValue()
		}
		if len(rules) == 0 && d.GetLimit() != nil {
			rules, values = overrideRule(req.GetDomain(), d.GetEntries())
		}
		n, look := parseHits(req, d)
		for _, r := range rules {
			k := kind{look: look, happened: r.descriptor.Partly && n > 0 && !look}
			if err := r.override(d.GetLimit()); err != nil {
				out.unusable = append(out.unusable, fmt.Errorf("limit %s: descriptors[%d].limit: %w", r.limit.Name,
					i, err))
			}
			take, err := r.newTake(values, n)
			if err != nil {
				return nil, status.Errorf(codes.Internal, "the key of the limit %s: %v", r.limit.Name, err)
			}
			if r.descriptor.Reserve > 0 && take.ID != "" && n > 0 {
				// Once, because a client may choose the id, and repeat that of another request.
				take.Once, k.look, k.happened = true, false, !look
				if look {
					take.N = r.descriptor.Reserve
				}
			}
			index, err := out.add(take, k)
			if err != nil {
				return nil, badRequest("descriptors[%d]: %v", i, err)
			}
			out.byDescriptor[i] = append(out.byDescriptor[i], index)
		}
	}
	return out, nil
}

func badRequest(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// parseHits returns a descriptor's hits: its own number, or the request's, or 1. Its own number 0 asks
// whether one more would be allowed.
func parseHits(req *rls.RateLimitRequest, d *ratelimit.RateLimitDescriptor) (n int64, look bool) {
	n = max(1, int64(req.GetHitsAddend()))
	if own := d.GetHitsAddend(); own != nil {
		n = int64(min(own.GetValue(), limit.MaxHits+1)) // more than any limit allows
	}
	switch {
	case n == 0:
		return 1, true
	case d.GetIsNegativeHits():
		return -n, false
	}
	return n, false
}

// add finds or adds a take, and returns its index. Hits of the same limit and key are added up, for one
// decision. If only some of them look, those that count decide. Hits that have happened are apart.
func (a *envoyRequest) add(take limit.Take, k kind) (int, error) {
	for i := range a.takes {
		t := &a.takes[i]
		if t.Limit.Name != take.Limit.Name || t.Limit.Window != take.Limit.Window || t.Key != take.Key ||
			a.kinds[i].happened != k.happened || k.happened && t.Once != take.Once {
			continue
		}
		if !k.look && !a.kinds[i].look && t.Once != take.Once {
			return 0, fmt.Errorf("another descriptor has the limit %s and the same key, and one of them reserves: let "+
				"both do so, or none", t.Limit.Name)
		}
		if t.Limit.Unlimited || !take.Limit.Unlimited && t.Limit.Max > take.Limit.Max {
			t.Limit = take.Limit
		}
		t.ID = cmp.Or(t.ID, take.ID)
		switch known := &a.kinds[i]; {
		case k.look:
		case known.look:
			t.N, t.Once, a.kinds[i] = take.N, take.Once, kind{}
		default:
			t.N += take.N
		}
		return i, nil
	}
	a.takes, a.kinds = append(a.takes, take), append(a.kinds, k)
	return len(a.takes) - 1, nil
}

// reserves reports whether a take reserves hits until the end of the request.
func (a *envoyRequest) reserves(i int) bool { return a.takes[i].Once && !a.kinds[i].happened }

// dropID makes takes without an id of those whose id was used before. Nothing can be settled then, so one
// that would be only looks.
func (a *envoyRequest) dropID(id string) {
	for i := range a.takes {
		switch t := &a.takes[i]; {
		case t.ID != id || a.kinds[i].happened:
		case t.Once:
			t.N, t.ID, t.Once, a.kinds[i].look = 1, "", false, true
		default:
			t.ID = ""
		}
	}
}

var lengths = map[units.RateLimitUnit]time.Duration{
	units.RateLimitUnit_SECOND: time.Second, units.RateLimitUnit_MINUTE: time.Minute,
	units.RateLimitUnit_HOUR: time.Hour, units.RateLimitUnit_DAY: 24 * time.Hour,
	units.RateLimitUnit_MONTH: 30 * 24 * time.Hour, units.RateLimitUnit_YEAR: 365 * 24 * time.Hour,
}

// override applies the numbers that Envoy's settings have for a request, if any. After an error the limit
// keeps its own, because Envoy lets every request through that gets an error.
func (r *rule) override(o *ratelimit.RateLimitDescriptor_RateLimitOverride) error {
	if o == nil {
		return nil
	}
	length, known := lengths[o.GetUnit()]
	if !known {
		return fmt.Errorf("unit: %v: must be SECOND, MINUTE, HOUR, DAY, MONTH (30 days) or YEAR (365 days)",
			o.GetUnit())
	}
	if multiplier := o.GetUnitMultiplier(); multiplier != nil {
		if multiplier.GetValue() == 0 || time.Duration(multiplier.GetValue()) > limit.MaxWindow/length {
			return fmt.Errorf("unit_multiplier: %d of the unit %v: must be 1 or more, up to %d days in all",
				multiplier.GetValue(), o.GetUnit(), limit.MaxWindow/(24*time.Hour))
		}
		length *= time.Duration(multiplier.GetValue())
	}
	l, err := r.withNumbers(length, int64(o.GetRequestsPerUnit()))
	if err == nil {
		l.Mode = limit.Enforce // as of Envoy's own service
		r.limit = l
	}
	return err
}

// overrideRule returns the rule of an override for a descriptor that the file lacks, and the values that make
// its key. No limit of a file can have its name. It refuses if the numbers of the override cannot be used.
func overrideRule(domain string, entries []*ratelimit.RateLimitDescriptor_Entry) ([]rule, []string) {
	values := []string{domain}
	for _, e := range entries {
		values = append(values, e.GetKey(), e.GetValue())
	}
	l := &limitfile.Limit{Limit: limit.Limit{Name: "envoy/override", Window: time.Second, Policy: limit.Fixed}}
	return []rule{{&l.Limit, l, &limitfile.Descriptor{Entries: make([]limitfile.Entry, len(values))}}}, values
}

// withNumbers returns the limit with other numbers; one by the calendar keeps its window.
func (r *rule) withNumbers(length time.Duration, most int64) (*limit.Limit, error) {
	if p := r.limit.Period; p != nil {
		unit := calendarUnits[p.String()]
		if !slices.Contains(windowUnits, windowUnit{unit, length}) {
			return nil, fmt.Errorf("unit: the limit %s is by %s, so it must be %v", r.limit.Name, p, unit)
		}
		length = r.limit.Window
	}
	return r.limit.WithNumbers(length, most)
}

// ShouldRateLimit decides about the limits of a request's descriptors, and counts its hits under all of them
// or none. Its errors have a gRPC code and a sentence for the operator of Envoy.
func (s *service) ShouldRateLimit(ctx context.Context, req *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	a, err := parseRequest(s.mapping.Load(), req)
	if err != nil {
		return nil, err
	}
	for _, unusable := range a.unusable {
		s.failures.Warn().Ctx(ctx).Err(unusable).Msg("an override of Envoy's settings cannot be used: the limit " +
			"keeps its own numbers")
	}
	for _, takes := range a.byDescriptor {
		if len(takes) == 0 {
			s.unmatched.Inc()
		}
	}
	v := &verdict{allowed: true, decisions: make([]*limit.Decision, len(a.takes))}
	for i := range a.takes {
		if a.kinds[i].happened {
			v.decisions[i] = s.countHappened(ctx, a.takes[i])
			v.allowed = v.allowed && v.decisions[i].Allowed
		}
	}
	err = s.decide(ctx, a, v)
	for reused, ok := errors.AsType[*limit.IDError](err); ok; reused, ok = errors.AsType[*limit.IDError](err) {
		for i := range a.takes {
			if a.reserves(i) && a.takes[i].ID == reused.Take.ID {
				s.endReservation(ctx, a.takes[i])
			}
		}
		a.dropID(reused.Take.ID)
		err = s.decide(ctx, a, v)
	}
	if err == nil {
		for i, d := range v.decisions {
			if a.reserves(i) && (!v.allowed || d != nil && !d.WouldAllow) {
				s.endReservation(ctx, a.takes[i])
			}
		}
		s.count(a, v)
		return a.response(v, s.settings.Headers), nil
	}
	var asked []limit.Take
	for i, t := range a.takes {
		if !a.kinds[i].happened {
			asked = append(asked, t)
		}
	}
	s.countErrors(asked, err)
	if isEnvoyGone(err) {
		s.failures.Warn().Ctx(ctx).Err(err).Msg("Envoy did not wait, so its own failure mode decides: let it wait " +
			"longer than RLS_TAKE_TIMEOUT (timeout of its filter)")
		return nil, status.FromContextError(err).Err()
	}
	s.failures.Warn().Ctx(ctx).Err(cmp.Or(errors.Unwrap(err), err)).Msg("take not decided")
	if slices.ContainsFunc(asked, isClosed) {
		return a.response(&verdict{closed: true}, s.settings.Headers), nil
	}
	var forbidden *limit.ForbiddenError
	if errors.As(err, &forbidden) {
		return nil, status.Error(codes.Unavailable, forbidden.Error())
	}
	var foreign *limit.ForeignError
	if errors.As(err, &foreign) {
		return nil, status.Error(codes.Internal, foreign.Error())
	}
	// Redis's error may describe the internal network.
	return nil, status.Error(codes.Unavailable, "Redis cannot decide now")
}

// isEnvoyGone reports whether an error means that Envoy did not wait: errors of Redis are wrapped.
func isEnvoyGone(err error) bool { return err == context.DeadlineExceeded || err == context.Canceled }

func isClosed(t limit.Take) bool { return t.Limit.Fail == limit.FailClosed }

// verdict is the decision about a request.
type verdict struct {
	allowed bool
	closed  bool // Redis does not decide, and closed limits refuse
	// decisions are in the order of the takes; nil: not decided, because others had already refused.
	decisions []*limit.Decision
}

// decide decides and counts what can be refused. Its errors are those of limit.Take.
func (s *service) decide(ctx context.Context, a *envoyRequest, v *verdict) error {
	var looks, counts []int
	for i, k := range a.kinds {
		switch {
		case k.happened:
		case k.look:
			looks = append(looks, i)
		default:
			counts = append(counts, i)
		}
	}
	impossible := a.impossible()
	if slices.Contains(impossible, true) {
		looks, counts = append(looks, counts...), nil
	}
	allowed, err := s.decideSome(ctx, s.limiter.Look, a, v, looks, impossible)
	if err != nil {
		return err
	}
	ask := s.limiter.Take
	if !allowed {
		ask = s.limiter.Look // the request is refused: it counts nothing
	}
	counted, err := s.decideSome(ctx, ask, a, v, counts, impossible)
	if err == nil {
		v.allowed = v.allowed && allowed && counted
	}
	return err
}

// refusedTTL is how long the id of a refused request is remembered: its end follows at once. Each takes 200
// bytes of Redis, and refused requests can be many.
const refusedTTL = 10 * time.Second

// endReservation is for a request that asked with 0 hits and gets none reserved. Either it was refused: then
// its id is remembered, with 0 hits, so that the 0 at its end does not begin another one.
// Or its id is open, and this is its end, which settles it with 0.
func (s *service) endReservation(ctx context.Context, t limit.Take) {
	t.N, t.TTL, t.Once = 0, refusedTTL, false
	_, err := s.limiter.Take(ctx, []limit.Take{t})
	if _, open := errors.AsType[*limit.IDError](err); open {
		t.TTL, t.Once = 0, true
		_, _, err = s.settle(ctx, t)
	}
	if err != nil {
		s.failures.Warn().Ctx(ctx).Err(err).Str("limit", t.Limit.Name).Msg("the end of a request without hits was " +
			"not counted: what it reserved stays counted")
	}
}

// settle settles a take with its hits, and counts the result: settled, uncounted, unknown, canceled or
// refused. If the id of a request without hits is unknown, nothing is lost: that is neither counted nor an
// error.
func (s *service) settle(ctx context.Context, t limit.Take) (d limit.Decision, result string, err error) {
	answer, err := s.limiter.Settle(ctx, []limit.Take{t})
	_, unknown := errors.AsType[*limit.IDError](err)
	switch {
	case unknown && t.N == 0:
		return d, "unknown", nil
	case unknown:
		result = "unknown"
	case isEnvoyGone(err):
		result = "canceled"
	case err != nil:
		result = "refused"
	case answer.Decisions[0].Settled == nil:
		d, result = answer.Decisions[0], "uncounted"
	default:
		d, result = answer.Decisions[0], "settled"
	}
	s.settlements.WithLabelValues(t.Limit.Name, result).Inc()
	return d, result, err
}

// countHappened counts hits that cannot be refused, whatever other limits of the request decide: they settle
// what the request took before, or count up to the limit. If Redis does not answer, what was taken stays as
// it is, and what cannot be counted is only reported: an error at the end of a request is of no use.
func (s *service) countHappened(ctx context.Context, take limit.Take) *limit.Decision {
	t, shadow, never := take, take.Limit.Mode == limit.Shadow, take.Limit.Max == 0 && !take.Limit.Unlimited
	out := limit.Decision{Take: take, Allowed: shadow || !never, Shadow: shadow, WouldAllow: !never,
		Source: limit.SourceLocal}
	fail := func(err error) *limit.Decision {
		s.failures.Warn().Ctx(ctx).Err(err).Str("limit", t.Limit.Name).Msg("hits that have happened were not counted")
		return &out
	}
	if t.Once {
		t.N = min(t.N, limit.MaxHits)
		settled, result, err := s.settle(ctx, t)
		switch result {
		case "refused", "canceled":
			return fail(err)
		case "settled", "uncounted":
			out = settled
			out.WouldAllow = out.Over == 0 && !never
			out.Allowed, out.RetryAfter = shadow || out.WouldAllow, t.Limit.Window
			return &out
		}
		t.ID, t.Once = "", false
	}
	most, rest, wait := t.Limit.MaxTake(), take.N, time.Duration(0)
	switch {
	case t.Limit.Unlimited:
		most = limit.MaxHits
	case never:
		wait = t.Limit.Window
	}
	parts := *t.Limit
	none := limit.CounterNames{}
	parts.Count.Refused, parts.Count.WouldRefuse = none, none // the rest is refused, and no part
	t.Limit, t.Happened = &parts, true
	for refusals := 0; rest > 0 && most > 0 && refusals < 3; { // others may count meanwhile
		t.N = min(rest, most)
		answer, err := s.limiter.Take(ctx, []limit.Take{t})
		if _, reused := errors.AsType[*limit.IDError](err); reused {
			t.ID = ""
			continue
		}
		if err != nil {
			s.countErrors([]limit.Take{take}, err)
			return fail(err)
		}
		out = answer.Decisions[0]
		if out.WouldAllow {
			rest -= t.N
		} else {
			most, wait, refusals = out.Remaining, max(wait, out.RetryAfter), refusals+1
		}
		t.ID = "" // a part has none
	}
	out.Take, out.WouldAllow, out.RetryAfter = take, wait == 0, wait
	out.Allowed = shadow || out.WouldAllow
	counters := take.Limit.Count.Refused
	if shadow {
		counters = take.Limit.Count.WouldRefuse
	}
	if rest > 0 && counters != (limit.CounterNames{}) {
		s.counted(counters, take.Limit.Name, take.Key, rest)
	}
	s.countDecision(&out)
	return &out
}

// impossible reports for each take whether it asks for more hits than can be allowed at once.
func (a *envoyRequest) impossible() []bool {
	out := make([]bool, len(a.takes))
	together := int64(0)
	for i, t := range a.takes {
		if a.kinds[i].happened {
			continue
		}
		if t.Limit.Unlimited || t.Limit.Max == 0 { // which is decided without hits, and counted as refused
			continue
		}
		out[i] = t.N > t.Limit.Max
		if most := t.Limit.Policy.Traits().MaxTake; most > 0 && t.N > 0 {
			together += t.N
			out[i] = out[i] || together > most
		}
	}
	return out
}

// decideSome asks the limiter about some of the takes, and keeps the decisions. Impossible takes look for one
// hit, and are over their limit in any case.
func (s *service) decideSome(ctx context.Context, ask func(context.Context, []limit.Take) (limit.Answer, error),
	a *envoyRequest, v *verdict, which []int, impossible []bool) (allowed bool, err error) {
	if len(which) == 0 {
		return true, nil
	}
	takes := make([]limit.Take, len(which))
	for i, index := range which {
		takes[i] = a.takes[index]
		if impossible[index] {
			takes[i].N = 1
		}
	}
	answer, err := ask(ctx, takes)
	if err != nil {
		return false, err
	}
	allowed = answer.Allowed
	for i := range answer.Decisions {
		d := &answer.Decisions[i]
		index := which[slices.IndexFunc(takes, func(t limit.Take) bool { return t == d.Take })]
		if impossible[index] && d.Allowed {
			d.Allowed, d.WouldAllow, d.Certain, d.RetryAfter = d.Shadow, false, true, d.Take.Limit.Window
			allowed = allowed && d.Shadow
		}
		v.decisions[index] = d
	}
	return allowed, nil
}

// response returns a status per descriptor, in order. With several limits, it is that of the decisive one.
func (a *envoyRequest) response(v *verdict, headers bool) *rls.RateLimitResponse {
	out := &rls.RateLimitResponse{OverallCode: overallCode(v.allowed),
		Statuses: make([]*rls.RateLimitResponse_DescriptorStatus, len(a.byDescriptor))}
	for i, indexes := range a.byDescriptor {
		out.Statuses[i] = a.statusOf(v, indexes)
	}
	if headers {
		out.ResponseHeadersToAdd = v.headers()
	}
	out.DynamicMetadata = a.metadata(v)
	return out
}

// metadata tells later filters of Envoy what else it cannot see: of limits in shadow mode whether they would
// refuse, which is a reason to choose another route. It is nil if no such limit was decided about.
func (a *envoyRequest) metadata(v *verdict) *structpb.Struct {
	var limits []*structpb.Value
	for i, indexes := range a.byDescriptor {
		for _, index := range indexes {
			if v.closed || v.decisions[index] == nil || !v.decisions[index].Shadow {
				continue
			}
			d := v.decisions[index]
			limits = append(limits, structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
				"limit": structpb.NewStringValue(d.Take.Limit.Name), "descriptor": structpb.NewNumberValue(float64(i)),
				"certain": structpb.NewBoolValue(d.Certain), "would_refuse": structpb.NewBoolValue(!d.WouldAllow),
				"max":       structpb.NewNumberValue(float64(d.Take.Limit.Max)),
				"remaining": structpb.NewNumberValue(float64(d.Remaining)),
			}}))
		}
	}
	if limits == nil {
		return nil
	}
	list := structpb.NewListValue(&structpb.ListValue{Values: limits})
	return &structpb.Struct{Fields: map[string]*structpb.Value{"limits": list}}
}

func overallCode(allowed bool) rls.RateLimitResponse_Code {
	if allowed {
		return rls.RateLimitResponse_OK
	}
	return rls.RateLimitResponse_OVER_LIMIT
}

func (a *envoyRequest) statusOf(v *verdict, indexes []int) *rls.RateLimitResponse_DescriptorStatus {
	if len(indexes) == 0 {
		return &rls.RateLimitResponse_DescriptorStatus{Code: rls.RateLimitResponse_OK}
	}
	if v.closed {
		code := rls.RateLimitResponse_UNKNOWN
		if slices.ContainsFunc(indexes, func(i int) bool { return isClosed(a.takes[i]) }) {
			code = rls.RateLimitResponse_OVER_LIMIT
		}
		return &rls.RateLimitResponse_DescriptorStatus{Code: code,
			CurrentLimit: currentLimit(a.takes[indexes[0]].Limit)}
	}
	var own limit.Answer
	for _, i := range indexes {
		if d := v.decisions[i]; d != nil {
			own.Decisions = append(own.Decisions, *d)
		}
	}
	if len(own.Decisions) == 0 {
		return &rls.RateLimitResponse_DescriptorStatus{Code: rls.RateLimitResponse_UNKNOWN,
			CurrentLimit: currentLimit(a.takes[indexes[0]].Limit)}
	}
	d := own.Decisive()
	out := &rls.RateLimitResponse_DescriptorStatus{
		Code: overallCode(d.Allowed), CurrentLimit: currentLimit(d.Take.Limit), LimitRemaining: saturate(d.Remaining),
		DurationUntilReset: durationpb.New(d.Take.Limit.Window),
	}
	switch {
	case !d.Allowed:
		out.DurationUntilReset = durationpb.New(d.RetryAfter)
	case d.Turn > 0:
		out.DurationUntilReset = durationpb.New(d.Turn)
	}
	return out
}

type windowUnit struct {
	unit   rls.RateLimitResponse_RateLimit_Unit
	length time.Duration
}

var windowUnits = []windowUnit{
	{rls.RateLimitResponse_RateLimit_YEAR, 365 * 24 * time.Hour},
	{rls.RateLimitResponse_RateLimit_MONTH, 30 * 24 * time.Hour},
	{rls.RateLimitResponse_RateLimit_WEEK, 7 * 24 * time.Hour},
	{rls.RateLimitResponse_RateLimit_DAY, 24 * time.Hour},
	{rls.RateLimitResponse_RateLimit_HOUR, time.Hour},
	{rls.RateLimitResponse_RateLimit_MINUTE, time.Minute},
	{rls.RateLimitResponse_RateLimit_SECOND, time.Second},
}

var calendarUnits = map[string]rls.RateLimitResponse_RateLimit_Unit{
	calendar.Today: rls.RateLimitResponse_RateLimit_DAY, calendar.Week: rls.RateLimitResponse_RateLimit_WEEK,
	calendar.Month: rls.RateLimitResponse_RateLimit_MONTH, calendar.Year: rls.RateLimitResponse_RateLimit_YEAR,
}

// saturate returns the number of hits, or the most that Envoy's field can hold.
func saturate(hits int64) uint32 { return uint32(min(hits, math.MaxUint32)) }

// currentLimit is nil of an unlimited one, as from Envoy's own service.
func currentLimit(l *limit.Limit) *rls.RateLimitResponse_RateLimit {
	if l.Unlimited {
		return nil
	}
	out := &rls.RateLimitResponse_RateLimit{Name: l.Name, RequestsPerUnit: saturate(l.Max)}
	if l.Period != nil {
		out.Unit = calendarUnits[l.Period.String()]
		return out
	}
	for _, u := range windowUnits {
		if l.Window%u.length == 0 {
			out.Unit = u.unit
			if n := l.Window / u.length; n > 1 {
				out.UnitMultiplier = wrapperspb.UInt32(uint32(n))
			}
			break
		}
	}
	return out
}

// headers returns the header fields that query sends with the same decision.
func (v *verdict) headers() (out []*core.HeaderValue) {
	add := func(key, value string) { out = append(out, &core.HeaderValue{Key: key, Value: value}) }
	if v.closed {
		add("Retry-After", "1")
		return out
	}
	answer := limit.Answer{Allowed: v.allowed}
	for _, d := range v.decisions {
		if d != nil {
			answer.Decisions = append(answer.Decisions, *d)
		}
	}
	if policy, rate := answer.RateFields(); policy != "" { // not all limits are in shadow mode
		add("RateLimit-Policy", policy)
		add("RateLimit", rate)
	}
	if !v.allowed {
		add("Retry-After", limit.WholeSeconds(answer.Decisive().RetryAfter))
	}
	return out
}
