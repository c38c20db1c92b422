package schema

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
)

// CursorRecord is a cursor as Redis keeps it.
type CursorRecord struct {
	window.Cursor
	// Opened counts transactions: the first command increments it, the last copies it to closed; see IsTorn.
	Opened, Closed int64
	// By is the writer that last took the cursor, or moved it over hits. After a loss, another worker can
	// reach the same position over other messages, and this writer's memory of expiries and names is wrong.
	By string
	// Declared is the operator's declaration. No commit writes it.
	Declared Declaration
}

// IsSameAs reports whether two records come from the same commits. It ignores as_of, which every idle worker
// may move, the marks of torn transactions, and declarations. For the rare fields see HasSameRare.
func (r CursorRecord) IsSameAs(o CursorRecord) bool {
	r.AsOf, r.Naming, r.Refused, r.Settings, r.Opened, r.Closed, r.Declared = o.AsOf, o.Naming, o.Refused, o.Settings,
		o.Opened, o.Closed, o.Declared
	return r == o
}

// IsTorn reports whether Redis has run a part of a transaction. If Redis 7.0 is killed while it writes one to
// its append-only file, its next start leaves the beginning there, and the start after that runs it with the
// following transaction, so opened is one too high. Absolute marks would not show it, because the following
// transaction overwrites them.
func (r CursorRecord) IsTorn() bool { return r.Opened != r.Closed }

// MarkTorn makes a cursor IsTorn, without a transaction.
func (s *Store) MarkTorn(ctx context.Context, key string) error {
	if err := s.Client.HIncrBy(ctx, key, "opened", 1).Err(); err != nil {
		return fmt.Errorf("mark cursor %s as torn: %w", key, err)
	}
	return nil
}

// HasSameRare reports whether the RareFields are equal. Each change of one of them gets a new "by".
func (r CursorRecord) HasSameRare(o CursorRecord) bool {
	return r.Naming == o.Naming && r.Refused == o.Refused && r.Settings == o.Settings
}

var CursorFields = []string{"created", "seq", "stored", "latest", "as_of", "incomplete_before", "opened", "closed",
	"ahead", "by", "ended", declaredField}

const (
	wholeNumbers = 8 // how many of CursorFields, from the first on, are whole numbers
	openedField  = 6 // where opened stands among them
)

var CursorArgs = func() (out []any) {
	for _, field := range CursorFields {
		out = append(out, field)
	}
	return out
}()

// RareFields are read when a writer is opened, and written when they change: the naming can be long.
var RareFields = []string{"naming", "refused", "settings"}

// Values returns the arguments of HSET that turn before into c. The transaction has incremented opened.
func (c CursorRecord) Values(before CursorRecord) []any {
	out := []any{
		"created", c.Created, "seq", c.Seq, "stored", c.Stored, "latest", c.Latest, "as_of", c.AsOf,
		"incomplete_before", c.IncompleteBefore, "closed", c.Closed, "ahead", c.Ahead.String(), "by", c.By,
	}
	if c.Ended != before.Ended {
		out = append(out, "ended", c.Ended)
	}
	if c.Naming != before.Naming {
		out = append(out, "naming", c.Naming)
	}
	if c.Refused != before.Refused {
		out = append(out, "refused", c.Refused)
	}
	if c.Settings != before.Settings {
		out = append(out, "settings", c.Settings)
	}
	return out
}

func parseAhead(text string) (a window.Ahead, err error) {
	if text == "" {
		return window.Ahead{}, nil
	}
	_, err = fmt.Sscanf(text, "%d %d %d/%d", &a.Seq, &a.Stored, &a.Done, &a.Parts)
	if err != nil || a.String() != text || a.Done < 1 || a.Done >= a.Parts {
		return window.Ahead{}, fmt.Errorf("cursor field ahead is %q: \"seq stored done/parts\" was expected", text)
	}
	return a, nil
}

