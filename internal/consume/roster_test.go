package consume

import (
	"testing"
	"time"
)

// A worker that has seen nothing for a while buries nobody: the others may have
// been cut off with it.
func TestRosterAfterBlindness(t *testing.T) {
	start := time.Now()
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	r := newRoster("me")
	me, other := member{Incarnation: "1", Joined: 1, Streams: []string{"*"}}, member{Incarnation: "2", Joined: 2, Streams: []string{"*"}}
	all := func(Globs) bool { return true }
	r.see("me", 1, me, "1", at(0))
	r.see("other", 2, other, "1", at(0))
	if !r.first(at(1), all) {
		t.Error("the one that came first is not first")
	}
	r.bury(at(9))
	if r.first(at(9), all) || len(r.members) != 2 {
		t.Error("blind, it decides")
	}
	r.see("me", 3, me, "1", at(9))
	r.bury(at(10))
	if len(r.members) != 2 {
		t.Error("the other has had no time to come back")
	}
	for s := 10.0; s < 13; s++ {
		r.see("me", 4, me, "1", at(s))
		r.bury(at(s))
	}
	if _, alive := r.members["other"]; alive {
		t.Error("silent for more than three seconds, it is alive")
	}
	// The same name, another process.
	r.see("me", 9, member{Incarnation: "3", Joined: 9}, "1", at(20))
	if r.sees(at(20)) {
		t.Error("it takes another process's beats for its own")
	}
}

func TestRosterFollowsTheLatestPlan(t *testing.T) {
	now := time.Now()
	r := newRoster("me")
	r.see("me", 1, member{Incarnation: "1", Joined: 1}, "1", now)
	r.see("other", 2, member{Incarnation: "2", Joined: 2, Holds: []string{"A"}}, "1", now)
	r.follow(plan{"A": "me", "B": "me"}, 7, now)
	r.follow(plan{"A": "other"}, 6, now) // late
	s := r.share(now)
	if !s.known || len(s.mine) != 2 || !s.busy["A"] || s.busy["B"] {
		t.Errorf("%+v", s)
	}
	if s := r.share(now.Add(handOverWithin)); s.busy["A"] {
		t.Error("it waits for ever for one that does not let go")
	}
	r.follow(plan{"A": "me", "B": "other"}, 8, now)
	if s := r.share(now); len(s.mine) != 1 || s.streams != 2 {
		t.Errorf("%+v", s)
	}
}
