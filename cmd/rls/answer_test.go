package main

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	units "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"tallyroll/internal/limit"
	"tallyroll/tests/stack"
)

const limitsOfAll = `
limits:
- {name: login, window: 1m, max: 2, policy: log, key: "{ip}", envoy: {domain: edge, descriptor: [{key: path, value: /login}, {key: remote_address, as: ip}]}}
- {name: pages, window: 1h, max: 5, envoy: {domain: edge, descriptor: [{key: path}, {key: remote_address}]}}
- {name: second, window: 90s, max: 3, policy: log, envoy: {domain: edge, descriptor: [{key: user}]}}
- {name: day, window: 1d, max: 10, policy: log, envoy: {domain: edge, descriptor: [{key: user}]}}
- {name: bytes, window: 1h, max: 1000, envoy: {domain: edge, partly: true, descriptor: [{key: bytes}]}}
- {name: exact, window: 1h, max: 5000, policy: log, envoy: {domain: edge, descriptor: [{key: exact}]}}
- {name: tokens, window: 1h, max: 100, envoy: [
    {domain: edge, reserve: {hits: 40}, descriptor: [{key: tokens}, {key: request_id, as: id}]},
    {domain: edge, descriptor: [{key: tokens}]}]}
- {name: once, window: 1h, max: 100, envoy: {domain: edge, descriptor: [{key: once}, {key: request_id, as: id}]}}
- {name: both-narrow, window: 1h, max: 100, envoy: {domain: edge, partly: true, descriptor: [{key: both}]}}
- {name: both-wide, window: 1h, max: 10000, envoy: [{domain: edge, partly: true, descriptor: [{key: both}]}, {domain: edge, partly: true, descriptor: [{key: both-wide}]}]}
- {name: both-log, window: 1h, max: 3000, policy: log, envoy: {domain: edge, partly: true, descriptor: [{key: both-log}]}}
- {name: held, window: 1h, max: 40, policy: log, share: {hits: 20, for: 1s}, envoy: {domain: edge, descriptor: [{key: held}]}}
- {name: http, window: 1h, max: 1}
- {name: month, window: month, max: 50, envoy: {domain: edge, descriptor: [{key: month}]}}
`

// The codes, the order of the statuses, and what each says.
func TestCodesAndStatusesAreEnvoys(t *testing.T) {
	t.Parallel()
	r := start(t, stack.Redis(t), limitsOfAll)
	login, unknown, user := descriptor("path=/login", "remote_address=192.0.2.1"), descriptor("nobody=1"), descriptor("user=u1")

	out := r.ask(unknown, login, user)
	require.Equal(t, "OK: OK OK OK", codesOf(out), "the first")
	if s := out.Statuses[0]; s.CurrentLimit != nil || s.DurationUntilReset != nil {
		t.Errorf("what has no limit has the status %v", s)
	}
	s := out.Statuses[1]
	if l := s.CurrentLimit; l.GetName() != "login" || l.GetRequestsPerUnit() != 2 || l.GetUnit() != rls.RateLimitResponse_RateLimit_MINUTE || l.GetUnitMultiplier() != nil || s.LimitRemaining != 1 || s.DurationUntilReset.AsDuration() != time.Minute {
		t.Errorf("the status is %v", s)
	}
	s = out.Statuses[2] // of two limits, the one with the least left
	if l := s.CurrentLimit; l.GetName() != "second" || l.GetUnit() != rls.RateLimitResponse_RateLimit_SECOND || l.GetUnitMultiplier().GetValue() != 90 || s.LimitRemaining != 2 {
		t.Errorf("the status is %v", s)
	}
	if h := headersOf(out); len(h) != 2 || h["RateLimit-Policy"] != `"login";q=2;w=60, "day";q=10;w=86400, "second";q=3;w=90` || h["RateLimit"] != `"login";r=1;t=60, "day";r=9;t=86400, "second";r=2;t=90` {
		t.Errorf("the headers are %v", h)
	}

	r.ask(login)
	out = r.ask(user, login)
	require.Equal(t, "OVER_LIMIT: OK OVER_LIMIT", codesOf(out), "over one limit")
	require.EqualValues(t, 2, out.Statuses[0].LimitRemaining, "a refused request was counted")
	wait := out.Statuses[1].DurationUntilReset.AsDuration()
	if wait <= 0 || wait > time.Minute {
		t.Errorf("it is to wait %v", wait)
	}
	retry, err := strconv.Atoi(headersOf(out)["Retry-After"])
	if err != nil || time.Duration(retry)*time.Second < wait || time.Duration(retry-1)*time.Second > wait {
		t.Errorf("Retry-After is %v, and the wait %v", headersOf(out), wait)
	}
	// Now memory has both decisions, and Redis is not asked.
	require.Equal(t, "OVER_LIMIT: OK OVER_LIMIT", codesOf(r.ask(user, login)), "refused from memory")
	out, err = r.send(&rls.RateLimitRequest{Domain: "other", Descriptors: []*ratelimit.RateLimitDescriptor{login}})
	if err != nil || codesOf(out) != "OK: OK" || len(out.ResponseHeadersToAdd) != 0 {
		t.Errorf("another domain: %v %v", out, err)
	}

	status, metrics, err := stack.Do(http.MethodGet, r.URL()+"/metrics", nil)
	if err != nil || status != http.StatusOK {
		t.Fatal(status, err)
	}
	for _, want := range []string{
		`tallyroll_limit_decisions_total{limit="login",result="refused",source="memory"} 1`,
		`tallyroll_limit_decisions_total{limit="login",result="allowed",source="redis"} 2`,
		`tallyroll_rls_unmatched_descriptors_total 2`,
		`tallyroll_rls_request_seconds_count{code="0",route="ShouldRateLimit"} 5`,
		`tallyroll_last_reload_successful{what="limits"} 1`,
	} {
		if !strings.Contains(string(metrics), want) {
			t.Errorf("there is no %s", want)
		}
	}
}

