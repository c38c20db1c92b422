package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/human"
	"tallyroll/internal/unique"
	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
)

// Inspector reads a namespace as it is, and writes nothing. It is not safe for concurrent use.
type Inspector struct {
	store   *schema.Store
	layout  window.Layout
	streams []string // whose cursors are read
}

// New returns an Inspector that reads the cursors of these streams.
func New(s *schema.Store, layout window.Layout, streams []string) *Inspector {
	return &Inspector{store: s, layout: layout, streams: streams}
}

// Place is a cursor, if there is one.
type Place struct {
	window.Cursor
	Exists   bool
	Torn     bool // Redis has run a part of a transaction, and no commit has reported it yet
	Declared schema.Declaration
}

// Found is what one transaction has read of some counters of a shard.
type Found struct {
	Places   []Place // of the streams, in their order
	At       int64   // by Redis's clock, Unix seconds rounded up: what expires by then may be missing
	Until    int64   // Unix milliseconds: no cell that begins later was looked for
	Counters []FoundCounter
	Hashes   int // asked for; and unique cells that there are
}

// FoundCounter is what Redis holds of a counter.
type FoundCounter struct {
	Name    string
	Cells   []FoundCell
	Uniques []FoundUnique
	Bad     []*window.ForeignError // hashes and unique cells that cannot be read, as a whole or in part
}

// FoundUnique is a cell of a unique tier as Redis holds it.
type FoundUnique struct {
	window.CellID
	Sketch *unique.Sketch
}

// mergeCells adds up what a counter has of a cell in its hash and in logs.
func (c *FoundCounter) mergeCells() {
	slices.SortFunc(c.Cells, func(a, b FoundCell) int {
		return cmp.Or(cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Cell, b.Cell))
	})
	merged := c.Cells[:0]
	for _, f := range c.Cells {
		if last := len(merged) - 1; last >= 0 && merged[last].CellID == f.CellID {
			merged[last].N = window.AddCounts(merged[last].N, f.N)
		} else {
			merged = append(merged, f)
		}
	}
	c.Cells = merged
}

// FoundCell is a cell as Redis holds it, whether in a hash or in logs.
type FoundCell struct {
	window.CellID
	N int64
}

type askedHash struct {
	counter int
	tier    int
	epoch   int64
	key     string
	hash    *redis.MapStringStringCmd
	log     *redis.StringCmd // in place of hash
}

type askedUniques struct {
	cells []window.CellID
	reply *redis.SliceCmd
}

