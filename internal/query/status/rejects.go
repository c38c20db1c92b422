package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/hit"
	"tallyroll/internal/rejects"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
)

const defaultRejects, maxRejects = 20, 100

// rejectsParams is what GET /v1/rejects takes.
type rejectsParams struct {
	Limit  api.Number `query:"limit" hint:"a whole number from 1 to 100" doc:"The most rejects to list: 1 to 100. Default: 20." example:"20"`
	Reason reason     `query:"reason" doc:"Only rejects with this reason." example:"too_late"`
	Stream string     `query:"stream" hint:"the name of a stream" doc:"Only rejects from this stream." example:"HITS"`
	Before api.Number `query:"before" hint:"a position" doc:"The next page: only rejects before this position, the last one of the page before." example:"17"`
}

// reason is one of rejects.Reasons, or "" for all of them.
type reason string

func (reason) Hint() string { return rejects.Reasons }

// RejectsAnswer counts the newest rejects by their reasons, and lists some of them.
type RejectsAnswer struct {
	Stored   uint64        `json:"stored" doc:"How many rejects of this namespace HITS_REJECTED holds." example:"17"`
	Searched int           `json:"searched" doc:"How many of the newest were searched, at most 1000." example:"17"`
	Reasons  []reasonCount `json:"reasons" doc:"How many of those there are for each reason, most first."`
	Hours    []hourCount   `json:"hours" doc:"How many of those that were asked for, whatever before is, were refused in each hour that has any, the newest first, at most 24. Hours before the oldest that was searched are unknown."`
	Rejects  []Rejected    `json:"rejects" doc:"The newest of those that were asked for, newest first."`
}

type hourCount struct {
	Hour  time.Time `json:"hour" doc:"When the hour begins (UTC)." example:"2026-11-21T10:00:00Z"`
	Count int       `json:"count" doc:"How many were refused in it." example:"12"`
}

type reasonCount struct {
	Reason string    `json:"reason" doc:"Why a hit was refused." example:"too_late"`
	Count  int       `json:"count" doc:"How many of those that were searched." example:"12"`
	Newest time.Time `json:"newest" doc:"When the newest of them was stored." example:"2026-11-21T10:00:00.2Z"`
}

// Rejected is a hit that could not be counted.
type Rejected struct {
	Reason   string    `json:"reason" doc:"Why, in one word." example:"bad_json"`
	Detail   string    `json:"detail" doc:"Why, in one sentence." example:"not a JSON object"`
	Stream   string    `json:"stream" doc:"The stream of the message." example:"HITS"`
	Sequence uint64    `json:"sequence" doc:"The message's sequence there." example:"48001"`
	Item     int       `json:"item" doc:"The hit's index in the message." example:"0"`
	Time     time.Time `json:"time" doc:"When the message was stored." example:"2026-11-21T10:00:00.2Z"`
	Body     string    `json:"body" doc:"The hit, or its first 512 bytes; an ellipsis stands for a unique value, and what is not UTF-8 is replaced." example:"{\"kay\":\"a\"}"`
	Bytes    int       `json:"bytes" doc:"How many bytes the hit has." example:"11"`
	Position uint64    `json:"position" doc:"Its sequence in HITS_REJECTED." example:"17"`

	refused time.Time // when HITS_REJECTED stored it
}

func (s *newest) register(a *api.API) {
	at := time.Date(2026, 11, 21, 10, 0, 0, 2e8, time.UTC)
	api.AnswerQuery(a, a.Operation(huma.Operation{
		OperationID: "get-rejects", Method: http.MethodGet, Path: "/v1/rejects",
		Summary: "Hits that could not be counted, and why",
		Description: "The newest rejects of the stream HITS_REJECTED that workers of this namespace have refused. " +
			"Needs NATS: 501 if NATS_URL is set to nothing, 503 while NATS does not answer. " +
			"The list is at most a second old.",
		Responses: addNoNATS(a, api.SuccessOnly("The newest rejects.", RejectsAnswer{
			Stored: 1, Searched: 1, Reasons: []reasonCount{{"bad_json", 1, at}},
			Hours: []hourCount{{at.Truncate(time.Hour), 1}},
			Rejects: []Rejected{{Reason: "bad_json", Detail: "not a JSON object", Stream: "HITS", Sequence: 48001,
				Time: at, Body: "kay=a", Bytes: 5, Position: 17}},
		})),
	}), api.OverHTTP(s.find))
}

