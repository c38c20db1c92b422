package schema

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
)

// Claim is about a stream: whatever it stored before AsOf is at or before this position, so a cursor at
// exactly this position lacks nothing from before AsOf. It is a fact about the stream: it stays true
// whichever worker wrote it, however late, and whatever Redis has lost. It proves nothing about cursors at
// other positions.
type Claim struct {
	Created int64 // Created, Seq and Stored are those of a Cursor
	Seq     uint64
	Stored  int64
	AsOf    int64 // Unix milliseconds
}

// claimsLast is how long claims stay in Redis that no worker renews. Then as_of is that of the cursors.
const claimsLast = time.Hour

// Renew returns the cursor with the later AsOf that a claim about its position gives it.
func (c Claim) Renew(cursor window.Cursor) window.Cursor {
	if c.IsOf(cursor) {
		cursor.AsOf = max(cursor.AsOf, c.AsOf)
	}
	return cursor
}

// IsOf reports whether the claim is about the position of a cursor.
func (c Claim) IsOf(cursor window.Cursor) bool {
	return c.Created == cursor.Created && c.Seq == cursor.Seq && c.Stored == cursor.Stored
}

// String returns "created seq stored as_of".
func (c Claim) String() string { return fmt.Sprintf("%d %d %d %d", c.Created, c.Seq, c.Stored, c.AsOf) }

func parseClaim(stream, text string) (Claim, error) {
	var n [4]int64
	parts := strings.Split(text, " ")
	for i, part := range parts {
		var err error
		if i < len(n) {
			n[i], err = strconv.ParseInt(part, 10, 64)
		}
		if err != nil || len(parts) != len(n) || !window.IsMoment(n[3]) {
			return Claim{}, fmt.Errorf(`its field %s is %q: "created seq stored as_of" was expected`, stream, text)
		}
	}
	return Claim{Created: n[0], Seq: uint64(n[1]), Stored: n[2], AsOf: n[3]}, nil
}

// ParseClaims parses the claims about listed streams, by name. The error is a *ForeignError.
func (k Keys) ParseClaims(listed map[string]Listed, values map[string]string) (map[string]Claim, error) {
	out := make(map[string]Claim, len(values))
	for stream, text := range values {
		if _, ok := listed[stream]; !ok {
			continue
		}
		claim, err := parseClaim(stream, text)
		if err != nil {
			return nil, &window.ForeignError{Key: k.Claims(), Err: err}
		}
		out[stream] = claim
	}
	return out, nil
}

// Claims are the claims of a namespace.
type Claims struct {
	client *cluster.Client
	key    string
}

// Read reads the claim about a stream; the zero value if it is missing.
func (c Claims) Read(ctx context.Context, stream string) (Claim, error) {
	values, err := c.client.HMGet(ctx, c.key, stream).Result()
	if err != nil {
		return Claim{}, fmt.Errorf("read the claim about %s: %w", stream, cluster.WrapForeign(c.key, err))
	}
	text, exists := values[0].(string)
	if !exists {
		return Claim{}, nil
	}
	claim, err := parseClaim(stream, text)
	if err != nil {
		return Claim{}, &window.ForeignError{Key: c.key, Err: err}
	}
	return claim, nil
}

// Write writes claims, by stream. It compares this worker's last claims, in before, with those in Redis, and
// returns the streams that differ: Redis may have lost commits too, or another worker reads the stream.
func (c Claims) Write(ctx context.Context, claims, before map[string]Claim) (changed []string, err error) {
	streams := slices.Sorted(maps.Keys(claims))
	values := make([]any, 0, 2*len(streams))
	for _, stream := range streams {
		values = append(values, stream, claims[stream].String())
	}
	var had *redis.SliceCmd
	cmds, err := c.client.Transact(ctx, c.key, func(p redis.Pipeliner) { // the key never lacks its expiry
		had = p.HMGet(ctx, c.key, streams...)
		p.HSet(ctx, c.key, values...)
		p.Expire(ctx, c.key, claimsLast)
	})
	if err != nil {
		return nil, fmt.Errorf("write %d claims: %w", len(claims), cluster.WrapForeignReply(cmds, err))
	}
	for i, stream := range streams {
		if was, ok := before[stream]; ok && had.Val()[i] != was.String() {
			changed = append(changed, stream)
		}
	}
	return changed, nil
}

// Remove removes the claim about a stream that no longer exists.
func (c Claims) Remove(ctx context.Context, stream string) error {
	if err := c.client.HDel(ctx, c.key, stream).Err(); err != nil {
		return fmt.Errorf("remove the claim about %s: %w", stream, cluster.WrapForeign(c.key, err))
	}
	return nil
}
