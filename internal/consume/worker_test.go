package consume

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/boot"
	"tallyroll/tests/stack"
)

func TestGlobs(t *testing.T) {
	for _, test := range []struct {
		globs, match, not string // names, space-separated
	}{
		{"HITS*", "HITS HITS_0 HITS_12 HITSX", "HITS_REJECTED XHITS hits ORDERS"},
		{"HITS", "HITS", "HITS_0 HITS_REJECTED"},
		{"*", "HITS A a-b", "HITS_REJECTED"},
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
			if !g.match(name) {
				t.Errorf("%q does not match %s", test.globs, name)
			}
		}
		for _, name := range strings.Fields(test.not) {
			if g.match(name) {
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

// parse is the worker's settings, validated, from an environment.
func parse(t testing.TB, env ...string) Settings {
	t.Helper()
	var s Settings
	if err := boot.Parse(&s, env...); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCreateStreams(t *testing.T) {
	for _, test := range []struct {
		name     string
		env      []string
		subjects map[string]string
	}{
		{"one", nil, map[string]string{"HITS": "hits.>"}},
		{"subject", []string{"INGEST_SUBJECT=clicks.*"}, map[string]string{"HITS": "clicks.*"}},
		{"partitions", []string{"INGEST_PARTITIONS=3"}, map[string]string{"HITS_0": "hitp.0.>", "HITS_1": "hitp.1.>", "HITS_2": "hitp.2.>"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			js := stack.NATS(t).JetStream()
			if err := ensureRejected(t.Context(), js, 1, time.Hour); err != nil {
				t.Fatal(err)
			}
			w := &worker{settings: parse(t, append(test.env, "INGEST_MAX_AGE=3h")...), js: js, log: zerolog.Nop()}
			if names, err := w.matching(t.Context()); err != nil || len(names) > 0 {
				t.Fatalf("streams before: %v %v", names, err)
			}
			for range 2 { // again where they are there already: another worker was faster
				names, err := w.create(t.Context())
				if err != nil || len(names) != len(test.subjects) {
					t.Fatalf("created %v: %v", names, err)
				}
			}
			names, err := w.matching(t.Context())
			if err != nil || len(names) != len(test.subjects) {
				t.Fatalf("streams after: %v %v", names, err)
			}
			for _, name := range names {
				handle, err := js.Stream(t.Context(), name)
				if err != nil {
					t.Fatal(err)
				}
				config := handle.CachedInfo().Config
				if !slices.Equal(config.Subjects, []string{test.subjects[name]}) || config.MaxAge != 3*time.Hour || config.Storage != jetstream.FileStorage {
					t.Errorf("%s: %+v", name, config)
				}
			}
		})
	}
	t.Run("not matching", func(t *testing.T) {
		w := &worker{settings: parse(t, "INGEST_STREAMS=CLICKS"), js: stack.NATS(t).JetStream(), log: zerolog.Nop()}
		if _, err := w.create(t.Context()); err == nil || !strings.Contains(err.Error(), "CLICKS") {
			t.Errorf("error %v, want one that names INGEST_STREAMS", err)
		}
	})
}