// Filters after Envoy's see whether limits in shadow mode would refuse. About other limits the answer says
// everything.
func TestMetadataSaysWhatWouldBeRefused(t *testing.T) {
	t.Parallel()
	r := start(t, stack.Redis(t), `limits:
- {name: quota, window: 1h, max: 1, mode: shadow, envoy: {domain: edge, descriptor: [{key: model}]}}
- {name: user, window: 1h, max: 10, envoy: {domain: edge, descriptor: [{key: user}]}}
- {name: staff, window: 1h, unlimited: true, envoy: {domain: edge, descriptor: [{key: staff}]}}
`)
	model, user, staff, nobody := descriptor("model=a"), descriptor("user=u"), descriptor("staff=s"), descriptor("nobody=1")
	require.Nil(t, r.ask(nobody, user, staff).DynamicMetadata)
	for i := range 2 {
		text, err := r.ask(nobody, model, user, staff).DynamicMetadata.MarshalJSON()
		require.NoError(t, err)
		require.JSONEq(t, fmt.Sprintf(`{"limits": [
			{"descriptor": 1, "limit": "quota", "max": 1, "remaining": 0, "certain": true, "would_refuse": %t}
		]}`, i == 1), string(text))
	}
}

// BenchmarkAnswer measures what is left of a request after the decision.
func BenchmarkAnswer(b *testing.B) {
	t := limit.Take{Limit: &limit.Limit{Name: "per-address", Window: time.Minute, Max: 1000}, Key: "192.0.2.1", N: 1}
	a := &envoyRequest{takes: []limit.Take{t}, kinds: make([]kind, 1), byDescriptor: [][]int{{0}}}
	v := &verdict{allowed: true, decisions: []*limit.Decision{{Take: t, Allowed: true, WouldAllow: true, Certain: true, Remaining: 999}}}
	b.ReportAllocs()
	for b.Loop() {
		_, err := proto.Marshal(a.response(v, true))
		require.NoError(b, err)
	}
}

// Each of these has keys of its own, so they share a program.
func TestRequestsAreAnswered(t *testing.T) {
	t.Parallel()
	r := start(t, stack.Redis(t), limitsOfAll, "RLS_HEADERS=false")
	for _, c := range []struct {
		name string
		test func(*testing.T, *rig)
	}{
		{"bad requests", testBadRequests}, // first: the log has few lines about them per minute, and one is waited for
		{"the most specific descriptor decides", testMostSpecificDecides},
		{"hits", testHits},
		{"settlements", testSettlements},
		{"hits that have happened", testHappened},
		{"override", testOverride},
		{"no value escapes", testNoValueEscapes},
	} {
		t.Run(c.name, func(t *testing.T) {
			own := *r
			own.t = t
			c.test(t, &own)
		})
	}
}

// What comes first in the file does not matter: the most specific descriptor decides, and no other counts.
func testMostSpecificDecides(t *testing.T, r *rig) {
	for _, c := range []struct {
		path string
		want string
	}{{"/login", "login"}, {"/other", "pages"}} {
		out := r.ask(descriptor("path="+c.path, "remote_address=192.0.2.1"))
		if got := out.Statuses[0].CurrentLimit.GetName(); got != c.want || len(out.ResponseHeadersToAdd) != 0 {
			t.Errorf("%s: %v, want %s", c.path, out, c.want)
		}
	}
	for _, d := range []*ratelimit.RateLimitDescriptor{descriptor("remote_address=192.0.2.1", "path=/login"), descriptor("path=/login"), descriptor("path=/login", "remote_address=192.0.2.1", "a=b"), descriptor("path")} {
		require.Nil(t, r.ask(d).Statuses[0].CurrentLimit)
	}
	// Clients of one IPv6 network are one, as over HTTP.
	r.ask(descriptor("path=/login", "remote_address=2001:db8::1"))
	if out := r.ask(descriptor("path=/login", "remote_address=2001:db8::2")); out.Statuses[0].LimitRemaining != 0 {
		t.Errorf("two addresses of a /64: %v", out)
	}
	if out := r.ask(descriptor("path=/login", "remote_address=10.0.0.0/8")); out.Statuses[0].LimitRemaining != 1 {
		t.Errorf("a network for an address: %v", out)
	}
}