// Read reads, in one transaction, all hashes and unique cells of a shard's counters that expire after now,
// and the shard's cursors. now is by Redis's clock (Unix milliseconds), and may be in the past. latest is
// when the latest hit was stored, by NATS's clock. Unique cells are read of the counters that withUniques
// selects. Errors of single hashes are in Found.
func (i *Inspector) Read(ctx context.Context, shard int, counters []string, now, latest int64,
	withUniques func(counterHash uint64) bool) (Found, error) {
	out := Found{Until: max(now, latest) + window.HashAhead, Counters: make([]FoundCounter, len(counters))}
	var asked []askedHash
	tiers := i.layout.StoredTiers()
	uniques := make([]askedUniques, len(counters))
	for n, name := range counters {
		out.Counters[n].Name = name
		hash := window.HashCounter([]byte(name))
		for tier, t := range tiers {
			for epoch := t.FirstEpoch(hash, now); epoch <= t.EpochAt(out.Until-1); epoch++ {
				asked = append(asked, askedHash{counter: n, tier: tier, epoch: epoch})
			}
		}
	}
	out.Hashes = len(asked)
	for n, name := range counters {
		hash, u := window.HashCounter([]byte(name)), &uniques[n]
		if !withUniques(hash) {
			continue
		}
		for tier, t := range i.layout.UniqueTiers {
			for cell := t.FirstEpoch(hash, now); cell <= t.CellAt(out.Until-1); cell++ {
				u.cells = append(u.cells, window.CellID{Tier: tier, Cell: cell})
			}
		}
	}
	var cursors []*redis.SliceCmd
	var clock *redis.TimeCmd
	err := i.atOnce(ctx, shard, func(p redis.Pipeliner) {
		cursors = i.ask(ctx, p, shard, schema.CursorFields)
		for n := range asked {
			a := &asked[n]
			a.key = i.store.Keys.Hash(window.CellHash{Shard: shard, Counter: counters[a.counter], Tier: tiers[a.tier],
				Epoch: a.epoch})
			if tiers[a.tier].Sparse {
				a.log = p.GetRange(ctx, a.key, 0, -1) // empty for none
			} else {
				a.hash = p.HGetAll(ctx, a.key)
			}
		}
		for n := range uniques {
			u := &uniques[n]
			if len(u.cells) == 0 {
				continue
			}
			u.reply = p.MGet(ctx, i.uniqueKeys(shard, counters[n], u.cells)...)
		}
		clock = p.Time(ctx)
	}, func() error { return clock.Err() })
	if err != nil {
		return Found{}, fmt.Errorf("read %d counters of shard %d: %w", len(counters), shard, err)
	}
	if out.Places, err = i.places(shard, cursors); err != nil {
		return Found{}, err
	}
	out.At = (clock.Val().UnixMilli() + 999) / 1000
	for _, a := range asked {
		c := &out.Counters[a.counter]
		if a.log != nil {
			i.takeLog(c, a, tiers[a.tier], out.At)
		} else {
			i.take(c, a)
		}
	}
	for n := range out.Counters {
		out.Counters[n].mergeCells()
	}
	for n, u := range uniques {
		i.takeUniques(shard, &out.Counters[n], u)
		out.Hashes += len(out.Counters[n].Uniques)
	}
	return out, nil
}

func (i *Inspector) uniqueKeys(shard int, counter string, cells []window.CellID) []string {
	out := make([]string, len(cells))
	for n, c := range cells {
		out[n] = i.store.Keys.Unique(shard, i.layout.UniqueTiers[c.Tier], c.Cell, counter)
	}
	return out
}

// takeUniques adds unique cells to a counter. MGET returns nothing for a key of another type.
func (i *Inspector) takeUniques(shard int, c *FoundCounter, asked askedUniques) {
	if asked.reply == nil {
		return
	}
	for n, reply := range asked.reply.Val() {
		text, there := reply.(string)
		if !there {
			continue
		}
		sketch, err := unique.Decode(text)
		if err != nil {
			c.Bad = append(c.Bad, &window.ForeignError{Key: i.uniqueKeys(shard, c.Name, asked.cells[n:n+1])[0],
				Err: err})
			continue
		}
		c.Uniques = append(c.Uniques, FoundUnique{asked.cells[n], sketch})
	}
}

// take adds the cells of a hash to its counter.
func (i *Inspector) take(c *FoundCounter, a askedHash) {
	if err := a.hash.Err(); err != nil {
		c.Bad = append(c.Bad, &window.ForeignError{Key: a.key, Err: err})
		return
	}
	t, bad := i.layout.Tiers[a.tier], ""
	for field, value := range a.hash.Val() {
		f, err := strconv.ParseInt(field, 10, 64)
		n, errN := strconv.ParseInt(value, 10, 64)
		if err != nil || errN != nil || f < 0 || f >= t.CellsPerEpoch() {
			bad = fmt.Sprintf("field %q is %q", field, value)
			continue
		}
		c.Cells = append(c.Cells, FoundCell{window.CellID{Tier: a.tier, Cell: t.CellIn(a.epoch, f)}, n})
	}
	if bad != "" {
		c.Bad = append(c.Bad, &window.ForeignError{Key: a.key, Err: errors.New(bad)})
	}
}

