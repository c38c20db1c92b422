package source

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func TestLeadershipNeedsActiveReplicas(t *testing.T) {
	t.Parallel()
	since := time.UnixMilli(1_000)
	cluster := func(leader string, active ...time.Duration) *jetstream.ClusterInfo {
		c := &jetstream.ClusterInfo{Name: "c", Leader: leader, LeaderSince: &since}
		for _, a := range active {
			c.Replicas = append(c.Replicas, &jetstream.PeerInfo{Active: a})
		}
		return c
	}
	const a, b, c, d = 1 * time.Millisecond, 2 * time.Second, 3 * time.Second, 4 * time.Second
	for _, test := range []struct {
		name string
		info *jetstream.ClusterInfo
		want Leadership
	}{
		{"no information", nil, Leadership{}},
		{"a server without a cluster", &jetstream.ClusterInfo{Leader: "s"}, Leadership{}},
		{"one replica", cluster("s"), Leadership{true, "s", since, true, 0}},
		{"two: both make a majority", cluster("s", c), Leadership{true, "s", since, true, c}},
		{"two, the other never heard", cluster("s", 0), Leadership{true, "s", since, false, 0}},
		{"three: the nearer follower", cluster("s", c, a), Leadership{true, "s", since, true, a}},
		{"three, one never heard", cluster("s", 0, c), Leadership{true, "s", since, true, c}},
		{"three, none ever heard", cluster("s", 0, 0), Leadership{true, "s", since, false, 0}},
		{"four: two followers", cluster("s", d, b, a), Leadership{true, "s", since, true, b}},
		{"five: two followers", cluster("s", d, a, c, b), Leadership{true, "s", since, true, b}},
		{"five, two never heard", cluster("s", 0, d, 0, b), Leadership{true, "s", since, true, d}},
		{"no leader", cluster("", a, b, c), Leadership{true, "", since, true, b}},
	} {
		if got := newLeadership(test.info); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

func TestRequestsConfirmAState(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_000_000)
	at := func(leader string, since int64, after, silence time.Duration) Check {
		return Check{
			Leadership: Leadership{Clustered: true, Leader: leader, Since: time.UnixMilli(since), Majority: true, Silence: silence},
			Asked:      now.Add(after), Answered: now.Add(after + time.Millisecond),
		}
	}
	first := at("s", 1, 0, 0)
	lonely := at("s", 1, time.Hour, 0)
	lonely.Leadership.Majority = false
	for _, test := range []struct {
		name    string
		earlier Check
		later   Check
		want    bool
	}{
		{"followers heard after the answer", first, at("s", 1, confirmAfter+2*time.Millisecond, time.Millisecond), true},
		{"heard too soon after it", first, at("s", 1, confirmAfter+2*time.Millisecond, 2*time.Millisecond), false},
		{"heard before it alone", first, at("s", 1, 9*time.Second, 9*time.Second), false},
		{"another leader", first, at("t", 1, time.Minute, 0), false},
		{"the same leader again", first, at("s", 2, time.Minute, 0), false},
		{"no majority ever heard", first, lonely, false},
		{"no leader", at("", 1, 0, 0), at("", 1, time.Minute, 0), false},
		{"no earlier look", Check{}, at("s", 1, time.Minute, 0), false},
	} {
		if got := test.later.confirms(test.earlier); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// checks is a Stream that returns one check after the other, and then the last one again and again.
type checks struct {
	Stream
	answers []func() (Check, error)
}

func (l *checks) Check(context.Context) (Check, error) {
	answer := l.answers[0]
	if len(l.answers) > 1 {
		l.answers = l.answers[1:]
	}
	return answer()
}

func TestConfirmedStateHasAMajority(t *testing.T) {
	t.Parallel()
	from := func(leader string, last uint64, silence time.Duration) func() (Check, error) {
		return func() (Check, error) {
			now := time.Now()
			return Check{
				State:      State{Last: last, At: now.UnixMilli()},
				Leadership: Leadership{Clustered: true, Leader: leader, Majority: true, Silence: silence}, Asked: now, Answered: now,
			}, nil
		}
	}
	fails := func(err error) func() (Check, error) {
		return func() (Check, error) { return Check{}, err }
	}
	away := errors.New("no answer")
	for _, test := range []struct {
		name    string
		answers []func() (Check, error)
		last    uint64
		age     time.Duration // of the state's moment
		err     error
	}{
		{"a server alone", []func() (Check, error){func() (Check, error) {
			return Check{State: State{Last: 7, At: time.Now().UnixMilli()}}, nil
		}}, 7, 0, nil},
		{"a leader", []func() (Check, error){from("a", 7, 0), from("a", 9, 0)}, 9, confirmAfter, nil},
		{"a leader whose followers are silent for a while", []func() (Check, error){from("a", 7, 0), from("a", 9, time.Second), from("a", 10, 0)}, 10, confirmAfter + checkPause, nil},
		{"a deposed leader wakes", []func() (Check, error){from("a", 3, 0), from("b", 7, 0), from("b", 8, 0)}, 8, confirmAfter, nil},
		{"no answer at first", []func() (Check, error){fails(away), from("b", 7, 0), from("b", 8, 0)}, 8, confirmAfter, nil},
		{"the deposed leader alone", []func() (Check, error){from("a", 3, time.Hour)}, 0, 0, ErrUnconfirmed},
		{"no leader", []func() (Check, error){from("", 3, 0)}, 0, 0, ErrUnconfirmed},
		{"no answer at all", []func() (Check, error){fails(away)}, 0, 0, away},
		{"the stream is gone", []func() (Check, error){from("a", 3, 0), fails(ErrNoStream)}, 0, 0, ErrNoStream},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got, err := Confirmed(t.Context(), &checks{answers: test.answers})
				if !errors.Is(err, test.err) || err == nil && test.err != nil || got.Last != test.last {
					t.Fatalf("%+v %v, want last %d and the error %v", got, err, test.last, test.err)
				}
				if age := time.Since(time.UnixMilli(got.At)); err == nil && age != test.age {
					t.Errorf("the state is of %s ago, want %s", age, test.age)
				}
			})
		})
	}
}