// ParseCursor parses the reply to HMGET key with CursorFields, perhaps with RareFields. found is false
// without a record. If it cannot be read, the error is a *ForeignError.
func ParseCursor(key string, reply *redis.SliceCmd) (c CursorRecord, found bool, err error) {
	if err := reply.Err(); err != nil {
		return CursorRecord{}, false, cluster.WrapForeign(key, err)
	}
	if c, found, err = parseRecord(reply.Val()); err != nil {
		return CursorRecord{}, false, &window.ForeignError{Key: key, Err: err}
	}
	return c, found, nil
}

func parseRecord(reply []any) (c CursorRecord, found bool, err error) {
	missing := 0
	text := make([]string, len(reply))
	for i, v := range reply {
		if v == nil {
			missing++
			continue
		}
		s, ok := v.(string)
		if !ok {
			return c, false, fmt.Errorf("cursor field %d is a %T", i, v)
		}
		text[i] = s
	}
	return parseFields(text, missing)
}

// parseFields parses CursorFields, perhaps with RareFields. Missing fields are empty; all missing: not found.
func parseFields(text []string, missing int) (c CursorRecord, found bool, err error) {
	if extra := len(text) - len(CursorFields); extra != 0 && extra != len(RareFields) {
		return c, false, fmt.Errorf("cursor record has %d fields, want %d", len(text), len(CursorFields))
	}
	if missing == len(text) {
		return c, false, nil
	}
	if missing == len(text)-1 && text[openedField] != "" { // the torn beginning of the transaction that was to write it
		c.Opened, err = strconv.ParseInt(text[openedField], 10, 64)
		return c, false, err
	}
	for i, dst := range [wholeNumbers]*int64{&c.Created, nil, &c.Stored, &c.Latest, &c.AsOf, &c.IncompleteBefore,
		&c.Opened, &c.Closed} {
		if dst == nil {
			c.Seq, err = strconv.ParseUint(text[i], 10, 64)
		} else {
			*dst, err = strconv.ParseInt(text[i], 10, 64)
		}
		if err != nil {
			return CursorRecord{}, false, fmt.Errorf("cursor field %s is %q: a whole number was expected",
				CursorFields[i], text[i])
		}
	}
	if !window.IsMoment(c.AsOf) {
		return CursorRecord{}, false, fmt.Errorf("cursor field as_of is %d: Unix milliseconds up to the year 9999 "+
			"were expected", c.AsOf)
	}
	if c.Ahead, err = parseAhead(text[wholeNumbers]); err != nil {
		return CursorRecord{}, false, err
	}
	c.By, c.Ended = text[wholeNumbers+1], text[wholeNumbers+2] == "1"
	if c.Declared, err = parseDeclaration(text[wholeNumbers+3]); err != nil {
		return CursorRecord{}, false, err
	}
	if rare := text[len(CursorFields):]; len(rare) > 0 {
		c.Naming, c.Settings = rare[0], rare[2]
		if rare[1] != "" { // or there has been no reject
			if c.Refused, err = strconv.ParseUint(rare[1], 10, 64); err != nil {
				return CursorRecord{}, false, fmt.Errorf("cursor field refused is %q: a whole number was expected",
					rare[1])
			}
		}
	}
	return c, true, nil
}

func ParseCursorReply(r cluster.Reply) (c CursorRecord, found bool, err error) {
	fields, err := r.Elements()
	if err != nil {
		return CursorRecord{}, false, err
	}
	text, missing := make([]string, fields.Left), 0
	for i := range text {
		var exists bool
		if text[i], exists, err = fields.Next(); err != nil {
			return CursorRecord{}, false, err
		}
		if !exists {
			missing++
		}
	}
	if c, found, err = parseFields(text, missing); err != nil {
		return CursorRecord{}, false, &window.ForeignError{Key: r.Key, Err: err}
	}
	return c, found, nil
}