// takeLog adds the cells of a log to those of all tiers that have not expired at a moment (Unix seconds).
func (i *Inspector) takeLog(c *FoundCounter, a askedHash, t window.Tier, at int64) {
	cells, err := []window.StoredCell(nil), a.log.Err()
	if err == nil && a.log.Val() != "" {
		cells, err = t.ParseLog(a.log.Val())
	}
	if err != nil {
		c.Bad = append(c.Bad, &window.ForeignError{Key: a.key, Err: err})
		return
	}
	hash := window.HashCounter([]byte(c.Name))
	for _, cell := range cells {
		for tier, level := range i.layout.Tiers {
			id := window.CellID{Tier: tier, Cell: level.CellAt(t.CellStart(t.CellIn(a.epoch, cell.Field)))}
			if i.layout.CellExpires(id, hash) > at {
				c.Cells = append(c.Cells, FoundCell{id, cell.N})
			}
		}
	}
}

// Cursors reads the cursors of a shard with all fields, up to when its counters were erased (Unix
// milliseconds; 0 if never), and Redis's clock.
func (i *Inspector) Cursors(ctx context.Context, shard int) (places []Place, erased int64, clock time.Time, err error) {
	var cursors []*redis.SliceCmd
	var last *redis.StringCmd
	var now *redis.TimeCmd
	err = i.atOnce(ctx, shard, func(p redis.Pipeliner) {
		cursors = i.ask(ctx, p, shard, slices.Concat(schema.CursorFields, schema.RareFields))
		last = p.Get(ctx, i.store.Keys.Erasure(shard))
		now = p.Time(ctx)
	}, func() error { return now.Err() })
	var text string
	if err == nil {
		text, err = schema.ParseErasure(last)
	}
	if err != nil {
		return nil, 0, time.Time{}, fmt.Errorf("read the cursors of shard %d: %w", shard, err)
	}
	places, err = i.places(shard, cursors)
	return places, schema.ErasedUpTo(text), now.Val(), err
}

func (i *Inspector) ask(ctx context.Context, p redis.Pipeliner, shard int, fields []string) []*redis.SliceCmd {
	out := make([]*redis.SliceCmd, len(i.streams))
	for n, stream := range i.streams {
		out[n] = p.HMGet(ctx, i.store.Keys.Cursor(shard, stream), fields...)
	}
	return out
}

func (i *Inspector) places(shard int, replies []*redis.SliceCmd) ([]Place, error) {
	out := make([]Place, len(replies))
	for n, reply := range replies {
		found, exists, err := schema.ParseCursor(i.store.Keys.Cursor(shard, i.streams[n]), reply)
		if err != nil {
			return nil, err
		}
		out[n] = Place{found.Cursor, exists, found.IsTorn(), found.Declared}
	}
	return out, nil
}

// atOnce runs commands as one transaction. If failed returns an error, that of the last command, the outcome
// of the others is unknown.
func (i *Inspector) atOnce(ctx context.Context, shard int, queue func(redis.Pipeliner), failed func() error) error {
	cmds, err := i.store.Client.Transact(ctx, i.store.Keys.Cursor(shard, ""), queue)
	if err == nil || cmds == nil || failed() != nil {
		return err
	}
	for _, cmd := range cmds { // EXEC has run: what is wrong is single keys, or the rights
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return err
		}
	}
	return nil
}

// Names lists at most most counters after a name, in the order of their names' bytes, and whether there are
// more. now and latest are as for Read.
func (i *Inspector) Names(ctx context.Context, after string, most int, now, latest int64) (names []string, more bool,
	err error) {
	listed := i.layout.NamesTier()
	alive := window.Range{From: listed.EpochStart(listed.FirstEpoch(math.MaxUint64, now)), To: max(now, latest) +
		window.HashAhead + 1} // with the longest jitter
	return read.NameSetsOf(i.store.Keys, i.layout, alive).List(ctx, i.store.Client, "", after, most)
}

// HasBegan reports whether streams have ended, some of which may no longer be listed.
func HasBegan(ctx context.Context, s *schema.Store) (bool, error) {
	return s.Client.HExists(ctx, s.Keys.Streams(), schema.BeganField).Result()
}