func (s *newest) find(ctx context.Context, part string, p *rejectsParams) (RejectsAnswer, error) {
	limit, err := p.Limit.Parse("limit", defaultRejects, 1, maxRejects)
	if err != nil {
		return RejectsAnswer{}, web.InputProblem(err, part)
	}
	if p.Reason != "" && !slices.Contains(hit.Reasons, hit.Reason(p.Reason)) {
		return RejectsAnswer{}, web.BadInput("reason", "%s: must be one of %s", web.Excerpt(string(p.Reason)),
			rejects.Reasons).Problem(part)
	}
	before, err := p.Before.Parse("before", math.MaxInt64, 1, math.MaxInt64)
	if err != nil {
		return RejectsAnswer{}, web.InputProblem(err, part)
	}
	js, err := s.jetStream()
	if err != nil {
		return RejectsAnswer{}, err
	}
	newest, err := s.last.get(ctx, s.redis.Timeout, func(ctx context.Context) (newestRejects, error) {
		return readNewest(ctx, js, s.Namespace)
	})
	if err != nil {
		return RejectsAnswer{}, s.natsUnavailable(ctx, err)
	}
	out := RejectsAnswer{Stored: newest.total(), Searched: len(newest.found), Reasons: countReasons(newest.found)}
	asked := newest.pick(string(p.Reason), p.Stream)
	out.Hours = countHours(asked)
	bounded, cancel := context.WithTimeout(ctx, s.redis.Timeout)
	defer cancel()
	out.Rejects, err = withBodies(bounded, js, page(asked, int(limit), uint64(before)))
	if err != nil {
		return RejectsAnswer{}, s.natsUnavailable(ctx, err)
	}
	return out, nil
}

const (
	maxSearched = 1000
	// maxRejectBody is how many bytes of a reject's body are shown.
	maxRejectBody = 512
)

// newestRejects are a namespace's newest rejects, oldest first, without their bodies, which can be large.
type newestRejects struct {
	stored map[string]uint64 // how many of the namespace the stream has, by the stream that they come from
	found  []Rejected
}

func (n newestRejects) total() (out uint64) {
	for _, stored := range n.stored {
		out += stored
	}
	return out
}

// pick returns the rejects with this reason and stream, newest first.
func (n newestRejects) pick(reason, from string) []Rejected {
	var out []Rejected
	for _, r := range slices.Backward(n.found) {
		if (reason == "" || r.Reason == reason) && (from == "" || r.Stream == from) {
			out = append(out, r)
		}
	}
	return out
}

func page(picked []Rejected, limit int, before uint64) []Rejected {
	picked = slices.DeleteFunc(picked, func(r Rejected) bool { return r.Position >= before })
	return picked[:min(limit, len(picked))]
}

func readNewest(ctx context.Context, js jetstream.JetStream, namespace string) (newestRejects, error) {
	stream, info, err := rejects.Open(ctx, js, namespace, "*")
	if err != nil || stream == nil {
		return newestRejects{}, err
	}
	out := newestRejects{stored: make(map[string]uint64)}
	for subject, n := range info.State.Subjects {
		out.stored[rejects.StreamOf(subject)] = n
	}
	if out.total() == 0 {
		return out, nil
	}
	var others map[string]uint64
	out.found, others, err = readHeaders(ctx, stream, namespace, info.State, out.total())
	if err != nil {
		return newestRejects{}, fmt.Errorf("read stream %s: %w", rejects.Stream, err)
	}
	for from, n := range others {
		out.stored[from] -= min(out.stored[from], n)
	}
	return out, nil
}

// readHeaders reads at most maxSearched of the newest rejects, oldest first. others counts the other messages
// among them, which no worker of the namespace has written, by the stream in their subject.
func readHeaders(ctx context.Context, stream jetstream.Stream, namespace string, state jetstream.StreamState,
	stored uint64) (out []Rejected, others map[string]uint64, err error) {
	consumer, err := openNewest(ctx, stream, namespace, state, stored)
	if err != nil {
		return nil, nil, err
	}
	// If that fails, the server removes it after InactiveThreshold.
	defer func() { _ = stream.DeleteConsumer(ctx, consumer.CachedInfo().Name) }()
	waiting := int(consumer.CachedInfo().NumPending)
	if waiting == 0 {
		return nil, nil, nil // all of them have just expired
	}
	batch, err := consumer.FetchNoWait(waiting)
	if err != nil {
		return nil, nil, err
	}
	others = make(map[string]uint64)
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		if err != nil {
			return nil, nil, err
		}
		// Others may write to the stream, too: what cannot be read is shown as zero.
		r, _ := rejects.Parse(m.Headers())
		if r.Namespace != namespace {
			others[rejects.StreamOf(m.Subject())]++
			continue
		}
		shown := Rejected{
			Reason: string(r.Reason), Detail: r.Detail, Stream: r.Stream, Sequence: r.Seq, Item: r.Item,
			Time: meta.Timestamp.UTC(), Position: meta.Sequence.Stream, refused: meta.Timestamp.UTC(),
		}
		if r.Stored != 0 {
			shown.Time = time.Unix(0, r.Stored).UTC()
		}
		out = append(out, shown)
	}
	if len(out)+len(others) == 0 && batch.Error() == nil {
		return nil, nil, fmt.Errorf("none of %d messages came", waiting) // the library returns no error then
	}
	return out[max(0, len(out)-maxSearched):], others, batch.Error()
}