// All numbers of hits that Envoy can send.
func testHits(t *testing.T, r *rig) {
	user := func(name string) *ratelimit.RateLimitDescriptor { return descriptor("user=" + name) }
	left := func(out *rls.RateLimitResponse, want uint32, code string) {
		t.Helper()
		if got := codesOf(out); got != code || out.Statuses[0].LimitRemaining != want {
			t.Errorf("%v, want %d left and %s", out, want, code)
		}
	}
	request := func(n uint32, d ...*ratelimit.RateLimitDescriptor) *rls.RateLimitResponse {
		t.Helper()
		out, err := r.send(&rls.RateLimitRequest{Domain: "edge", Descriptors: d, HitsAddend: n})
		require.NoError(t, err)
		return out
	}
	left(request(2, user("a")), 1, "OK: OK")
	left(request(2, hits(user("a"), 1)), 0, "OK: OK")
	left(r.ask(hits(user("a"), 0)), 0, "OVER_LIMIT: OVER_LIMIT") // would one more be allowed? No.
	left(r.ask(hits(user("a"), -2)), 2, "OK: OK")
	left(r.ask(hits(user("a"), 0)), 2, "OK: OK")
	left(r.ask(hits(user("a"), -100)), 3, "OK: OK") // never below zero

	// The same limit and key twice: the hits are added up, and one decision is about all.
	left(r.ask(user("b"), user("b")), 1, "OK: OK OK")
	left(r.ask(user("b"), user("b")), 1, "OVER_LIMIT: OVER_LIMIT OVER_LIMIT")
	left(r.ask(user("b"), hits(user("b"), 0)), 0, "OK: OK OK")
	// If a check that counts nothing refuses, nothing of the request is counted.
	left(r.ask(user("c"), hits(user("b"), 0)), 3, "OVER_LIMIT: OK OVER_LIMIT")
	left(r.ask(hits(user("c"), 0)), 3, "OK: OK")

	// A request for more hits than a limit can ever allow is over the limit, and no error: Envoy would let it
	// through.
	left(r.ask(hits(user("d"), 4)), 3, "OVER_LIMIT: OVER_LIMIT")
	left(r.ask(hits(user("d"), 11)), 10, "OVER_LIMIT: OVER_LIMIT") // that is of the limit with the longer window
	left(r.ask(hits(user("d"), 1<<40)), 10, "OVER_LIMIT: OVER_LIMIT")
	left(request(1<<32-1, user("d")), 10, "OVER_LIMIT: OVER_LIMIT")
	left(r.ask(hits(descriptor("exact=1"), 1001)), 5000, "OVER_LIMIT: OVER_LIMIT")
	left(r.ask(hits(descriptor("exact=1"), 1000)), 4000, "OK: OK")
	left(r.ask(user("e"), hits(user("d"), 4)), 3, "OVER_LIMIT: OK OVER_LIMIT")
	left(r.ask(user("e")), 2, "OK: OK")

	// Hits that have happened are counted as far as there is room.
	bytes := func(n int64) *ratelimit.RateLimitDescriptor { return hits(descriptor("bytes=a"), n) }
	left(r.ask(bytes(900)), 100, "OK: OK")
	left(r.ask(bytes(300)), 0, "OVER_LIMIT: OVER_LIMIT")
	left(r.ask(bytes(0)), 0, "OVER_LIMIT: OVER_LIMIT")
	left(r.ask(hits(descriptor("bytes=b"), 5000)), 0, "OVER_LIMIT: OVER_LIMIT")
	left(r.ask(hits(descriptor("bytes=b"), 1)), 0, "OVER_LIMIT: OVER_LIMIT")
}

