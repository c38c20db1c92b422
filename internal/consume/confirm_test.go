package consume

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func TestReign(t *testing.T) {
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
		want reign
	}{
		{"no information", nil, reign{}},
		{"a server without a cluster", &jetstream.ClusterInfo{Leader: "s"}, reign{}},
		{"one replica", cluster("s"), reign{true, "s", since, true, 0}},
		{"two: both make a majority", cluster("s", c), reign{true, "s", since, true, c}},
		{"two, the other never heard", cluster("s", 0), reign{true, "s", since, false, 0}},
		{"three: the nearer follower", cluster("s", c, a), reign{true, "s", since, true, a}},
		{"three, one never heard", cluster("s", 0, c), reign{true, "s", since, true, c}},
		{"three, none ever heard", cluster("s", 0, 0), reign{true, "s", since, false, 0}},
		{"four: two followers", cluster("s", d, b, a), reign{true, "s", since, true, b}},
		{"five: two followers", cluster("s", d, a, c, b), reign{true, "s", since, true, b}},
		{"five, two never heard", cluster("s", 0, d, 0, b), reign{true, "s", since, true, d}},
		{"nobody leads", cluster("", a, b, c), reign{true, "", since, true, b}},
	} {
		if got := newReign(test.info); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

func TestConfirms(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_000_000)
	at := func(leader string, since int64, after, silence time.Duration) streamCheck {
		return streamCheck{
			reign: reign{clustered: true, leader: leader, since: time.UnixMilli(since), majority: true, silence: silence},
			asked: now.Add(after), answered: now.Add(after + time.Millisecond),
		}
	}
	first := at("s", 1, 0, 0)
	lonely := at("s", 1, time.Hour, 0)
	lonely.reign.majority = false
	for _, test := range []struct {
		name    string
		earlier streamCheck
		later   streamCheck
		want    bool
	}{
		{"followers heard after the answer", first, at("s", 1, settle+2*time.Millisecond, time.Millisecond), true},
		{"heard too soon after it", first, at("s", 1, settle+2*time.Millisecond, 2*time.Millisecond), false},
		{"heard before it alone", first, at("s", 1, 9*time.Second, 9*time.Second), false},
		{"another leader", first, at("t", 1, time.Minute, 0), false},
		{"the same leader again", first, at("s", 2, time.Minute, 0), false},
		{"no majority ever heard", first, lonely, false},
		{"nobody leads", at("", 1, 0, 0), at("", 1, time.Minute, 0), false},
		{"no earlier look", streamCheck{}, at("s", 1, time.Minute, 0), false},
	} {
		if got := test.later.confirms(test.earlier); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// looks answers with one look after the other, the last one again and again.
type looks struct {
	source
	answers []func() (streamCheck, error)
}

func (l *looks) look(context.Context) (streamCheck, error) {
	answer := l.answers[0]
	if len(l.answers) > 1 {
		l.answers = l.answers[1:]
	}
	return answer()
}

func TestConfirmed(t *testing.T) {
	t.Parallel()
	from := func(leader string, last uint64, silence time.Duration) func() (streamCheck, error) {
		return func() (streamCheck, error) {
			now := time.Now()
			return streamCheck{
				state: streamState{last: last, at: now.UnixMilli()},
				reign: reign{clustered: true, leader: leader, majority: true, silence: silence}, asked: now, answered: now,
			}, nil
		}
	}
	fails := func(err error) func() (streamCheck, error) {
		return func() (streamCheck, error) { return streamCheck{}, err }
	}
	away := errors.New("no answer")
	for _, test := range []struct {
		name    string
		answers []func() (streamCheck, error)
		last    uint64
		age     time.Duration // of the state's moment
		err     error
	}{
		{"a server alone", []func() (streamCheck, error){func() (streamCheck, error) {
			return streamCheck{state: streamState{last: 7, at: time.Now().UnixMilli()}}, nil
		}}, 7, 0, nil},
		{"a leader", []func() (streamCheck, error){from("a", 7, 0), from("a", 9, 0)}, 9, settle, nil},
		{"a leader whose followers are silent for a while", []func() (streamCheck, error){from("a", 7, 0), from("a", 9, time.Second), from("a", 10, 0)}, 10, settle + lookAgain, nil},
		{"a deposed leader wakes", []func() (streamCheck, error){from("a", 3, 0), from("b", 7, 0), from("b", 8, 0)}, 8, settle, nil},
		{"no answer at first", []func() (streamCheck, error){fails(away), from("b", 7, 0), from("b", 8, 0)}, 8, settle, nil},
		{"the deposed leader alone", []func() (streamCheck, error){from("a", 3, time.Hour)}, 0, 0, errUnconfirmed},
		{"nobody leads", []func() (streamCheck, error){from("", 3, 0)}, 0, 0, errUnconfirmed},
		{"no answer at all", []func() (streamCheck, error){fails(away)}, 0, 0, away},
		{"the stream is gone", []func() (streamCheck, error){from("a", 3, 0), fails(errNoStream)}, 0, 0, errNoStream},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got, err := confirmed(t.Context(), &looks{answers: test.answers})
				if !errors.Is(err, test.err) || err == nil && test.err != nil || got.last != test.last {
					t.Fatalf("%+v %v, want last %d and the error %v", got, err, test.last, test.err)
				}
				if age := time.Since(time.UnixMilli(got.at)); err == nil && age != test.age {
					t.Errorf("the state is of %s ago, want %s", age, test.age)
				}
			})
		})
	}
}