// openNewest creates a consumer of a namespace's newest rejects: at least maxSearched and fewer than twice as
// many, or all if there are fewer. The sequence to begin at is unknown, because resent rejects leave gaps,
// and other namespaces have rejects in between. So it tries, and halves the rest.
func openNewest(ctx context.Context, stream jetstream.Stream, namespace string, state jetstream.StreamState,
	stored uint64) (jetstream.Consumer, error) {
	enough := min(stored, maxSearched)
	low, high := state.FirstSeq, state.LastSeq+1 // from low on there are enough, and from high on too few
	from := max(low, high-min(high, enough))
	for {
		// The library's ordered consumer would retry without end if the stream went away meanwhile.
		consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
			DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
			AckPolicy:     jetstream.AckNonePolicy,
			FilterSubject: rejects.Subject(namespace, "*"),
			HeadersOnly:   true, MemoryStorage: true, Replicas: 1, InactiveThreshold: 10 * time.Second,
		})
		if err != nil {
			return nil, err
		}
		switch n := consumer.CachedInfo().NumPending; {
		case n < enough && from > low:
			high = from
		case n >= 2*maxSearched && high-from > 1:
			low = from
		default:
			return consumer, nil
		}
		_ = stream.DeleteConsumer(ctx, consumer.CachedInfo().Name) // or the server removes it after InactiveThreshold
		from = low + (high-low)/2
	}
}

func withBodies(ctx context.Context, js jetstream.JetStream, picked []Rejected) ([]Rejected, error) {
	out := []Rejected{}
	if len(picked) == 0 {
		return out, nil
	}
	stream, err := js.Stream(ctx, rejects.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return out, nil // it has just been deleted
	}
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", rejects.Stream, err)
	}
	for _, r := range picked {
		message, err := stream.GetMsg(ctx, r.Position)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // it has just expired
		}
		if err != nil {
			return nil, fmt.Errorf("read message %d of stream %s: %w", r.Position, rejects.Stream, err)
		}
		var body []byte
		body, r.Bytes = rejects.BodyOf(message.Header, message.Data)
		r.Body = clipBody(hit.HideUnique(body))
		out = append(out, r)
	}
	return out, nil
}

func countReasons(found []Rejected) []reasonCount {
	out := []reasonCount{}
	for _, r := range found {
		i := slices.IndexFunc(out, func(c reasonCount) bool { return c.Reason == r.Reason })
		if i < 0 {
			i, out = len(out), append(out, reasonCount{Reason: r.Reason})
		}
		out[i].Count++
		out[i].Newest = r.Time
	}
	slices.SortStableFunc(out, func(a, b reasonCount) int { return cmp.Compare(b.Count, a.Count) })
	return out
}

const mostHours = 24

// countHours counts rejects, newest first, by the hour in which they were refused.
func countHours(picked []Rejected) []hourCount {
	byHour := make(map[time.Time]int)
	for _, r := range picked {
		byHour[r.refused.Truncate(time.Hour)]++
	}
	out := []hourCount{}
	for hour, n := range byHour {
		out = append(out, hourCount{hour, n})
	}
	slices.SortFunc(out, func(a, b hourCount) int { return b.Hour.Compare(a.Hour) })
	return out[:min(mostHours, len(out))]
}

// clipBody returns the beginning of a body as valid text, without half characters.
func clipBody(body []byte) string {
	clipped := body
	if len(body) > maxRejectBody {
		end := maxRejectBody
		for end > maxRejectBody-utf8.UTFMax && !utf8.RuneStart(body[end]) {
			end--
		}
		clipped = body[:end]
	}
	return strings.ToValidUTF8(string(clipped), string(utf8.RuneError))
}

// newest answers which rejects are the newest.
type newest struct {
	*servers
	last recent[newestRejects]
}
