package consume

import (
	"strconv"
	"strings"
	"time"

	"tallyroll/internal/window/schema"
)

// simClaims is the key of the claims.
const simClaims = simNamespace + ":idle"

// claim is the claim about the stream. The caller holds the lock.
func (r *simRedis) claim() schema.Claim {
	text, _ := r.get(simClaims).value(simName)
	var n [4]int64
	for i := range n {
		number, rest, _ := strings.Cut(text, " ")
		n[i], _ = strconv.ParseInt(number, 10, 64)
		text = rest
	}
	return schema.Claim{Created: n[0], Seq: uint64(n[1]), Stored: n[2], AsOf: n[3]}
}

// change is a change of one key.
func (r *simRedis) change(key string, to *simEntry) {
	mark := len(r.undo)
	r.put(key, to)
	r.committed(mark)
}

func (r *simRedis) loseClaims() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.change(simClaims, nil)
}

// claimAgain lets an old claim arrive: its worker has been paused, or the network was slow.
func (r *simRedis) claimAgain(back int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if back >= len(r.claims) {
		return
	}
	old := r.claims[len(r.claims)-1-back]
	r.change(simClaims, &simEntry{fields: []simField{{simName, old}}, expires: r.now() + time.Hour.Milliseconds()})
}
