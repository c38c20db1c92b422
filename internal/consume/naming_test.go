package consume

import (
	"fmt"
	"testing"

	"tallyroll/internal/window"
)

func TestSubjectsThatChangeMakeANewVersion(t *testing.T) {
	t.Parallel()
	const one, two, three = `{"from":1,"subjects":["a.>"]}`, `{"from":11,"subjects":["b.>"]}`, `{"from":21,"subjects":["a.>"]}`
	at := func(seq uint64, versions string) window.Cursor { return window.Cursor{Seq: seq, Naming: versions} }
	ahead := at(5, "["+one+"]")
	ahead.Ahead = window.Ahead{Seq: 12, Done: 1, Parts: 2}
	for _, test := range []struct {
		name    string
		cursors []window.Cursor
		subject string
		want    string
	}{
		{"nothing is counted yet", []window.Cursor{at(0, ""), at(0, "")}, "a.>", "[" + one + "]"},
		{"the same subjects", []window.Cursor{at(7, "["+one+"]"), at(9, "["+one+"]")}, "a.>", "[" + one + "]"},
		{"edited", []window.Cursor{at(7, "["+one+"]"), at(10, "["+one+"]")}, "b.>", "[" + one + "," + two + "]"},
		{"edited, and some counters are ahead", []window.Cursor{ahead, at(10, "["+one+"]")}, "b.>", "[" + one + `,{"from":13,"subjects":["b.>"]}]`},
		{"edited, and not all cursors were written", []window.Cursor{at(7, "["+one+","+two+"]"), at(10, "["+one+"]")}, "b.>", "[" + one + "," + two + "]"},
		{"edited again before anything was read", []window.Cursor{at(7, "["+one+","+two+"]"), at(10, "["+one+","+two+"]")}, "c.>", "[" + one + `,{"from":11,"subjects":["c.>"]}]`},
		{"edited back before anything was read", []window.Cursor{at(7, "["+one+","+two+"]"), at(10, "["+one+","+two+"]")}, "a.>", "[" + one + "]"},
		{"edited back", []window.Cursor{at(7, "["+one+","+two+"]"), at(20, "["+one+","+two+"]")}, "a.>", "[" + one + "," + two + "," + three + "]"},
		{"a shard has lost its cursor", []window.Cursor{at(0, ""), at(15, "["+one+","+two+"]")}, "b.>", "[" + one + "," + two + "]"},
		{"a worker that was fenced had begun a version", []window.Cursor{at(12, "["+one+"]"), at(10, "["+one+","+two+"]")}, "b.>", "[" + one + `,{"from":13,"subjects":["b.>"]}]`},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, _, err := namingsAfter(test.cursors, naming{Subjects: []string{test.subject}})
			if err != nil || got.String() != test.want {
				t.Errorf("%s, %v\nwant %s", got, err, test.want)
			}
		})
	}
	many := namings{}
	for i := range uint64(maxNamings) {
		many = append(many, naming{From: 1 + i, Subjects: []string{fmt.Sprintf("s%d.>", i)}})
	}
	if got, _, err := namingsAfter([]window.Cursor{at(100, many.String())}, naming{Subjects: []string{"new.>"}}); err != nil || len(got) != maxNamings || got[0].From != 2 || got[maxNamings-1].From != 101 {
		t.Errorf("%d versions: %s, %v", len(got), got, err)
	}
	if _, _, err := namingsAfter([]window.Cursor{at(1, "{")}, naming{}); err == nil {
		t.Error("a field that is no list of versions is taken")
	}
}

// The streams whose copies are skipped are part of a version. They are no reason for another one while none
// of the messages was passed.
func TestOriginsThatChangeMakeANewVersion(t *testing.T) {
	t.Parallel()
	const none, one = `{"from":1,"subjects":["a.>"]}`, `{"from":11,"subjects":["a.>"],"origins":["B","C"]}`
	for _, test := range []struct {
		seq          uint64
		before, want string
		origins      []string
	}{
		{10, "[" + none + "]", "[" + none + "," + one + "]", []string{"B", "C"}},
		{12, "[" + none + "," + one + "]", "[" + none + "," + one + "]", []string{"B", "C"}},
		{10, "[" + none + "," + one + "]", "[" + none + "]", nil},
		{12, "[" + none + "," + one + "]", "[" + none + "," + one + `,{"from":13,"subjects":["a.>"]}]`, nil},
	} {
		got, _, err := namingsAfter([]window.Cursor{{Seq: test.seq, Naming: test.before}}, naming{Subjects: []string{"a.>"}, Origins: test.origins})
		if err != nil || got.String() != test.want {
			t.Errorf("%s, %v\nwant %s", got, err, test.want)
		}
	}
}