// Oddity is a key that is not as a writer leaves it.
type Oddity struct {
	Key     string
	What    string // is wrong, human-readable
	Counter string // that is not listed, if that is wrong
	Expiry  bool   // it has none
	Early   bool   // its expiry is too early
}

// Swept is what Sweep found among some of the keys of a namespace.
type Swept struct {
	Keys    int      // looked at
	Streams []string // that have a cursor; they may repeat
	Uniques []uint64 // HashCounter of counters that have unique cells; they may repeat
	Odd     []Oddity
}

// Sweep checks all keys of the namespace, and passes what it finds to each. It scans all keys in Redis.
func (i *Inspector) Sweep(ctx context.Context, each func(Swept) error) error {
	return i.store.Scan(ctx, func(_ cluster.Server, keys []string) error {
		found, err := i.check(ctx, keys)
		if err != nil {
			return err
		}
		return each(found)
	})
}

func (i *Inspector) check(ctx context.Context, keys []string) (Swept, error) {
	out := Swept{Keys: schema.ScanCount}
	type keyLook struct {
		key      string
		counter  string
		deadline int64 // Unix seconds
		expires  *redis.DurationCmd
		listed   *redis.FloatCmd // nil: the key lists no name
	}
	var looks []keyLook
	pipe := i.store.Client.Pipeline()
	for _, key := range keys {
		k := i.store.Keys.Parse(key)
		isOfAll := k.Kind == "cursor" || k.Kind == "u" || k.Kind == "unames"
		if !isOfAll && k.Generation != i.layout.Tiers[0].Generation {
			continue // of the tiers before a change, or after it
		}
		look := keyLook{key: key}
		var h window.CellHash
		var tier int
		var names, what string // names is the set that must list the counter: only the coarsest hash lists one
		switch k.Kind {
		case "cursor":
			out.Streams = append(out.Streams, k.Rest)
			continue
		case "h", "s":
			if k.Kind == "s" {
				h, what = parseLogKey(i.layout, k.Shard, k.Rest)
			} else {
				h, tier, what = parseHash(i.layout, k.Shard, k.Rest)
			}
			isListed := h.Counter != window.AllHits && (k.Kind == "s" || tier == len(i.layout.Tiers)-1)
			if t := i.layout.NamesTier(); what == "" && isListed {
				names = i.store.Keys.Names(k.Shard, t, t.NamesOf(t.EpochAt(h.Tier.EpochStart(h.Epoch))))
			}
		case "u":
			h, tier, what = parseHash(i.layout.Uniques(), k.Shard, k.Rest)
			if what == "" && tier == len(i.layout.UniqueTiers)-1 {
				names = i.store.Keys.UniqueNames(k.Shard, i.layout.UniqueNamesOf(h.Tier.CellStart(h.Epoch)))
			}
			if what == "" {
				out.Uniques = append(out.Uniques, window.HashCounter([]byte(h.Counter)))
			}
		case "names", "unames", "top":
			look.deadline, what = i.sharedDeadline(k)
		default:
			continue
		}
		if what != "" {
			out.Odd = append(out.Odd, Oddity{Key: key, What: what})
			continue
		}
		if h.Tier.Cell > 0 {
			look.counter, look.deadline = h.Counter, h.Tier.Deadline(h.Epoch, window.HashCounter([]byte(h.Counter)))
		}
		look.expires = pipe.PExpireTime(ctx, key)
		if names != "" {
			look.listed = pipe.ZScore(ctx, names, h.Counter)
		}
		looks = append(looks, look)
	}
	if len(looks) == 0 {
		return out, nil
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
		return out, fmt.Errorf("read the expiries of %d keys: %w", len(looks), err)
	}
	for _, look := range looks {
		switch expires := look.expires.Val(); {
		case expires == -2: // expired meanwhile
			continue
		case expires == -1:
			out.Odd = append(out.Odd, Oddity{Key: look.key, What: "it never expires", Expiry: true})
		case expires.Milliseconds() < look.deadline*1000: // later wastes memory, and loses nothing
			out.Odd = append(out.Odd, Oddity{Key: look.key, Early: true,
				What: fmt.Sprintf("it expires at %s, and windows need it until %s",
					hit.Moment(expires.Milliseconds()), hit.Moment(look.deadline*1000))})
		}
		if look.listed != nil && look.listed.Err() != nil {
			out.Odd = append(out.Odd, Oddity{Key: look.key, What: "its counter is not listed among the names",
				Counter: look.counter})
		}
	}
	return out, nil
}