// A request with an id asks with 0 hits first, which takes some, and settles them with their number, once.
func testSettlements(t *testing.T, r *rig) {
	send := func(name, key, id string, n int64) string {
		t.Helper()
		out := r.ask(hits(descriptor(name+"="+key, "request_id="+id), n))
		return fmt.Sprintf("%s %d", out.Statuses[0].Code, out.Statuses[0].LimitRemaining)
	}
	long := strings.Repeat("x", 200) + "\x00"
	for _, c := range []struct {
		key, id string
		n       int64
		want    string
	}{
		{"a", "1", 0, "OK 60"},
		{"a", "2", 0, "OK 20"},
		{"a", "3", 0, "OVER_LIMIT 20"},
		{"a", "3", 0, "OK 20"}, // its end: one more would be allowed
		{"a", "1", 7, "OK 53"},
		{"a", "1", 7, "OK 46"}, // and its hits have happened, too
		{"a", "1", 9, "OK 37"},
		{"a", "1", 0, "OK 37"},
		{"a", "2", 70, "OK 7"},
		{"a", "none", 5, "OK 2"}, // it took nothing
		{"a", "none", -5, "OK 7"},
		{"a", "none", -5, "OK 7"},
		{"a", "4", 15, "OVER_LIMIT 0"}, // without a take, up to the limit
		{"b", "1", 0, "OK 60"},
		{"b", "1", 150, "OVER_LIMIT 0"},
		{"c", long, 0, "OK 60"},
		{"c", long, 1, "OK 99"},
		{"d", "1", 0, "OK 60"},
		{"f", "1", 0, "OK 60"},
		{"f", "1", 1 << 40, "OVER_LIMIT 0"}, // more than any limit allows has happened, too
		{"f", "1", 0, "OVER_LIMIT 0"},
		{"g", "1", 0, "OK 60"},
		{"g", "1", 0, "OK 100"}, // a request without hits has ended
		{"g", "1", 0, "OK 100"},
		{"h", "1", 0, "OK 60"},
		{"h", "2", 0, "OK 20"},
		{"h", "3", 0, "OVER_LIMIT 20"},
		{"h", "1", 0, "OK 60"},
		{"h", "3", 0, "OK 60"}, // the end of what was refused takes nothing, though it would fit now
		{"h", "3", 5, "OK 55"}, // but its hits have happened
		{"h", "2", 5, "OK 90"},
	} {
		if got := send("tokens", c.key, c.id, c.n); got != c.want {
			t.Errorf("%.20v: %s", c, got)
		}
	}
	// A request without an id asks as before. Together with others, all or none is taken.
	d := descriptor("tokens=d", "request_id=2")
	require.EqualValues(t, 60, r.ask(hits(descriptor("tokens=d"), 0)).Statuses[0].LimitRemaining)
	require.Equal(t, "OK: OK OK", codesOf(r.ask(hits(d, 0), descriptor("user=d1"))))
	require.Equal(t, "OVER_LIMIT: OVER_LIMIT OK", codesOf(r.ask(hits(descriptor("tokens=d", "request_id=3"), 0), descriptor("user=d2"))))
	require.EqualValues(t, 3, r.ask(hits(descriptor("user=d2"), 0)).Statuses[0].LimitRemaining, "a refused request was counted")
	_, err := r.send(&rls.RateLimitRequest{Domain: "edge", Descriptors: []*ratelimit.RateLimitDescriptor{hits(d, 0), descriptor("tokens=d")}})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "descriptors[1]: another descriptor has the limit tokens and the same key") {
		t.Errorf("hits to be counted and reserved: %v", err)
	}
	// So is it if another limit refuses a request, or its end.
	refusing := hits(descriptor("user=i"), 4)
	require.Equal(t, "OVER_LIMIT: OK OVER_LIMIT", codesOf(r.ask(hits(descriptor("tokens=i", "request_id=1"), 0), refusing)))
	require.Equal(t, "OK 100", send("tokens", "i", "1", 0))
	require.Equal(t, "OK 60", send("tokens", "i", "2", 0))
	require.Equal(t, "OVER_LIMIT: OK OVER_LIMIT", codesOf(r.ask(hits(descriptor("tokens=i", "request_id=2"), 0), refusing)))
	require.EqualValues(t, 100, r.ask(hits(descriptor("tokens=i"), 0)).Statuses[0].LimitRemaining)
	// An id that another request has used neither settles twice nor hides hits.
	require.Equal(t, "OK 98", send("once", "e", "1", 2))
	require.Equal(t, "OK 98", send("once", "e", "1", 2))
	require.Equal(t, "OK 60", send("tokens", "e", "1", 0))
	out := r.ask(hits(descriptor("tokens=e", "request_id=1"), 5), hits(descriptor("once=e", "request_id=1"), 3))
	require.Equal(t, "OK: OK OK", codesOf(out))
	require.EqualValues(t, 95, out.Statuses[0].LimitRemaining)
	require.EqualValues(t, 95, out.Statuses[1].LimitRemaining)
	_, metrics, err := stack.Do(http.MethodGet, r.URL()+"/metrics", nil)
	require.NoError(t, err)
	require.Contains(t, string(metrics), `tallyroll_limit_settlements_total{limit="tokens",result="settled"} 10`)
	require.Contains(t, string(metrics), `tallyroll_limit_settlements_total{limit="tokens",result="unknown"} 5`)
}