// Rules are part of a version, as the subjects are.
func TestRulesThatChangeMakeANewVersion(t *testing.T) {
	t.Parallel()
	const none, one, two = `{"from":1,"subjects":["a.>"]}`, `{"from":1,"subjects":["a.>"],"rules":"A"}`, `{"from":11,"subjects":["a.>"],"rules":"B"}`
	at := func(seq uint64, versions string) window.Cursor { return window.Cursor{Seq: seq, Naming: versions} }
	refused := func(upTo uint64, c window.Cursor) window.Cursor {
		c.Refused = upTo
		return c
	}
	for _, test := range []struct {
		name    string
		cursors []window.Cursor
		rules   string
		want    string
		unused  bool
	}{
		{"nothing is counted yet", []window.Cursor{at(0, ""), at(0, "")}, "A", "[" + one + "]", true},
		{"the first rules", []window.Cursor{at(7, "["+none+"]"), at(10, "["+none+"]")}, "B", "[" + none + "," + two + "]", true},
		{"the same rules", []window.Cursor{at(7, "["+one+"]"), at(10, "["+one+"]")}, "A", "[" + one + "]", false},
		{"other rules", []window.Cursor{at(7, "["+one+"]"), at(10, "["+one+"]")}, "B", "[" + one + "," + two + "]", true},
		{"no rules any more", []window.Cursor{at(10, "["+one+"]")}, "", "[" + one + `,{"from":11,"subjects":["a.>"]}]`, true},
		{"other rules, and not all cursors were written", []window.Cursor{at(7, "["+one+","+two+"]"), at(10, "["+one+"]")}, "B", "[" + one + "," + two + "]", true},
		{"back before anything was read", []window.Cursor{at(10, "["+one+","+two+"]")}, "A", "[" + one + "]", false},
		{"back", []window.Cursor{at(7, "["+one+","+two+"]"), at(20, "["+one+","+two+"]")}, "A", "[" + one + "," + two + `,{"from":21,"subjects":["a.>"],"rules":"A"}]`, true},
		{"other rules, and rejects are stored of what no shard has passed", []window.Cursor{refused(10, at(7, "["+one+"]")), at(8, "["+one+"]")}, "B", "[" + one + "," + two + "]", true},
		{"the same, of a version that no shard has passed", []window.Cursor{refused(12, at(8, "["+one+","+two+"]"))}, "C", "[" + one + "," + two + `,{"from":13,"subjects":["a.>"],"rules":"C"}]`, true},
		{"the same, of the first message", []window.Cursor{refused(10, at(0, "["+one+"]"))}, "B", "[" + one + "," + two + "]", true},
		{"rejects are stored of less than a shard has passed", []window.Cursor{refused(5, at(4, "["+one+"]")), at(10, "["+one+"]")}, "B", "[" + one + "," + two + "]", true},
		{"a worker that was fenced had begun a version, and the rejects are of the one before", []window.Cursor{refused(15, at(7, "["+one+"]")), at(10, "["+one+","+two+"]")}, "B", "[" + one + `,{"from":16,"subjects":["a.>"],"rules":"B"}]`, true},
		{"the same, and it gave the first cursor the version after they were stored", []window.Cursor{refused(15, at(7, "["+one+`,{"from":16,"subjects":["a.>"],"rules":"B"}]`)), at(10, "["+one+"]")}, "B", "[" + one + `,{"from":16,"subjects":["a.>"],"rules":"B"}]`, true},
		{"no rules any more, and rejects are stored by rules that no shard has passed", []window.Cursor{refused(12, at(8, "["+one+","+two+"]"))}, "", "[" + one + "," + two + `,{"from":13,"subjects":["a.>"]}]`, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, unused, err := namingsAfter(test.cursors, naming{Subjects: []string{"a.>"}, Rules: test.rules})
			if err != nil || got.String() != test.want || unused != test.unused {
				t.Errorf("%s, %v, %v\nwant %s, %v", got, unused, err, test.want, test.unused)
			}
		})
	}
	versions := namings{{From: 5, Rules: "A"}, {From: 11, Rules: "B"}, {From: 21}}
	for seq, want := range map[uint64]int{0: 3, 9: 3, 10: 2, 19: 2, 20: 1, 100: 1} {
		if got := len(versions.needed(seq)); got != want {
			t.Errorf("after message %d: %d versions, want %d", seq, got, want)
		}
	}
	for seq, want := range map[uint64]uint64{0: 4, 3: 4, 4: 0, 20: 0} {
		if got := versions.lastUnlisted(seq); got != want {
			t.Errorf("after message %d: unknown up to %d, want %d", seq, got, want)
		}
	}
	if got := (namings{{From: 5}, {From: 11}}).lastUnlisted(0); got != 0 {
		t.Errorf("without rules: unknown up to %d", got)
	}
}

func TestNamesAreThoseOfTheVersionOfAMessage(t *testing.T) {
	t.Parallel()
	n := newNamer(namings{{From: 1, Subjects: []string{"hits.>"}}, {From: 11, Subjects: []string{"hits.a.>"}}, {From: 12, Subjects: []string{"other"}}, {From: 20}})
	for _, test := range []struct {
		seq  uint64
		want string
	}{{1, "a.b"}, {10, "a.b"}, {11, "b"}, {15, "hits.a.b"}, {30, "hits.a.b"}} {
		if got := n.counter(test.seq, "hits.a.b"); got != test.want {
			t.Errorf("message %d counts %s, want %s", test.seq, got, test.want)
		}
	}
}
