package status

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/consume/fleet"
	"tallyroll/internal/consume/source"
	"tallyroll/internal/query/answer"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window/read"
)

// streams answers how far the streams are counted.
type streams struct {
	*servers
	last    recent[StreamsAnswer]
	counted atomic.Pointer[read.Reach] // what Redis answered last
}

// StreamsAnswer has every stream with its worker and its lag, and every worker.
type StreamsAnswer struct {
	AsOf    time.Time     `json:"as_of" doc:"When this was looked at, by the clock of this service. It is at most a second old." example:"2026-11-21T10:00:00.2Z"`
	Streams []StreamState `json:"streams" doc:"The streams of hits, by name."`
	Workers []workerState `json:"workers" doc:"The workers that are alive, by name."`
	Redis   string        `json:"redis,omitempty" doc:"Why Redis does not answer now. Then applied_sequence and as_of are those of its last answer, and lag is from there. Absent if it answers." example:"Redis cannot answer now: ask again in a second"`
}

// StreamState is how far one stream is counted.
type StreamState struct {
	Stream      string    `json:"stream" doc:"The name of the stream." example:"HITS"`
	Worker      string    `json:"worker" doc:"The worker that reads it; empty if none does." example:"pod-0-x7k2"`
	Exists      bool      `json:"exists" doc:"False if NATS no longer has the stream; its hits still count." example:"true"`
	Last        uint64    `json:"last_sequence" doc:"The sequence of the newest message in the stream." example:"48213"`
	Applied     uint64    `json:"applied_sequence" doc:"The last sequence that all counters have; 0 if not all of them have begun." example:"48210"`
	LagMessages uint64    `json:"lag_messages" doc:"How many sequences are not applied yet." example:"3"`
	LagSeconds  float64   `json:"lag_seconds" doc:"How long ago the last applied message was stored, if there are later ones, else 0." example:"0.2"`
	AsOf        time.Time `json:"as_of" doc:"Every hit that the stream stored before this moment is counted." example:"2026-11-21T10:00:00.2Z"`
	Gaps        string    `json:"gaps,omitempty" doc:"Why sequences may be missing that no hit ever had: then messages that the stream loses between others, unread, do not make answers incomplete. Missing if each missing sequence was a message." example:"it may hold schedules (allow_msg_schedules), which the server removes when their messages come"`
	Rejects     uint64    `json:"rejects" doc:"How many rejects in HITS_REJECTED come from this stream, in this namespace: its part of stored in /v1/rejects." example:"0"`
}

type workerState struct {
	Worker  string    `json:"worker" doc:"The worker's name." example:"pod-0-x7k2"`
	Started time.Time `json:"started" doc:"When it started, by its own clock." example:"2026-11-20T08:00:00Z"`
	Status  string    `json:"status" doc:"Where it answers /readyz and /metrics." example:"10.0.0.7:8082"`
	Streams []string  `json:"streams" doc:"The streams that it reads now." example:"[\"HITS\"]"`
	Leaving bool      `json:"leaving" doc:"True if it is being stopped." example:"false"`
}

func (s *streams) register(a *api.API) {
	api.AnswerQuery(a, a.Operation(huma.Operation{
		OperationID: "get-streams", Method: http.MethodGet, Path: "/v1/streams",
		Summary: "How far each stream is counted, and by which worker",
		Description: "The streams of hits with their workers and their lag. Needs NATS: 501 if NATS_URL is set to " +
			"nothing, 503 while NATS does not answer. " +
			"While Redis does not answer, the workers and what the streams hold are from NATS, and redis has the " +
			"reason. However many clients ask, NATS and Redis are asked at most once per second.",
		Responses: addNoNATS(a, api.SuccessOnly("The streams, as of now.", streamsExample())),
	}), api.OverHTTP(func(ctx context.Context, _ string, _ *api.NoParams) (StreamsAnswer, error) {
		return s.find(ctx)
	}))
}

func (s *streams) find(ctx context.Context) (StreamsAnswer, error) {
	js, err := s.jetStream()
	if err != nil {
		return StreamsAnswer{}, err
	}
	both := 2 * s.redis.Timeout // a timeout of Redis leaves as much for NATS
	out, err := s.last.get(ctx, both, func(ctx context.Context) (StreamsAnswer, error) {
		return s.read(ctx, js)
	})
	if errors.Is(ctx.Err(), context.Canceled) {
		return StreamsAnswer{}, web.ClientGone()
	}
	return out, err
}

