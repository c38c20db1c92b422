package limit

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"tallyroll/internal/platform/human"
)

const (
	// MinTTL and MaxTTL bound how long the id of a take is remembered. A limit's own TTL may be longer.
	MinTTL = time.Second
	MaxTTL = time.Hour
	// DefaultTTL is how long, without a TTL.
	DefaultTTL = 10 * time.Minute
	// MaxID bounds the id of a take, in bytes.
	MaxID = 128
)

// IsID reports whether a text can be the id of a take.
func IsID(text string) bool {
	return text != "" && len(text) <= MaxID && utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
}

// Settle sets how many hits N the take ID of each limit and key has, from now on. Fewer than before are given
// back at the time of the take. More are added now, whatever max is: they have happened. Settling again
// corrects the number, and with the same N changes nothing. Once settles only what was not settled before.
//
// All are settled or none, but those of keys on different nodes of a cluster in turn. The error is an
// *IDError if an id is unknown or cannot be settled, otherwise one of Take's. Without Redis it is an
// *UnavailableError, except under the fail mode open and in shadow mode: then nothing changes, and Settled of
// the decision is nil. It is nil, too, if a limit in shadow mode did not count the take.
func (l *Limiter) Settle(ctx context.Context, takes []Take) (Answer, error) {
	return l.decide(ctx, takes, settle)
}

// IDReason is why an id cannot be used.
type IDReason int

const (
	IDReused     IDReason = iota // for another take
	IDUnknown                    // not remembered
	IDNotSettled                 // of what cannot be settled
)

// IDError means that the id of a take cannot be used for it.
type IDError struct {
	Take   Take
	Reason IDReason
	Done   []Take // settled before it on other nodes of a cluster
}

func (e *IDError) Error() string {
	text := fmt.Sprintf("the id %.64q was used for another take of this limit and key, and is still remembered",
		e.Take.ID)
	switch t := e.Take.Limit.Policy.Traits(); {
	case e.Reason == IDUnknown:
		text = fmt.Sprintf("the id %.64q is not remembered for this limit and key: if its take was counted, its hits "+
			"stay counted as taken", e.Take.ID)
	case e.Reason == IDNotSettled && !t.Settles:
		text = fmt.Sprintf("takes of the policy %s cannot be settled", t.Policy)
	case e.Reason == IDNotSettled:
		text = fmt.Sprintf("the id %.64q is of a take without hits, or of hits given back: they cannot be settled",
			e.Take.ID)
	}
	if len(e.Done) > 0 {
		names := make([]string, len(e.Done))
		for i := range e.Done {
			names[i] = e.Done[i].Limit.PolicyName()
		}
		text += "; settled on other nodes before: " + strings.Join(names, ", ")
	}
	return text
}

// idErrorOf returns the error of the first take whose id Redis does not accept, or nil.
func idErrorOf(r *request, states []state) error {
	for i := range states {
		reason := IDReused
		switch s := &states[i]; {
		case s.unknown && r.takes[i].Limit.Mode != Shadow:
			reason = IDUnknown
		case s.conflict && r.settle:
			reason = IDNotSettled
		case !s.conflict:
			continue
		}
		return &IDError{Take: r.takes[i], Reason: reason}
	}
	return nil
}

// checkID checks the id of a take, how long it is remembered, and what is settled.
func (t *Take) checkID(m mode) error {
	longest, policy := max(MaxTTL, t.Limit.TTL), t.Limit.Policy.Traits()
	switch {
	case m == settle && !policy.Settles:
		return &IDError{Take: *t, Reason: IDNotSettled}
	case m == settle && (t.N < 0 || t.N > MaxHits):
		return &TakeError{*t, "n", fmt.Sprintf("%d: must be 0 to %d", t.N, MaxHits)}
	case t.ID == "" && t.TTL == 0 && m != settle:
		return nil
	case t.ID == "" && m != settle:
		return &TakeError{*t, "ttl", "only with id: it is how long the id is remembered"}
	case policy.Slots:
		return &TakeError{*t, "id", fmt.Sprintf("not under a limit with the policy %s: the name of its lease does the "+
			"same", policy.Policy)}
	case !IsID(t.ID):
		return &TakeError{*t, "id", fmt.Sprintf("must be 1 to %d bytes of UTF-8 without control characters", MaxID)}
	case t.TTL != 0 && !policy.Settles:
		return &TakeError{*t, "ttl", fmt.Sprintf("not under a limit with the policy %s, whose takes cannot be settled",
			policy.Policy)}
	case t.TTL != 0 && (t.TTL < MinTTL || t.TTL > longest):
		return &TakeError{*t, "ttl", fmt.Sprintf("%s: must be %s to %s", human.FormatDuration(t.TTL),
			human.FormatDuration(MinTTL), human.FormatDuration(longest))}
	}
	return nil
}

func (t *Take) ttl() time.Duration { return cmp.Or(t.TTL, t.Limit.TTL, DefaultTTL) }

// idKey returns the key of an id:
//
//	<ns>:{<tag>}:limit:id:<bytes of the id>:<id>:<policy>:<window>:<limit>:<key>
func idKey(key, id string) string {
	const before = "}:limit:"
	i := strings.Index(key, before) + len(before)
	return key[:i] + "id:" + strconv.Itoa(len(id)) + ":" + id + ":" + key[i:]
}
