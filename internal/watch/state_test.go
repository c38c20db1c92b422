package watch

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Any run of verdicts obeys the rules that docs/watch.md gives for states.
func TestStatesObeyTheirRules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rule := &Rule{Name: "r", Window: time.Minute, To: []string{"a"}, For: time.Duration(rapid.SampledFrom([]int{0, 0, 1000, 5000}).Draw(t, "for")) * time.Millisecond}
		many := rapid.Bool().Draw(t, "many")
		if many {
			rule.Top = 1
		}
		at := int64(1_700_000_000_000)
		var now Record
		heldSince, told := int64(-1), State("") // by a model: since when it holds without a break, and what the target was told last
		open := false
		for range rapid.IntRange(1, 60).Draw(t, "sightings") {
			at += rapid.Int64Range(1, 3000).Draw(t, "pause")
			s := Sighting{Rule: rule, Key: "k", At: at, AsOf: at, Verdict: rapid.SampledFrom([]Verdict{NobodyKnows, Holds, Holds, HoldsNot}).Draw(t, "verdict")}
			if s.Verdict == NobodyKnows {
				s.Reason = rapid.SampledFrom([]string{reasonStale, reasonYoung}).Draw(t, "reason")
			}
			before := now
			after, changed := now.next(s)
			if changed != (after.State != before.State) {
				t.Fatalf("%s to %s, changed %v", before.State, after.State, changed)
			}
			now = after
			if s.Verdict != Holds {
				heldSince = -1
			} else if heldSince < 0 {
				heldSince = at
			}
			if now.State == "" {
				if !many || s.Verdict == Holds {
					t.Fatal("no state")
				}
				continue
			}
			switch s.Verdict {
			case NobodyKnows:
				if now.State != Unknown && !(many && before.State == "") {
					t.Fatalf("nobody knows, and it is %s", now.State)
				}
			case HoldsNot:
				if now.State != OK && now.State != Resolved {
					t.Fatalf("it does not hold, and it is %s", now.State)
				}
			case Holds:
				over := at-heldSince >= rule.For.Milliseconds()
				if want := map[bool]State{true: Firing, false: Pending}[over || open]; now.State != want {
					t.Fatalf("it holds for %d of %v, and it is %s", at-heldSince, rule.For, now.State)
				}
			}
			// It is resolved if it had fired, and only then.
			if changed && now.State == Resolved != open && (now.State == Resolved || now.State == OK) {
				t.Fatalf("%s after it fired: %v", now.State, open)
			}
			open = now.State == Firing || open && now.State == Unknown
			if now.Open != open {
				t.Fatalf("open %v, want %v", now.Open, open)
			}
			if !changed {
				continue
			}
			if now.Previous != before.State || !now.Since.Equal(moment(at)) {
				t.Fatalf("%+v", now)
			}
			// Nobody is told the same twice, nor that all is well without having been told otherwise.
			if !now.Quiet {
				if told == now.State || told.calm() && now.State.calm() {
					t.Fatalf("told %s after %s", now.State, told)
				}
				told = now.State
			} else if now.State == Firing || now.State == Pending || now.State == Resolved && !told.calm() {
				t.Fatalf("nobody is told of %s after %s", now.State, told)
			}
			if notified := len(now.Notified) > 0; notified == told.calm() {
				t.Fatalf("told %s, and notified %v", told, now.Notified)
			}
		}
	})
}

// Who was told that a rule fires is told how that ends, whatever the file says then.
func TestTheEndIsToldToWhoKnowsTheBeginning(t *testing.T) {
	t.Parallel()
	rule := &Rule{Name: "r", Window: time.Minute, To: []string{"a", "b"}}
	firing, _ := Record{}.next(Sighting{Rule: rule, Key: "k", At: 1000, Verdict: Holds})
	edited := &Rule{Name: "r", Window: time.Minute, To: []string{"b", "c"}}
	resolved, changed := firing.next(Sighting{Rule: edited, Key: "k", At: 2000, Verdict: HoldsNot})
	if !changed || resolved.State != Resolved || resolved.Quiet || !slices.Equal(resolved.To, []string{"a", "b"}) {
		t.Errorf("%+v", resolved)
	}
	patient := &Rule{Name: "r", Window: time.Minute, For: time.Hour, To: []string{"a"}}
	pending, _ := Record{}.next(Sighting{Rule: patient, Key: "k", At: 1000, Verdict: Holds})
	ok, changed := pending.next(Sighting{Rule: edited, Key: "k", At: 2000, Verdict: HoldsNot})
	if !changed || ok.State != OK || ok.Quiet || !slices.Equal(ok.To, []string{"a"}) {
		t.Errorf("ok after pending: %+v", ok)
	}
	removed := firing.end(3000, "gone")
	if removed.State != Resolved || removed.Quiet || !removed.Gone || removed.live() || removed.Open || removed.Reason != "gone" {
		t.Errorf("%+v", removed)
	}
	again, changed := removed.next(Sighting{Rule: rule, Key: "k", At: 4000, Verdict: Holds})
	if !changed || again.State != Firing || again.Quiet || again.Gone || !again.Open {
		t.Errorf("%+v", again)
	}
}

// A clock that is set back does not make a rule wait for hours.
func TestTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	rule := &Rule{Name: "r", Window: time.Minute, For: 10 * time.Second}
	hour := time.Hour.Milliseconds()
	now, _ := Record{}.next(Sighting{Rule: rule, Key: "k", At: 2 * hour, Verdict: Holds})
	now, changed := now.next(Sighting{Rule: rule, Key: "k", At: hour, Verdict: Holds})
	if !changed || now.State != Pending || !now.Quiet || !now.Began.Equal(moment(hour)) {
		t.Fatalf("%+v", now)
	}
	now, changed = now.next(Sighting{Rule: rule, Key: "k", At: hour + 10_000, Verdict: Holds})
	if !changed || now.State != Firing || now.Quiet {
		t.Errorf("%+v", now)
	}
}
