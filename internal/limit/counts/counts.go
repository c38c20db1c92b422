package counts

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"tallyroll/internal/hit"
	"tallyroll/internal/limit"
	"tallyroll/internal/platform/cause"
	"tallyroll/internal/platform/natsconn"
	"tallyroll/internal/platform/outbox"
	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/platform/wait"
)

const (
	// MaxCounters bounds the counters that are added up, which take some 10 MB, or 70 with the longest keys.
	MaxCounters = 100_000
	// every is how often hits are published, less a tick of the outbox.
	every = 900 * time.Millisecond
	// maxBody bounds the hits of a message, in bytes: some 2,000 of them.
	maxBody = 100_000
	// room is for the last hit of a message, and its headers.
	room = 4 << 10
	// resendFor is half of how long JetStream remembers a Nats-Msg-Id by default.
	resendFor = time.Minute
	// endWithin bounds the last messages.
	endWithin = 2 * time.Second
	// pause is the time before another attempt to connect.
	pause = 5 * time.Second
	// flushWithin bounds a write to a NATS server that does not read.
	flushWithin = 3 * time.Second
)

// Settings are of programs that decide about limits.
type Settings struct {
	Subject string `env:"LIMITS_SUBJECT" envDefault:"hits.limits" help:"the subject that decisions of limits with count are published to: one that a stream of hits takes; without count, NATS is not needed for limits"`
}

func (s *Settings) Validate() error {
	if outbox.CheckSubject(s.Subject) != nil {
		return &setting.Error{Key: "LIMITS_SUBJECT", Value: s.Subject, MustBe: "a subject to publish to, such as " +
			"hits.limits: without wildcards (* and >), spaces and empty parts"}
	}
	return nil
}

// Counts adds hits up, and publishes them. Make it with New.
type Counts struct {
	subject string
	connect func(context.Context) (*nats.Conn, error)
	log     zerolog.Logger
	sampled zerolog.Logger // program.Sampled
	dropped prometheus.Counter
	begun   wait.Signal // hits were added up
	left    int64       // hits of messages whose outcome is unknown at the end
	refused atomic.Bool // the last message was refused, which was logged

	mu   sync.Mutex // guards sums
	sums map[counter]int64
}

// counter is a counter whose name is not filled in yet.
type counter struct {
	name       limit.CounterName
	limit, key string
}

// New returns Counts that connect to NATS with these settings, or never if they are nil. name is the
// program's.
func New(settings Settings, at *natsconn.Settings, name string, log zerolog.Logger,
	registry prometheus.Registerer) *Counts {
	c := &Counts{
		subject: settings.Subject, log: log, sampled: program.Sampled(log), begun: wait.NewSignal(),
		sums: map[counter]int64{},
		connect: func(ctx context.Context) (*nats.Conn, error) {
			if at == nil {
				return nil, errNoNATS
			}
			return at.ConnectLater(ctx, name, log, "until it answers, decisions of limits with count are added up",
				append(outbox.ConnOptions(), nats.FlusherTimeout(flushWithin))...)
		},
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "tallyroll", Subsystem: "limit", Name: "hits_dropped_total",
			Help: "Hits of decisions that are in no counter, or may not be, because NATS did not store them in time.",
		}),
	}
	registry.MustRegister(c.dropped)
	return c
}

// Add adds n hits of a limit's key to each of these counters. Several goroutines may call it.
func (c *Counts) Add(names limit.CounterNames, limit, key string, n int64) {
	for _, name := range names {
		switch {
		case name.HasKey():
			c.add(counter{name, limit, key}, n)
		case name != "":
			c.add(counter{name, limit, ""}, n)
		}
	}
}

func (c *Counts) add(own counter, n int64) {
	c.mu.Lock()
	sum, known := c.sums[own]
	full := !known && len(c.sums) >= MaxCounters
	if !known {
		own.key = strings.Clone(own.key) // it may be a part of a whole request
	}
	if !full {
		c.sums[own] = sum + n
	}
	c.mu.Unlock()
	switch {
	case full:
		c.drop(n, errFull, &c.sampled)
	case !known:
		c.begun.Give()
	}
}

