package fleet

import (
	"testing"
	"time"
)

// A worker whose watch delivered nothing for a while removes no member: the others may have
// been cut off with it.
func TestWorkerThatWasCutOffRemovesNoOther(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	r := newRoster("me", 7*time.Second)
	me, other := member{Joined: 1, Streams: []string{"*"}}, member{Joined: 2, Streams: []string{"*"}}
	all := func(Globs) bool { return true }
	r.recordHeartbeat("me", 1, me, at(0))
	r.recordHeartbeat("other", 2, other, at(0))
	if !r.isLeader(at(1), all) {
		t.Error("the one that came first is not first")
	}
	r.removeDead(at(9))
	if r.isLeader(at(9), all) || len(r.members) != 2 {
		t.Error("blind, it decides")
	}
	r.recordHeartbeat("me", 3, me, at(9))
	r.removeDead(at(10))
	if len(r.members) != 2 {
		t.Error("the other has had no time to come back")
	}
	for s := 10.0; s < 13; s++ {
		r.recordHeartbeat("me", 4, me, at(s))
		r.removeDead(at(s))
	}
	if _, alive := r.members["other"]; alive {
		t.Error("silent for more than three seconds, it is alive")
	}
	// Another process of its name.
	me.Name = "pod-0"
	r.recordHeartbeat("me's double", 9, me, at(20))
	if r.hasEcho(at(20)) {
		t.Error("it takes another process's beats for its own")
	}
}

func TestRosterFollowsTheLatestPlanOnly(t *testing.T) {
	t.Parallel()
	now := time.Now()
	r := newRoster("me", 7*time.Second)
	r.recordHeartbeat("me", 1, member{Joined: 1}, now)
	r.recordHeartbeat("other", 2, member{Joined: 2, Holds: []string{"A"}}, now)
	r.adopt(plan{"A": "me", "B": "me"}, 7, now)
	r.adopt(plan{"A": "other"}, 6, now) // late
	s := r.share(now)
	if !s.Known || len(s.Mine) != 2 || !s.Busy["A"] || s.Busy["B"] {
		t.Errorf("%+v", s)
	}
	if s := r.share(now.Add(r.handOverTimeout)); s.Busy["A"] {
		t.Error("it waits for ever for one that does not let go")
	}
	r.recordWrite(8)
	r.adopt(plan{"A": "me", "B": "other"}, 9, now)
	if s := r.share(now); len(s.Mine) != 1 || s.Streams != 2 {
		t.Errorf("%+v", s)
	}
	r.recordWrite(1) // into a new bucket
	r.adopt(plan{"A": "other", "B": "other"}, 2, now)
	if s := r.share(now); len(s.Mine) != 0 {
		t.Errorf("it does not follow the plan of a new bucket: %+v", s)
	}
}
