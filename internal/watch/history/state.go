package history

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/hit"
	"tallyroll/internal/window"
)

type State string

// The states. The documentation of package watch draws the transitions.
const (
	OK       State = "ok"       // the condition does not hold
	Pending  State = "pending"  // it holds, and the rule's for is not over
	Firing   State = "firing"   // it has held that long
	Resolved State = "resolved" // it holds no more, and had fired
	Unknown  State = "unknown"  // the figures cannot decide
)

var States = []State{OK, Pending, Firing, Resolved, Unknown}

// IsIdle reports whether a target that was not notified of trouble needs no notification of this state.
func (s State) IsIdle() bool { return s == OK || s == Resolved || s == "" }

// KeyState is the state of a rule's key with its numbers, as targets receive it.
type KeyState struct {
	Rule   string       `json:"rule" doc:"The rule." example:"errors"`
	Key    string       `json:"key" doc:"The counter, prefix or group that the state is about. Empty: the rule as a whole, if it has a state for each of many keys." example:"http.5xx"`
	State  State        `json:"state" doc:"The state from now on." enum:"ok,pending,firing,resolved,unknown" example:"firing"`
	Total  window.Bound `json:"total" nullable:"true" doc:"The hits in the window, as /v1/total gives them; null if they could not be read." example:"131"`
	Lower  window.Bound `json:"lower" nullable:"true" doc:"There were at least this many; null if total is." example:"129"`
	Upper  window.Bound `json:"upper" nullable:"true" doc:"There were at most this many; null if it is unknown." example:"133"`
	Window string       `json:"window" doc:"The rule's window." example:"5m"`
	TZ     string       `json:"tz,omitempty" doc:"The time zone of the windows today, yesterday, week, month and year; absent: UTC." example:"Europe/Berlin"`
	// Of, Limit and Condition are missing in records of earlier versions.
	Of        string     `json:"of,omitempty" enum:"prefix,group,all" doc:"What key is, if it is not a counter: the prefix of a sum, a group of counters, or empty for the sum of all hits." example:"prefix"`
	Limit     string     `json:"limit,omitempty" doc:"The limit of which the numbers say how much a key has used; absent: they are hits." example:"plan-pro"`
	Condition string     `json:"condition,omitempty" doc:"What must hold for the rule to fire: above or below a number of hits, or change by a percentage; and surely if it must hold for every value within the bounds." example:"above 100"`
	AsOf      *time.Time `json:"as_of" doc:"Every hit stored before this moment was in the numbers; null if they could not be read." example:"2026-11-21T10:00:00.2Z"`
	At        time.Time  `json:"at" doc:"When the rule was evaluated, by Redis's clock." example:"2026-11-21T10:00:00.4Z"`
	Reason    string     `json:"reason,omitempty" doc:"Why the state is unknown, or why it ended if not because of the numbers." example:"nobody has counted lately"`
}

// Origin is a change's first message in the stream.
type Origin struct {
	Seq    uint64    `json:"seq"`
	Stored time.Time `json:"stored"`
}

// ID is the change's id. A restored or recreated stream may reuse a sequence, but not for a message of
// the same nanosecond.
func (o Origin) ID() string {
	return strconv.FormatInt(o.Stored.UnixNano(), 36) + "-" + strconv.FormatUint(o.Seq, 10)
}

// GivenUp is a target to which a change is no longer delivered.
type GivenUp struct {
	Target string    `json:"target" doc:"The target." example:"ops"`
	Reason string    `json:"reason" doc:"Why: the status of the last answer, or that the target did not accept the change in time." example:"403 Forbidden"`
	At     time.Time `json:"at" doc:"When it was given up." example:"2026-11-21T10:05:00.4Z"`
}

// GiveUp is a change that is no longer delivered to a target.
type GiveUp struct {
	Position uint64 `json:"position"`
	GivenUp
}

// The stream of a namespace, and its subjects:
//
//	WATCH_<namespace>
//	tallyroll_watch.<namespace>.state.<rule>.<hash of the key>   a Record
//	tallyroll_watch.<namespace>.seat                             a heartbeat
//	tallyroll_watch.<namespace>.delivery.<target>                a progress
//	tallyroll_watch.<namespace>.given_up.<target>                a GiveUp
const (
	SubjectPrefix = "tallyroll_watch."
	HeartbeatKind = "seat"
)

// StreamName is the stream of a namespace.
func StreamName(namespace string) string { return "WATCH_" + hit.NamespaceToken(namespace) }

// Subject returns the subject of a kind: HeartbeatKind, or state, delivery or given_up with the rest.
func Subject(namespace, kind string) string {
	return SubjectPrefix + hit.NamespaceToken(namespace) + "." + kind
}

const (
	// CheckInterval is the interval at which the stream's identity is checked.
	CheckInterval = 2 * time.Second
	// ConsumerTimeout is how long the server keeps an abandoned consumer.
	ConsumerTimeout = 30 * time.Second
)

// Read calls handle with each message of a consumer until ctx ends.
func Read(ctx context.Context, consumer jetstream.Consumer,
	handle func(jetstream.Msg, *jetstream.MsgMetadata)) error {
	messages, err := consumer.Messages(jetstream.PullMaxMessages(1000))
	if err != nil {
		return fmt.Errorf("read the stream of states: %w", err)
	}
	defer context.AfterFunc(ctx, messages.Stop)()
	for {
		m, err := messages.Next()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			messages.Stop()
			return fmt.Errorf("read the stream of states: %w", err)
		}
		if meta, err := m.Metadata(); err == nil { // otherwise the message is not from a stream
			handle(m, meta)
		}
	}
}