// Declaration is an operator's statement that hits from before counting began were imported, so that none is
// missing. It moves only the moment at which counting began: every mark of a loss still holds. It is a field
// of the cursors, because Redis cannot lose a shard's hits and keep its cursors.
type Declaration struct {
	From int64  // Unix milliseconds: no hit from here on is missing; 0: nothing was declared
	At   int64  // when it was made, Unix milliseconds
	By   string // who made it
}

const declaredField = "complete_from"

func (d Declaration) value() string { return fmt.Sprintf("%d %d %s", d.From, d.At, d.By) }

func parseDeclaration(text string) (Declaration, error) {
	if text == "" {
		return Declaration{}, nil
	}
	from, rest, _ := strings.Cut(text, " ")
	at, by, found := strings.Cut(rest, " ")
	out := Declaration{By: by}
	var okFrom, okAt bool
	out.From, okFrom = parseMoment(from)
	out.At, okAt = parseMoment(at)
	if !found || !okFrom || !okAt {
		return Declaration{}, fmt.Errorf("cursor field %s is %q: two moments in Unix milliseconds and a name were "+
			"expected", declaredField, text)
	}
	return out, nil
}

// ErrUncounted means that a shard has no cursor that could hold a declaration.
var ErrUncounted = errors.New("no worker has counted a stream into all shards yet: let a worker count, and " +
	"declare again")

// Declare writes a declaration into all cursors of the listed streams, or removes it if From is 0. A failure
// can leave it in some cursors: answers about the other shards are as before, until it is repeated. counted
// is when counting began, and missing the latest moment (Unix milliseconds) before which hits are known to be
// missing, over all shards; neither heeds declarations.
func Declare(ctx context.Context, s *Store, d Declaration) (counted, missing int64, err error) {
	layout, err := s.Layout(ctx)
	if err != nil {
		return 0, 0, err
	}
	listed, err := s.Streams(ctx)
	if err != nil {
		return 0, 0, err
	}
	var keys []string
	for shard := range layout.Shards {
		began := int64(0)
		for stream := range listed {
			key := s.Keys.Cursor(shard, stream)
			c, found, err := ParseCursor(key, s.Client.HMGet(ctx, key, CursorFields...))
			if err != nil {
				return 0, 0, fmt.Errorf("read cursor %s: %w", key, err)
			}
			if found {
				keys = append(keys, key)
				if created := c.Created / 1e6; began == 0 || created < began {
					began = created
				}
				missing = max(missing, c.IncompleteBefore)
			}
		}
		if began == 0 {
			return 0, 0, ErrUncounted
		}
		counted = max(counted, began)
	}
	if d.From >= counted {
		return counted, missing, nil
	}
	for _, key := range keys {
		if err := declareIn(ctx, s, key, d); err != nil {
			return counted, missing, fmt.Errorf("write cursor %s: %w", key, err)
		}
	}
	return counted, missing, nil
}

// declareIn tries again if the cursor is changed meanwhile. A cursor that is gone stays so.
func declareIn(ctx context.Context, s *Store, key string, d Declaration) error {
	for {
		err := s.Client.Watch(ctx, []string{key}, func(tx *cluster.WatchedTx) error {
			var created *redis.StringCmd
			if err := tx.Read(ctx, func(p redis.Pipeliner) { created = p.HGet(ctx, key, "created") }); err != nil {
				return err
			}
			if err := created.Err(); errors.Is(err, redis.Nil) {
				return nil
			} else if err != nil {
				return cluster.WrapForeign(key, err)
			}
			_, err := tx.Exec(ctx, func(p redis.Pipeliner) {
				if d.From == 0 {
					p.HDel(ctx, key, declaredField)
				} else {
					p.HSet(ctx, key, declaredField, d.value())
				}
			})
			return err
		})
		if !errors.Is(err, redis.TxFailedErr) || ctx.Err() != nil {
			return err
		}
	}
}