func (s *streams) read(ctx context.Context, js jetstream.JetStream) (StreamsAnswer, error) {
	counted, why, err := s.progress(ctx)
	if err != nil {
		return StreamsAnswer{}, err
	}
	var stored map[string]*jetstream.StreamInfo
	var rejects newestRejects
	var workers []fleet.Worker
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) { stored, err = streamInfos(gctx, js); return err })
	group.Go(func() (err error) { rejects, err = readNewest(gctx, js, s.Namespace); return err })
	group.Go(func() (err error) { workers, err = fleet.Workers(gctx, js, s.Namespace, counted.Id); return err })
	if err := group.Wait(); err != nil {
		return StreamsAnswer{}, s.natsUnavailable(ctx, err)
	}
	now := s.Now()
	out := StreamsAnswer{AsOf: now.UTC(), Streams: []StreamState{}, Workers: []workerState{}, Redis: why}
	for _, p := range counted.Streams {
		if p.Ended > 0 && stored[p.Stream] == nil {
			continue
		}
		out.Streams = append(out.Streams, stateOf(p, stored[p.Stream], workers, rejects.stored[p.Stream], now))
	}
	for _, w := range workers {
		slices.Sort(w.Holds)
		out.Workers = append(out.Workers, workerState{w.Name, w.Started, w.Status, append([]string{}, w.Holds...),
			w.Leaving})
	}
	return out, nil
}

// progress returns how far Redis has the streams. If it does not answer, that is what it answered last, with
// the reason: nothing can have been counted since that it would not have.
func (s *streams) progress(ctx context.Context) (found read.Reach, why string, err error) {
	found, err = answer.Read(ctx, s.redis, s.Reader.Progress)
	var p *web.Problem
	last := s.counted.Load()
	switch {
	case err == nil:
		s.counted.Store(&found)
	case last != nil && errors.As(err, &p) && p.Status == http.StatusServiceUnavailable &&
		p.Type != web.NothingCounted.Type():
		return *last, p.Detail, nil
	}
	return found, "", err
}

func stateOf(p read.Progress, stored *jetstream.StreamInfo, workers []fleet.Worker, rejects uint64,
	now time.Time) StreamState {
	out := StreamState{Stream: p.Stream, Exists: stored != nil, Applied: p.Applied, AsOf: answer.Time(p.AsOf),
		Rejects: rejects}
	for _, w := range workers {
		if slices.Contains(w.Holds, p.Stream) {
			out.Worker = w.Name
		}
	}
	if stored == nil {
		return out
	}
	out.Last, out.Gaps = stored.State.LastSeq, source.GapsOf(stored.Config)
	if out.Last <= out.Applied {
		return out
	}
	out.LagMessages = out.Last - out.Applied
	since := time.Unix(0, p.Stored)
	if p.Stored == 0 {
		since = stored.State.FirstTime
	}
	if stored.State.Msgs > 0 {
		out.LagSeconds = max(0, now.Sub(since).Round(time.Millisecond).Seconds())
	}
	return out
}

func streamInfos(ctx context.Context, js jetstream.JetStream) (map[string]*jetstream.StreamInfo, error) {
	out := make(map[string]*jetstream.StreamInfo)
	all := js.ListStreams(ctx)
	for info := range all.Info() {
		out[info.Config.Name] = info
	}
	err := all.Err()
	if err != nil {
		return nil, fmt.Errorf("list the streams: %w", err)
	}
	return out, nil
}

func streamsExample() StreamsAnswer {
	at := time.Date(2026, 11, 21, 10, 0, 0, 2e8, time.UTC)
	return StreamsAnswer{
		AsOf: at,
		Streams: []StreamState{{Stream: "HITS", Worker: "pod-0-x7k2", Exists: true, Last: 48213, Applied: 48210,
			LagMessages: 3, LagSeconds: 0.2, AsOf: at}},
		Workers: []workerState{{Worker: "pod-0-x7k2", Started: at.Add(-24 * time.Hour), Status: "10.0.0.7:8082",
			Streams: []string{"HITS"}}},
	}
}