// Recheck checks a key again, and reports whether it still has the same oddity, or expired because of it.
func (i *Inspector) Recheck(ctx context.Context, odd Oddity) (bool, error) {
	if !odd.Expiry && !odd.Early && odd.Counter == "" {
		n, err := i.store.Client.Exists(ctx, odd.Key).Result()
		return n > 0, err
	}
	found, err := i.check(ctx, []string{odd.Key})
	if err != nil || slices.ContainsFunc(found.Odd, func(o Oddity) bool { return o.What == odd.What }) {
		return err == nil, err
	}
	if odd.Early { // it can have expired since its cells were compared
		n, err := i.store.Client.Exists(ctx, odd.Key).Result()
		return n == 0, err
	}
	return false, nil
}

// sharedDeadline returns when a key of many counters expires: a set of names, or a summary.
func (i *Inspector) sharedDeadline(k schema.ShardKey) (deadline int64, what string) {
	cell, number, tier := "", k.Rest, len(i.layout.Tiers)-1
	if k.Kind == "top" {
		cell, number, _ = strings.Cut(k.Rest, ":")
		number, _, _ = strings.Cut(number, ":")
		if tier = tierOf(i.layout, cell); tier < 0 {
			return 0, "no tier of the namespace has cells of " + cell
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	switch {
	case err != nil, k.Kind == "unames" && len(i.layout.UniqueTiers) == 0:
		return 0, "no worker writes a key with its name"
	case k.Kind == "unames":
		return i.layout.UniqueNamesDeadline(n), ""
	case k.Kind == "top":
		return i.layout.Tiers[tier].SegmentDeadline(n), ""
	}
	return i.layout.NamesTier().NamesDeadline(n), ""
}

func tierOf(l window.Layout, cell string) int {
	return slices.IndexFunc(l.Tiers, func(t window.Tier) bool { return human.FormatDuration(t.Cell) == cell })
}

// parseHash parses what follows "h:" or "u:" in the key of a hash of cells, or of a unique cell. what
// describes an error, or is empty.
func parseHash(l window.Layout, shard int, rest string) (h window.CellHash, tier int, what string) {
	cell, rest, _ := strings.Cut(rest, ":")
	if tier = tierOf(l, cell); tier < 0 {
		return h, tier, "no tier of the namespace has cells of " + cell
	}
	h, what = parseEpoch(l, l.Tiers[tier], shard, rest)
	return h, tier, what
}

// parseLogKey is parseHash for what follows "s:" in the key of a log.
func parseLogKey(l window.Layout, shard int, rest string) (h window.CellHash, what string) {
	t, ok := l.SparseTier()
	if !ok {
		return h, "the namespace has no sparse logs"
	}
	return parseEpoch(l, t, shard, rest)
}

func parseEpoch(l window.Layout, t window.Tier, shard int, rest string) (h window.CellHash, what string) {
	epoch, counter, ok := strings.Cut(rest, ":")
	number, err := strconv.ParseInt(epoch, 10, 64)
	belongs := l.ShardOf(window.HashCounter([]byte(counter)))
	switch {
	case !ok || err != nil || counter == window.AllHits && t.Sparse:
		return h, "its name is not that of a key with cells"
	case counter == window.AllHits && shard < l.Shards:
	case shard != belongs:
		return h, fmt.Sprintf("its counter belongs to shard %d", belongs)
	}
	return window.CellHash{Shard: shard, Counter: counter, Tier: t, Epoch: number}, ""
}
