package fleet

import (
	"strings"
	"testing"
)

func TestGlobsMatchStreams(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		globs, match, not string // names, space-separated
	}{
		{"HITS*", "HITS HITS_0 HITS_12 HITSX", "HITS_REJECTED XHITS hits ORDERS"},
		{"HITS", "HITS", "HITS_0 HITS_REJECTED"},
		{"*", "HITS A a-b KV_other", "HITS_REJECTED KV_tallyroll_tallyroll"},
		{"HITS_REJECTED", "", "HITS_REJECTED HITS"},
		{"HITS_REJECTE?,HITS_[A-Z]*", "HITS_A", "HITS_REJECTED"},
		{"HITS_?", "HITS_0 HITS_9", "HITS HITS_10"},
		{" A , B* ", "A B BC", "AB C"},
	} {
		var g Globs
		if err := g.UnmarshalText([]byte(test.globs)); err != nil {
			t.Errorf("%q: %v", test.globs, err)
			continue
		}
		for _, name := range strings.Fields(test.match) {
			if !g.Match(name) {
				t.Errorf("%q does not match %s", test.globs, name)
			}
		}
		for _, name := range strings.Fields(test.not) {
			if g.Match(name) {
				t.Errorf("%q matches %s", test.globs, name)
			}
		}
	}
	for _, bad := range []string{"", ",", "A,", "A,,B", "[", "A,[z-a", `A\`} {
		if err := new(Globs).UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	g := Globs{"old"}
	if err := g.UnmarshalText([]byte("A, B*")); err != nil || g.String() != "A,B*" {
		t.Errorf("%v, %v", g, err)
	}
}