// Of hits that have happened each limit counts what it can, whatever the others decide.
func testHappened(t *testing.T, r *rig) {
	both := func(n int64) *rls.RateLimitResponse { return r.ask(hits(descriptor("both=a"), n)) }
	require.Equal(t, "OK: OK", codesOf(both(100)))
	require.Equal(t, "OVER_LIMIT: OVER_LIMIT", codesOf(both(3000)))
	require.EqualValues(t, 6900, r.ask(hits(descriptor("both-wide=a"), 0)).Statuses[0].LimitRemaining)
	require.Equal(t, "OVER_LIMIT: OVER_LIMIT OVER_LIMIT OK", codesOf(r.ask(descriptor("user=happened"), hits(descriptor("user=happened"), 3), hits(descriptor("both-wide=a"), 2500))))
	require.EqualValues(t, 4400, r.ask(hits(descriptor("both-wide=a"), 0)).Statuses[0].LimitRemaining, "another limit refused the request")
	// Log counts a thousand at a time.
	require.Equal(t, "OK: OK", codesOf(r.ask(hits(descriptor("both-log=a"), 2500))))
	require.EqualValues(t, 500, r.ask(hits(descriptor("both-log=a"), 0)).Statuses[0].LimitRemaining)
}

// Envoy's own settings can give a limit other numbers for a request.
func testOverride(t *testing.T, r *rig) {
	with := func(n uint32, unit units.RateLimitUnit, multiplier uint32) *ratelimit.RateLimitDescriptor {
		d := descriptor("path=/x", "remote_address=192.0.2.1")
		d.Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n, Unit: unit}
		if multiplier > 0 {
			d.Limit.UnitMultiplier = wrapperspb.UInt32(multiplier)
		}
		return d
	}
	s := r.ask(with(7, units.RateLimitUnit_HOUR, 0)).Statuses[0]
	if l := s.CurrentLimit; l.RequestsPerUnit != 7 || l.Unit != rls.RateLimitResponse_RateLimit_HOUR || s.LimitRemaining != 6 {
		t.Errorf("another max: %v", s)
	}
	if s := r.ask(descriptor("path=/x", "remote_address=192.0.2.1")).Statuses[0]; s.LimitRemaining != 3 {
		t.Errorf("the window is the limit's own, and so are the hits: %v", s)
	}
	s = r.ask(with(7, units.RateLimitUnit_MINUTE, 3)).Statuses[0]
	if l := s.CurrentLimit; l.Unit != rls.RateLimitResponse_RateLimit_MINUTE || l.UnitMultiplier.GetValue() != 3 || s.LimitRemaining != 6 {
		t.Errorf("another window: %v", s)
	}
	require.Equal(t, "OVER_LIMIT: OVER_LIMIT", codesOf(r.ask(with(0, units.RateLimitUnit_HOUR, 0))), "no request allowed")
	none := with(1, units.RateLimitUnit_YEAR, 0)
	none.Entries[0].Key = "none"
	require.Equal(t, "OK: OK", codesOf(r.ask(none)), "an override of a descriptor that the file lacks")
	require.Equal(t, "OVER_LIMIT: OVER_LIMIT", codesOf(r.ask(none)))
	// Numbers that cannot be used let no request through: the limit keeps its own.
	log := func(n uint32) *ratelimit.RateLimitDescriptor {
		d := with(n, units.RateLimitUnit_HOUR, 0)
		d.Entries = descriptor("held=a").Entries
		return d
	}
	for i, c := range []struct {
		d         *ratelimit.RateLimitDescriptor
		max, left uint32
	}{
		{with(7, units.RateLimitUnit_UNKNOWN, 0), 5, 2},
		{with(7, units.RateLimitUnit_YEAR, 2), 5, 1},
		{log(5), 5, 4}, // the share does not fit, and is left out
		{log(1), 1, 0},
		{log(100_001), 40, 0}, // more than log can have
	} {
		s := r.ask(c.d).Statuses[0]
		if s.CurrentLimit.GetRequestsPerUnit() != c.max || i < 3 && s.LimitRemaining != c.left {
			t.Errorf("%d: %v", i, s)
		}
	}
	r.WaitForLog("descriptors[0].limit: unit: UNKNOWN: must be SECOND, MINUTE")
	// One by the month keeps its window, and takes no number for another.
	month := func(n uint32, unit units.RateLimitUnit) (uint32, string) {
		d := with(n, unit, 0)
		d.Entries = descriptor("month=a").Entries
		s := r.ask(d).Statuses[0]
		if s.DurationUntilReset.AsDuration() > 31*24*time.Hour {
			t.Errorf("a month ends in %v", s.DurationUntilReset)
		}
		return s.CurrentLimit.RequestsPerUnit, fmt.Sprint(s.CurrentLimit.Unit, s.LimitRemaining)
	}
	for i, c := range []struct {
		n    uint32
		unit units.RateLimitUnit
		most uint32
		want string
	}{{70, units.RateLimitUnit_MONTH, 70, "MONTH 69"}, {80, units.RateLimitUnit_DAY, 50, "MONTH 48"}, {80, units.RateLimitUnit_MONTH, 80, "MONTH 77"}} {
		most, got := month(c.n, c.unit)
		require.Equal(t, c.most, most, i)
		require.Equal(t, c.want, got, i)
	}
}

