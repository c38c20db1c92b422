package watch

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	"tallyroll/internal/watch/history"
)

// stateSubject returns the subject of a rule's key. It hashes the key, which may have any characters.
func stateSubject(namespace, rule, key string) string {
	sum := sha256.Sum256([]byte(key))
	return history.Subject(namespace, "state."+rule+"."+hex.EncodeToString(sum[:16]))
}

// entry is a record in the stream.
type entry struct {
	Record
	seq    uint64 // 0: the stream has no record of its rule and key any more
	stored time.Time
}

// change returns where the change was first stored, which gives its id and its age.
func (e *entry) change() history.Origin {
	if e.Repeats != nil {
		return *e.Repeats
	}
	return history.Origin{Seq: e.seq, Stored: e.stored}
}

// draft is a record to be stored if its subject's last message has the expected sequence.
type draft struct {
	subject     string
	expectedSeq uint64
	Record
}

// heartbeat keeps the leader's lease. Without one, another process takes over.
type heartbeat struct {
	By          string    `json:"by"`              // the leader's unique name; empty: it has released leadership
	At          time.Time `json:"at"`              // of the evaluation, by Redis's clock
	Fingerprint string    `json:"file"`            // of its file
	NoRedis     bool      `json:"blind,omitempty"` // it could not reach Redis
	Rules       int       `json:"rules"`
}

// progress is how far a target was notified: of every change up to Cursor, except those in Waiting. It is the
// lease, too: a process that publishes it with the expected sequence may deliver.
type progress struct {
	By     string `json:"by,omitempty"` // the process that delivers; empty: none does
	Cursor uint64 `json:"cursor"`       // a sequence of the stream
	// ascending sequences up to Cursor; in JSON, each but the first is the difference from the previous one
	Waiting []uint64 `json:"waiting,omitempty"`
	Gone    bool     `json:"gone,omitempty"` // WATCH_FILE no longer has the target
	// the sequence of the progress that this one replaces; 0: none
	Replaces uint64 `json:"replaces,omitempty"`
}

// includes reports whether the target was notified of the change that the stream has at seq.
func (p *progress) includes(seq uint64) bool {
	_, waits := slices.BinarySearch(p.Waiting, seq)
	return seq <= p.Cursor && !waits
}

// clamp corrects the progress that is stored at seq if it covers later messages. Its process had read these
// before the stream became an older copy, which has, or will have, others in their place. The copy has the
// progress that was replaced, so only what precedes that is the same in both.
func (p *progress) clamp(seq uint64) {
	if p.Cursor < seq {
		return
	}
	p.Cursor = seq - 1
	if p.Replaces > 0 { // 0: it is the first, or an earlier build stored it
		p.Cursor = p.Replaces
	}
	p.Waiting = slices.DeleteFunc(p.Waiting, func(waiting uint64) bool { return waiting > p.Cursor })
}

func (p progress) MarshalJSON() ([]byte, error) {
	p.Waiting = slices.Clone(p.Waiting)
	for i := len(p.Waiting) - 1; i > 0; i-- {
		p.Waiting[i] -= p.Waiting[i-1]
	}
	type plain progress
	return json.Marshal(plain(p))
}

func (p *progress) UnmarshalJSON(data []byte) error {
	type plain progress
	err := json.Unmarshal(data, (*plain)(p))
	for i := 1; i < len(p.Waiting); i++ {
		p.Waiting[i] += p.Waiting[i-1]
	}
	return err
}

// lease is a target's progress as this process last read it: the process in By may deliver.
type lease struct {
	progress
	seq    uint64    // 0: the stream has no progress
	readAt time.Time // by this machine's clock
}
