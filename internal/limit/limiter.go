package limit

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/redis/go-redis/v9"
)

// DefaultTimeout bounds how long a decision waits for Redis.
const DefaultTimeout = 500 * time.Millisecond

// Limiter decides about takes. Its methods may be called concurrently.
type Limiter struct {
	*process
	namespace string
	shadow    shadow // the first decider
	shares    *shares
	refusals  *refusals
	fallback  *fallback
	store     *redisStore

	// Counted is called with the hits that a decision has for counters of its limit. It must not block. Set it
	// before the first take; nil counts nothing.
	Counted func(counters CounterNames, limit, key string, n int64)
}

// process is what the deciders of a Limiter share.
type process struct {
	now        func() time.Time
	timeout    func() time.Duration // bounds how long a decision waits for Redis
	background sync.WaitGroup       // give-backs under way
}

// request is what a decider decides about, or asks the next decider. The slices have an element per take.
type request struct {
	takes   []Take
	keys    []string  // in Redis
	asked   time.Time // when the request was about to be sent to Redis
	entries []entry   // in this process's accounts; nil if no account is involved
	fixed   []int     // indexes of takes that need no hits: of fixed limits, or never fitting ones in shadow mode
	count   bool      // count the hits if all takes fit
	ids     bool      // a take has an id, so only Redis can say whether it was counted before
	settle  bool      // settle the takes; count is set, too
	share   bool      // the one take is a whole share, which no fail mode can replace
	renew   bool      // the one take fits only if its lease is held, or owed by this process
	release bool      // the one take, of -1 hits, frees the slot of its lease; no fail mode does
	down    error     // why Redis does not decide; nil if it may be asked
}

// verdict is a decider's answer.
type verdict struct {
	Answer
	states  []state  // Redis's results for the takes; nil if it did not decide
	account *account // where a share's hits are pending; nil without one
}

// New returns a limiter that keeps hits in Redis under the namespace. The client must not retry commands
// (redisconn.Settings.Client returns such clients). A decision waits for Redis for at most timeout.
func New(client redis.UniversalClient, namespace string, timeout time.Duration) *Limiter {
	p := &process{now: time.Now, timeout: func() time.Duration { return timeout }}
	_, cluster := client.(*redis.ClusterClient)
	store := &redisStore{process: p, client: client, scripts: scripts}
	memory := &refusals{process: p}
	last := &remote{process: p, store: store, cluster: cluster, takenBack: memory.forget}
	own := &accounts{process: p, next: last}
	without := &fallback{process: p, accounts: own, remote: last}
	memory.next = without
	held := &shares{process: p, next: memory, fallback: without, accounts: own}
	return &Limiter{process: p, namespace: namespace, shadow: shadow{held}, shares: held, refusals: memory,
		fallback: without, store: store}
}

// Wait gives back unspent shares, and waits for background work. Call it after the last take, and before the
// client is closed.
func (l *Limiter) Wait() {
	l.shares.giveBackAll()
	l.background.Wait()
}

// Take decides about takes and counts them, all or none. It refuses a take if its hits and those in the
// window exceed the limit's max. A limit in shadow mode refuses nothing: a take that it would refuse is not
// counted under it, and counts under the others as if it were not there.
//
// Up to MaxTogether takes whose keys one script can reach are atomic: no other caller sees only some of them
// counted. On a cluster, keys of different callers can be on different nodes. Then Take counts one at a time,
// and of more than MaxTogether as many at a time, and gives back what it counted if a later one is refused.
// Others may be refused meanwhile, but none is allowed too much.
//
// The error is a *TakeError for bad takes, an *UnavailableError if Redis does not decide and the fail mode of
// one of the limits is closed, a *ForbiddenError or a *ForeignError. After an error of ctx, the takes may
// have been counted.
func (l *Limiter) Take(ctx context.Context, takes []Take) (Answer, error) {
	return l.decide(ctx, takes, count)
}

// Look decides like Take and counts nothing.
func (l *Limiter) Look(ctx context.Context, takes []Take) (Answer, error) {
	return l.decide(ctx, takes, look)
}

func (l *Limiter) decide(ctx context.Context, takes []Take, m mode) (Answer, error) {
	r, err := l.newRequest(takes, m)
	if err != nil {
		return Answer{}, err
	}
	v, err := l.shadow.decide(ctx, &r)
	if r.count && l.Counted != nil {
		l.countHits(&v.Answer, r.settle)
	}
	return v.Answer, err
}