func (c *Counts) drop(n int64, why error, log *zerolog.Logger) {
	c.dropped.Add(float64(n))
	if c.refused.Load() {
		return
	}
	log.Error().Err(why).Int64("hits", n).Msg("decisions of limits are not counted")
}

// Start begins to publish. The function that it returns publishes what is left, and waits for that.
func (c *Counts) Start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// run publishes until ctx ends, and then for up to endWithin what is left.
func (c *Counts) run(ctx context.Context) {
	select {
	case <-ctx.Done():
		if c.isEmpty() {
			return
		}
	case <-c.begun:
	}
	late, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(endWithin, cancel) })()
	for late.Err() == nil {
		err := c.publish(ctx, late)
		if err == nil {
			return
		}
		if late.Err() == nil {
			c.sampled.Error().Err(err).Msg("decisions of limits wait for NATS")
		}
		_ = wait.Sleep(late, pause)
	}
	left := c.left
	for _, m := range c.messages(maxBody) {
		left += m.hits
	}
	c.drop(left, errStopped, &c.log)
}

func (c *Counts) isEmpty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sums) == 0
}

// publish connects, and publishes until nothing is left after ctx has ended, or late ends.
func (c *Counts) publish(ctx, late context.Context) error {
	conn, err := c.connect(late)
	if err != nil {
		return err
	}
	defer conn.Close()
	again := func(_ *message, age time.Duration) bool { return age < resendFor }
	box, err := outbox.Open(conn, again, func(*message, error) {}) // what is not sent is tried again
	if err != nil {
		return err
	}
	defer box.Close()
	var last time.Time // when hits were last published
	for {
		select {
		case <-late.Done():
			for m := range box.All() {
				c.left += m.hits
			}
			return late.Err()
		case a := <-box.Answers:
			if _, ok := box.Resolve(a); ok {
				c.report(a.Refusal)
			}
		case now := <-box.Ticks:
			for m := range box.All() {
				if m.Open() && now.Sub(m.Since()) > resendFor {
					box.Drop(m)
					c.drop(m.hits, errUnknown, &c.sampled)
				}
			}
			box.Tick(now)
		}
		if box.Len() > 0 || ctx.Err() == nil && time.Since(last) < every {
			continue
		}
		last = time.Now()
		messages := c.messages(min(maxBody, int(conn.MaxPayload())-room))
		for _, m := range messages {
			box.Send(m)
		}
		if messages == nil && ctx.Err() != nil {
			return nil
		}
	}
}

// report logs that messages are refused, and that they no longer are.
func (c *Counts) report(refusal error) {
	switch was := c.refused.Swap(refusal != nil); {
	case refusal == nil && was:
		c.log.Info().Msg("decisions of limits are stored again")
	case refusal != nil && !was:
		if errors.Is(refusal, outbox.ErrNoStream) {
			refusal = cause.NoLimitsStream.Of(refusal)
		}
		c.log.Warn().Err(refusal).Str("subject", c.subject).Msg("decisions of limits are not stored, and in no counter")
	}
}

// messages returns what was added up, in messages that end with the hit that passes so many bytes.
func (c *Counts) messages(bytes int) (out []*message) {
	c.mu.Lock()
	sums := c.sums
	c.sums = make(map[counter]int64, len(sums))
	c.mu.Unlock()
	var m *message
	for own, n := range sums {
		for name := []byte(own.name.Of(own.limit, own.key)); n > 0; n -= hit.MaxN {
			if m == nil || len(m.Body) > bytes {
				m = &message{Envelope: outbox.Envelope{Subject: c.subject}}
				out = append(out, m)
			}
			h := hit.Hit{Counter: name, N: min(n, hit.MaxN), At: hit.NoTime, Excluded: true}
			m.Body = append(h.AppendJSON(m.Body), '\n')
			m.hits += h.N
		}
	}
	return out
}

// message is hits that are published together.
type message struct {
	outbox.Envelope
	hits int64
}

var (
	errFull    = errors.New("too many counters wait for NATS")
	errUnknown = errors.New("whether NATS has stored them is unknown")
	errStopped = errors.New("NATS has not stored them before the end of the program")
	errNoNATS  = errors.New("NATS_URL is set to nothing")
)