// Requests that only Envoy's settings can make get an error that says what is wrong.
func testBadRequests(t *testing.T, r *rig) {
	for _, c := range []struct {
		req  *rls.RateLimitRequest
		want string
	}{
		{&rls.RateLimitRequest{}, "domain: missing: must be a domain"},
		{&rls.RateLimitRequest{Domain: "edge"}, "descriptors: empty: must be"},
		{&rls.RateLimitRequest{Domain: "edge", Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("a=b"), {}}}, "descriptors[1].entries: empty: must be"},
	} {
		_, err := r.send(c.req)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.req, err, c.want)
		}
	}
	r.WaitForLog("descriptors[1].entries: empty: must be")
}

// However many limits a client's headers match, all of them decide: no client gets an error, with which Envoy
// would let its request through.
func TestAllLimitsOfARequestDecide(t *testing.T) {
	t.Parallel()
	limits := "limits:\n"
	var all []*ratelimit.RateLimitDescriptor
	for i := range 3 * limit.MaxTogether {
		limits += fmt.Sprintf("- {name: header-%d, window: 1h, max: 2, envoy: {domain: edge, descriptor: [{key: header-%d}]}}\n", i, i)
		all = append(all, descriptor(fmt.Sprintf("header-%d=x", i)))
	}
	r := start(t, stack.Redis(t), limits)
	r.WaitForLog("one request can ask about more than 16 of these limits")
	last := all[len(all)-1]
	require.Equal(t, "OK:"+strings.Repeat(" OK", len(all)), codesOf(r.ask(all...)), "the first")
	r.ask(last)
	for range 3 {
		if got := codesOf(r.ask(all...)); !strings.HasPrefix(got, "OVER_LIMIT:") {
			t.Errorf("one of them has none left: %s", got)
		}
	}
	if got := codesOf(r.ask(all[:len(all)-1]...)); !strings.HasPrefix(got, "OK:") {
		t.Errorf("those that were refused count under no other limit: %s", got)
	}
}

// Whatever a client writes into its request, it is limited.
func testNoValueEscapes(t *testing.T, r *rig) {
	for name, value := range map[string]string{
		"none": "", "long": strings.Repeat("x", 100_000), "control": "a\x00\nb", "a brace": "}:{", "percent": "%FF",
	} {
		d := descriptor("user=" + value)
		for i, want := range []string{"OK: OK", "OK: OK", "OK: OK", "OVER_LIMIT: OVER_LIMIT"} {
			require.Equal(t, want, codesOf(r.ask(d)), "%s, request %d", name, i)
		}
	}
	// Another long value is another key.
	require.Equal(t, "OK: OK", codesOf(r.ask(descriptor("user="+strings.Repeat("x", 99_999)))), "another long value")
	// Envoy sends bytes that are no UTF-8 as they are.
	conn := dial(t, r.addr, insecure.NewCredentials(), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})))
	for i, want := range []string{"OK: OK", "OK: OK", "OK: OK", "OVER_LIMIT: OVER_LIMIT"} {
		require.Equal(t, want, codesOf(askRaw(t, conn, "user", "a\xff\xc3")), "no UTF-8, request %d", i)
	}
	require.Equal(t, "OK: OK", codesOf(r.ask(descriptor("user=a%FF%C3"))), "another value, which is UTF-8")
	if err := conn.Invoke(t.Context(), rls.RateLimitService_ShouldRateLimit_FullMethodName, []byte{0xff}, &rls.RateLimitResponse{}); status.Code(err) != codes.Internal {
		t.Errorf("what is no message: %v", err)
	}
}

// askRaw asks with a value that need not be UTF-8.
func askRaw(t *testing.T, conn *grpc.ClientConn, key, value string) *rls.RateLimitResponse {
	t.Helper()
	entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), key)
	entry = protowire.AppendString(protowire.AppendTag(entry, 2, protowire.BytesType), value)
	list := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), entry)
	text := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "edge")
	text = protowire.AppendBytes(protowire.AppendTag(text, 2, protowire.BytesType), list)
	out := &rls.RateLimitResponse{}
	require.NoError(t, conn.Invoke(t.Context(), rls.RateLimitService_ShouldRateLimit_FullMethodName, text, out))
	return out
}

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	return encoding.GetCodecV2("proto").Unmarshal(data, v)
}

