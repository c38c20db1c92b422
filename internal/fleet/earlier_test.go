package fleet

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"tallyroll/tests/stack"
)

// What a version before tokens writes is a member like any other, and that version reads what this one writes.
func TestMembersOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	old := `{"incarnation":"ABC","joined":5,"started":"2026-11-21T10:00:00Z","status":"127.0.0.1:9090","streams":["HITS*"],"holds":["HITS_0"],"leaving":true}`
	var got member
	err := json.Unmarshal([]byte(old), &got)
	want := member{Joined: 5, Started: "2026-11-21T10:00:00Z", Status: "127.0.0.1:9090", Streams: []string{"HITS*"}, Holds: []string{"HITS_0"}, Leaving: true}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}

	want.Name = "pod-0"
	value, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var earlier struct {
		Incarnation string   `json:"incarnation"`
		Joined      uint64   `json:"joined"`
		Started     string   `json:"started"`
		Status      string   `json:"status"`
		Streams     []string `json:"streams"`
		Holds       []string `json:"holds"`
		Leaving     bool     `json:"leaving,omitempty"`
	}
	if err := json.Unmarshal(value, &earlier); err != nil {
		t.Fatal(err)
	}
	if earlier.Joined != 5 || !slices.Equal(earlier.Streams, want.Streams) || !slices.Equal(earlier.Holds, want.Holds) || !earlier.Leaving {
		t.Errorf("it reads %+v", earlier)
	}
}

// A worker of the version before tokens writes its name where a token stands, and plans with what it finds there.
func TestFleetBesideAnEarlierVersion(t *testing.T) {
	t.Parallel()
	server, streams := stack.NATS(t), streamNames(2)
	first := newFellow(t, server, "test", "id", "first", streams...).start() // makes the bucket
	shared(t, streams, first)
	first.quit()
	bucket := openBucket(t, server)
	put := func(key, value string) {
		if _, err := bucket.PutString(t.Context(), key, value); err != nil {
			t.Error(err)
		}
	}
	put("id.new", "of a later version") // which is no concern of this one
	// The earlier one has been there for longer, so it plans; it reads HITS_0.
	a := newFellow(t, server, "test", "id", "a", streams...)
	old := func() {
		put("id.worker.web-1", `{"incarnation":"X","joined":1,"started":"","status":"","streams":["HITS*"],"holds":["HITS_0"]}`)
		put("id.plan", fmt.Sprintf(`{"HITS_0":"web-1","HITS_1":%q}`, a.token))
	}
	old()
	a.start()
	stack.Eventually(t, soon, "the new one to follow the old one's plan", func() (bool, string) {
		old()
		s := a.Share()
		return s.Workers == 2 && slices.Equal(a.mine(), streams[1:]), fmt.Sprintf("%+v", s)
	})
	b := newFellow(t, server, "test", "id", "web-1", streams...).start() // its name is no key
	stack.Eventually(t, soon, "three workers", func() (bool, string) {
		old()
		return a.Share().Workers == 3 && b.Share().Workers == 3, fmt.Sprintf("%+v", b.Share())
	})
	if got := b.mine(); len(got) > 0 {
		t.Errorf("another process of the old one's name takes its streams: %v", got)
	}
	shared(t, streams, a, b) // the old one is silent: its stream is theirs
}