// Reset deletes a key's hits. Its error is one of Take's: without Redis always an *UnavailableError.
func (l *Limiter) Reset(ctx context.Context, take Take) error {
	key := l.key(&take)
	l.refusals.forget(key)
	l.shares.forget(key)
	return l.fallback.reset(ctx, take.Limit, key)
}

// Reserved returns the unspent hits of this process by the names of limits.
func (l *Limiter) Reserved() map[string]int64 { return l.shares.unspent() }

// newRequest checks takes and names their keys. A take in shadow mode that can never fit is no error, and
// does not affect the others. The error is a *TakeError.
func (l *Limiter) newRequest(takes []Take, m mode) (request, error) {
	r := request{takes: takes, keys: make([]string, len(takes)), count: m != look, settle: m == settle}
	together := int64(0) // hits of policies that bound those of a request
	for i := range takes {
		take, own, t := &takes[i], int64(0), takes[i].Limit.Policy.Traits()
		if t.MaxTake > 0 && !take.Limit.isFixed() {
			own = max(0, take.N)
		}
		tooMany := take.N > take.Limit.Max && !take.Limit.Unlimited && !r.settle
		tooLarge := own > 0 && together+own > t.MaxTake
		if take.Limit.Mode == Shadow && (tooMany || tooLarge) && !r.settle {
			r.fixed = append(r.fixed, i)
			continue
		}
		if err := cmp.Or(take.checkID(m), take.checkLease(r.count)); err != nil {
			return request{}, err
		}
		together += own
		r.keys[i] = l.key(take)
		r.ids = r.ids || take.ID != ""
		switch {
		case slices.Contains(r.keys[:i], r.keys[i]):
			return request{}, &TakeError{*take, "key", "the same limit and key twice: write one take with the sum " +
				"as its n"}
		// what was taken before max became 0 can be settled
		case take.Limit.Unlimited, take.Limit.isFixed() && !r.settle:
			r.fixed = append(r.fixed, i)
		case tooMany:
			return request{}, &TakeError{*take, "n", fmt.Sprintf("%d hits at once: the limit never allows more than %d",
				take.N, take.Limit.Max)}
		case tooLarge:
			return request{}, &TakeError{*take, "n", fmt.Sprintf("%d hits of the policy %s at once: at most %d are "+
				"allowed in one request: ask several times, or use the policy stream", together, t.Policy, t.MaxTake)}
		}
	}
	return r, nil
}

var leasePattern = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,64}$`)

// checkLease refuses a take that no lease can hold. A check that counts nothing needs no lease.
func (t *Take) checkLease(count bool) error {
	switch {
	case !t.Limit.Policy.Traits().Slots && t.Lease != "":
		return &TakeError{*t, "lease", "only under a limit with " + slotPolicies()}
	case !t.Limit.Policy.Traits().Slots:
		return nil
	case t.N != 0 && t.N != 1:
		return &TakeError{*t, "n", "a take acquires 1 slot of a concurrent limit, and POST /v1/release frees it"}
	case t.Lease == "" && (!count || t.N == 0):
		return nil
	case !leasePattern.MatchString(t.Lease):
		return &TakeError{*t, "lease", "must be 1 to 64 letters, digits, _, -, . and :"}
	}
	return nil
}

// key returns the key in Redis of a take's hits; the number in braces is the hash tag:
//
//	<ns>:{<tag>}:limit:<policy>:<window>:<limit>:<key>    window: ms; limit: empty if the request has numbers
//
// The tag depends only on the caller's key, so one script can decide about all limits of one client.
func (l *Limiter) key(t *Take) string {
	out := append(make([]byte, 0, 128), l.namespace...)
	out = strconv.AppendUint(append(out, ":{"...), hashTag(t.Caller), 10)
	out = append(append(out, "}:limit:"...), t.Limit.Policy...)
	out = append(out, ':')
	if t.Limit.Period != nil {
		out = append(out, t.Limit.Period.String()...)
	} else {
		out = strconv.AppendInt(out, t.Limit.Window.Milliseconds(), 10)
	}
	out = append(append(append(append(out, ':'), t.Limit.Name...), ':'), t.Key...)
	return string(out)
}

// hashTag returns one of 256 tags: enough to spread keys evenly over the nodes of a cluster.
func hashTag(key string) uint64 { return xxhash.Sum64String(key) % 256 }