// rls and query decide about the same hits: together their clients are allowed max, and no fewer. That this
// is so under each policy is tested in internal/limit.
func TestHitsAreSharedWithTakesOverHTTP(t *testing.T) {
	t.Parallel()
	const clients, each, most = 24, 20, 200
	redis := stack.Redis(t)
	r := start(t, redis, fmt.Sprintf(`
limits:
- {name: shared, window: 1h, max: %d, key: "{ip}", envoy: {domain: edge, descriptor: [{key: path, value: /login}, {key: remote_address, as: ip}]}}
- {name: joined, window: 1h, max: 2, envoy: {domain: edge, descriptor: [{key: user}, {key: plan}]}}
- {name: one, window: 1h, max: 4, envoy: {domain: edge, descriptor: [{key: one}]}}
`, most))
	other := start(t, redis, "", "RLS_LIMITS_FILE="+r.file, stack.NoWait)
	other.write("limits: []") // of its own, which it does not read
	other.WaitReady()
	query := stack.Query(t, redis, "QUERY_LIMITS_FILE="+r.file, stack.NoWait)
	stack.Eventually(t, "query to take", func() (bool, string) {
		status, text, err := stack.Do(http.MethodGet, query.URL()+"/readyz/takes", nil)
		return err == nil && status == http.StatusOK, string(text)
	})
	overHTTP := func() (bool, error) {
		status, _, err := stack.Do(http.MethodPost, query.URL()+"/v1/take", map[string]any{"limit": "shared", "ip": "192.0.2.1"})
		return status == http.StatusOK, err
	}
	over := func(r *rig) func() (bool, error) {
		return func() (bool, error) {
			out, err := r.send(&rls.RateLimitRequest{Domain: "edge", Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("path=/login", "remote_address=192.0.2.1")}})
			return out.GetOverallCode() == rls.RateLimitResponse_OK, err
		}
	}
	ways := []func() (bool, error){overHTTP, over(r), over(other)}
	var allowed atomic.Int64
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() {
			for range each {
				ok, err := ways[i%len(ways)]()
				require.NoError(t, err)
				if ok {
					allowed.Add(1)
				}
			}
		})
	}
	group.Wait()
	require.EqualValues(t, most, allowed.Load())

	// {key} of several values is what docs/limits.md says.
	r.ask(descriptor("user=a b", "plan=50%"))
	status, text, err := stack.Do(http.MethodPost, query.URL()+"/v1/take", map[string]any{"limit": "joined", "key": "a%20b 50%25"})
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, string(text), `"remaining":0`)

	// What is no name is one key to all of them, however it comes.
	conn := dial(t, r.addr, insecure.NewCredentials(), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})))
	for _, key := range []string{"a\tb", "a\x00", strings.Repeat("k", 513), "caf\xe9"} {
		require.Equal(t, "OK: OK", codesOf(askRaw(t, conn, "one", key)))
		target := query.URL() + "/v1/limit?limit=one&key=" + url.QueryEscape(key)
		left := func() string {
			_, text, err := stack.Do(http.MethodGet, target, nil)
			require.NoError(t, err)
			return string(text)
		}
		require.Contains(t, left(), `"remaining":3`, "%.20q", key)
		if utf8.ValidString(key) {
			status, text, err := stack.Do(http.MethodPost, query.URL()+"/v1/take", map[string]any{"take": []any{map[string]any{"limit": "one", "key": key}}})
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, status)
			require.Contains(t, string(text), `"key":"sha256:`)
			require.Contains(t, left(), `"remaining":2`, "%.20q", key)
		}
		status, text, err := stack.Do(http.MethodDelete, target, nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusNoContent, status, string(text))
		require.Contains(t, left(), `"remaining":4`, "%.20q", key)
	}
}

const limitsOfFailModes = `
limits:
- {name: local, window: 1h, max: 2, fail: local, envoy: {domain: edge, descriptor: [{key: local}]}}
- {name: open, window: 1h, max: 1, fail: open, envoy: {domain: edge, descriptor: [{key: open}]}}
- {name: closed, window: 1h, max: 1000, fail: closed, envoy: {domain: edge, descriptor: [{key: closed}]}}
- {name: tried, window: 1h, max: 1, mode: shadow, envoy: {domain: edge, descriptor: [{key: tried}]}}
- {name: tokens, window: 1h, max: 100, fail: closed, envoy: {domain: edge, reserve: {hits: 40}, descriptor: [{key: tokens}, {key: request_id, as: id}]}}
- {name: bytes, window: 1h, max: 100, fail: closed, envoy: {domain: edge, partly: true, descriptor: [{key: bytes}]}}
`

// Without Redis, the limit's fail mode decides, and not Envoy's: what is closed is over the limit, and no
// error.
func TestFailModeDecidesWithoutRedis(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	r := start(t, redis, limitsOfFailModes)
	require.Empty(t, headersOf(r.ask(descriptor("tried=a"))), "all limits are in shadow mode")
	request := func(n int64) *ratelimit.RateLimitDescriptor {
		return hits(descriptor("tokens=a", "request_id=1"), n)
	}
	require.EqualValues(t, 60, r.ask(request(0)).Statuses[0].LimitRemaining)
	redis.Kill()
	// The end of a request gets no error, and the take stays as it was.
	require.Equal(t, "OK: OK OK", codesOf(r.ask(request(7), hits(descriptor("bytes=a"), 7))))
	_, metrics, err := stack.Do(http.MethodGet, r.URL()+"/metrics", nil)
	require.NoError(t, err)
	require.Contains(t, string(metrics), `tallyroll_limit_settlements_total{limit="tokens",result="refused"} 1`)
	require.Contains(t, string(metrics), `tallyroll_limit_decisions_total{limit="bytes",result="error",source=""} 1`)
	for i, c := range []struct {
		d    *ratelimit.RateLimitDescriptor
		want string
	}{
		{descriptor("local=a"), "OK: OK"}, {descriptor("local=a"), "OK: OK"}, {descriptor("local=a"), "OVER_LIMIT: OVER_LIMIT"},
		{descriptor("open=a"), "OK: OK"}, {descriptor("open=a"), "OK: OK"}, {descriptor("closed=a"), "OVER_LIMIT: OVER_LIMIT"},
	} {
		require.Equal(t, c.want, codesOf(r.ask(c.d)), "request %d, %v", i, c.d)
	}
	out := r.ask(descriptor("none=a"), descriptor("open=a"), descriptor("closed=a"))
	if got := codesOf(out); got != "OVER_LIMIT: OK UNKNOWN OVER_LIMIT" || headersOf(out)["Retry-After"] != "1" {
		t.Errorf("one is closed: %v", out)
	}
	redis.Start()
	stack.Eventually(t, "Redis to decide again", func() (bool, string) {
		got := codesOf(r.ask(descriptor("closed=b")))
		return got == "OK: OK", got
	})
	require.Equal(t, "OVER_LIMIT: OVER_LIMIT", codesOf(r.ask(descriptor("local=a"))), "what was allowed without Redis is not counted")
}

var requestsEnded = regexp.MustCompile(`tallyroll_rls_request_seconds_count{code="[0-9]+",route="ShouldRateLimit"} ([0-9]+)`)

// A caller that waits no longer gets its own error at once, and nothing waits for Redis in its place. That is
// counted as canceled, and not as a failure of Redis.
func TestCallerThatWaitsNoLongerGetsItsErrorAtOnce(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	r := start(t, redis, limitsOfFailModes)
	tokens := descriptor("tokens=a", "request_id=1")
	r.ask(descriptor("closed=a"), hits(tokens, 0)) // the connections are open
	redis.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := r.client.ShouldRateLimit(ctx, &rls.RateLimitRequest{Domain: "edge", Descriptors: []*ratelimit.RateLimitDescriptor{
		hits(descriptor("closed=a"), 500), hits(tokens, 7), hits(descriptor("bytes=a"), 7),
	}})
	require.EqualValues(t, codes.DeadlineExceeded, status.Code(err), "the error")
	scrape := func() (text []byte) {
		_, text, err = stack.Do(http.MethodGet, r.URL()+"/metrics", nil)
		return text
	}
	stack.Eventually(t, "the end of both requests", func() (bool, string) {
		text, ended := scrape(), 0
		for _, m := range requestsEnded.FindAllSubmatch(text, -1) {
			n, _ := strconv.Atoi(string(m[1]))
			ended += n
		}
		return err == nil && ended == 2, fmt.Sprint(ended, err)
	})
	text := scrape() // the one before may have read other metrics before the end
	require.NotRegexp(t, `(decisions|settlements)_total\{.*result="(error|refused)"`, string(text))
	for _, line := range []string{`decisions_total{limit="closed",result="canceled",source=""} 1`,
		`decisions_total{limit="bytes",result="canceled",source=""} 1`, `settlements_total{limit="tokens",result="canceled"} 1`} {
		require.Contains(t, string(text), "tallyroll_limit_"+line)
	}
	redis.Resume()
	require.EqualValues(t, 0, r.Stop(), "it ends with")
}

// A limit can have more hits than Envoy's fields hold.
func TestFieldsOfEnvoySaturate(t *testing.T) {
	t.Parallel()
	large := &limit.Limit{Name: "budget", Window: time.Hour, Max: limit.MaxHits}
	if got := currentLimit(large).RequestsPerUnit; got != math.MaxUint32 {
		t.Errorf("requests per unit: %d", got)
	}
	if got := saturate(7); got != 7 {
		t.Errorf("7 remain, and the field has %d", got)
	}
}
