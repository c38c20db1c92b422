package schema

import (
	"context"
	"errors"
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

// Listed is an entry of the list of streams. Readers find the cursors through the list, and a live stream
// whose cursors do not move holds AsOf back.
type Listed struct {
	// Created is a moment (Unix ms) before which it stored nothing; 0: unknown. It is AsOf without a cursor.
	Created int64
	// Ended is when the stream was found gone, in Unix milliseconds, or 0 while it lives.
	Ended int64
}

// A live stream's value is "live", a space and Created, or empty if Created is unknown. An ended stream's
// value is the bare number Ended.
const livePrefix = "live "

// BeganField is not a stream, because no stream's name has a dot. Its value is when the oldest of the ended
// streams was created (Unix milliseconds), which is when counting began after their cursors have expired.
const BeganField = ".began"

func (l Listed) value() string {
	switch {
	case l.Ended > 0:
		return strconv.FormatInt(l.Ended, 10)
	case l.Created > 0:
		return livePrefix + strconv.FormatInt(l.Created, 10)
	}
	return ""
}

func parseListed(stream, value string) (Listed, error) {
	if value == "" {
		return Listed{}, nil
	}
	text, live := strings.CutPrefix(value, livePrefix)
	at, ok := parseMoment(text)
	if !ok {
		return Listed{}, fmt.Errorf("stream %s is listed with %q: Unix milliseconds were expected, or %q and them",
			stream, value, livePrefix)
	}
	if live {
		return Listed{Created: at}, nil
	}
	return Listed{Ended: at}, nil
}

// parseMoment parses Unix milliseconds. 0 is not accepted, because it stands for no moment.
func parseMoment(text string) (at int64, ok bool) {
	at, err := strconv.ParseInt(text, 10, 64)
	return at, err == nil && at != 0 && window.IsMoment(at)
}

func parseList(list map[string]string) (out map[string]Listed, err error) {
	out = make(map[string]Listed, len(list))
	for stream, value := range list {
		if strings.HasPrefix(stream, ".") { // BeganField, or one of Overflow
			continue
		}
		if out[stream], err = parseListed(stream, value); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// AddStream lists a stream of unknown creation as live.
func (s *Store) AddStream(ctx context.Context, stream string) error {
	return s.AddStreamSince(ctx, stream, 0)
}

// AddStreamSince lists a stream as live. created is Listed.Created.
func (s *Store) AddStreamSince(ctx context.Context, stream string, created int64) error {
	if err := s.Client.HSet(ctx, s.Keys.Streams(), stream, Listed{Created: created}.value()).Err(); err != nil {
		return fmt.Errorf("list stream %s: %w", stream, cluster.WrapForeign(s.Keys.Streams(), err))
	}
	return nil
}

// AddUnknownStream lists a stream as live if it is not listed at all.
func (s *Store) AddUnknownStream(ctx context.Context, stream string) error {
	if err := s.Client.HSetNX(ctx, s.Keys.Streams(), stream, Listed{}.value()).Err(); err != nil {
		return fmt.Errorf("list stream %s: %w", stream, cluster.WrapForeign(s.Keys.Streams(), err))
	}
	return nil
}

// Streams reads the list, by name.
func (s *Store) Streams(ctx context.Context) (map[string]Listed, error) {
	values, err := s.readList(ctx)
	if err != nil {
		return nil, err
	}
	return parseList(values)
}

// ReadOverflows reads the list's prefixes of which names overflow, the longest first.
func (s *Store) ReadOverflows(ctx context.Context) ([]Overflow, error) {
	values, err := s.readList(ctx)
	if err != nil {
		return nil, err
	}
	return parseOverflows(values)
}

func (s *Store) readList(ctx context.Context) (map[string]string, error) {
	values, err := s.Client.HGetAll(ctx, s.Keys.Streams()).Result()
	if err != nil {
		return nil, fmt.Errorf("read the list of streams: %w", cluster.WrapForeign(s.Keys.Streams(), err))
	}
	return values, nil
}

// EndStream marks a live stream as ended at a moment (Unix milliseconds). Its cursors then count for
// Complete, not for AsOf. created is its creation; 0: never counted. gone checks that the stream is really
// gone; if another worker lists it as live after that, it stays live.
func (s *Store) EndStream(ctx context.Context, stream string, at, created int64, gone func() (bool, error)) (ended bool,
	err error) {
	return s.changeStream(ctx, "end", stream, func(l Listed) bool {
		return l.Ended == 0
	}, gone, func(p redis.Pipeliner, began int64) {
		p.HSet(ctx, s.Keys.Streams(), stream, Listed{Ended: at}.value())
		if created > 0 && (began == 0 || created < began) {
			p.HSet(ctx, s.Keys.Streams(), BeganField, created)
		}
	})
}

// RemoveStream takes an ended stream off the list, when no window reaches back. gone is as in EndStream.
func (s *Store) RemoveStream(ctx context.Context, stream string, gone func() (bool, error)) (removed bool, err error) {
	return s.changeStream(ctx, "remove", stream, func(l Listed) bool {
		return l.Ended > 0
	}, gone, func(p redis.Pipeliner, _ int64) {
		p.HDel(ctx, s.Keys.Streams(), stream)
	})
}

// changeStream changes the entry of a stream that is gone, if fit accepts that entry.
func (s *Store) changeStream(ctx context.Context, what, stream string, fit func(Listed) bool, gone func() (bool, error),
	change func(p redis.Pipeliner, began int64)) (changed bool, err error) {
	key := s.Keys.Streams()
	err = s.Client.Watch(ctx, []string{key}, func(tx *cluster.WatchedTx) error {
		var entry *redis.SliceCmd
		if err := tx.Read(ctx, func(p redis.Pipeliner) { entry = p.HMGet(ctx, key, stream, BeganField) }); err != nil {
			return err
		}
		values, err := entry.Result()
		if err != nil {
			return err
		}
		value, exists := values[0].(string)
		if !exists {
			return nil
		}
		listed, err := parseListed(stream, value)
		if err != nil || !fit(listed) {
			return err
		}
		began, err := parseBegan(values[1])
		if err != nil {
			return err
		}
		if ok, err := gone(); err != nil || !ok {
			return err
		}
		_, err = tx.Exec(ctx, func(p redis.Pipeliner) { change(p, began) })
		changed = err == nil
		return err
	})
	if errors.Is(err, redis.TxFailedErr) {
		return false, nil // a stream was listed in the meantime, perhaps this one: look again later
	}
	if err != nil {
		return false, fmt.Errorf("%s stream %s: %w", what, stream, cluster.WrapForeign(key, err))
	}
	return changed, nil
}

// parseBegan parses the value of BeganField, which is nil or empty if it is missing.
func parseBegan(value any) (int64, error) {
	text, _ := value.(string)
	if text == "" {
		return 0, nil
	}
	at, ok := parseMoment(text)
	if !ok {
		return 0, fmt.Errorf("the list of streams has %s %q: Unix milliseconds were expected", BeganField, text)
	}
	return at, nil
}

// ExpireCursor makes the cursor of an ended stream expire after a while, or at once if that is 0. A cursor of
// another incarnation than created (Unix nanoseconds) stays. A later commit removes the expiry again.
func (s *Store) ExpireCursor(ctx context.Context, stream string, shard int, created int64, after time.Duration) error {
	key := s.Keys.Cursor(shard, stream)
	err := s.Client.Watch(ctx, []string{key}, func(tx *cluster.WatchedTx) error {
		var incarnation *redis.StringCmd
		if err := tx.Read(ctx, func(p redis.Pipeliner) { incarnation = p.HGet(ctx, key, "created") }); err != nil {
			return err
		}
		found, err := incarnation.Result()
		if errors.Is(err, redis.Nil) || err == nil && found != strconv.FormatInt(created, 10) {
			return nil
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, func(p redis.Pipeliner) {
			if after > 0 {
				p.Expire(ctx, key, after)
			} else {
				p.Del(ctx, key)
			}
		})
		return err
	})
	if err != nil && !errors.Is(err, redis.TxFailedErr) { // a writer goes on
		return fmt.Errorf("let cursor %s expire: %w", key, cluster.WrapForeign(key, err))
	}
	return nil
}

// Directory is a namespace's layout and list of streams. They seldom change, so a Reader keeps them and
// compares them in each round trip.
type Directory struct {
	Layout  window.Layout
	Id      string            // see Store.ID
	Streams []string          // sorted by name
	Listed  map[string]Listed // by name
	Began   int64             // see BeganField; 0 if no stream has ended
	// Overflows are prefixes of which some names are counted on overflow counters, the longest first.
	Overflows []Overflow

	// Redis's replies and their values.
	record, list string
	text         string            // the layout record
	values       map[string]string // the list of streams
}

// ParseDirectory parses the replies about the two keys. Errors name the key; ErrNoLayout: there is no layout.
func ParseDirectory(record, list cluster.Reply) (*Directory, error) {
	text, values, err := directoryIn(record, list)
	if err != nil {
		return nil, err
	}
	layout, err := ParseLayoutRecord(text)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", record.Key, err)
	}
	listed, err := parseList(values)
	if err != nil {
		return nil, &window.ForeignError{Key: list.Key, Err: err}
	}
	began, err := parseBegan(values[BeganField])
	if err != nil {
		return nil, &window.ForeignError{Key: list.Key, Err: err}
	}
	overflows, err := parseOverflows(values)
	if err != nil {
		return nil, &window.ForeignError{Key: list.Key, Err: err}
	}
	return &Directory{
		Layout: layout.Layout, Id: layout.id, Streams: slices.Sorted(maps.Keys(listed)), Listed: listed, Began: began,
		Overflows: overflows, record: record.Text, list: list.Text, text: text, values: values,
	}, nil
}

func directoryIn(record, list cluster.Reply) (text string, values map[string]string, err error) {
	text, exists, err := record.Value()
	if err == nil && !exists {
		err = ErrNoLayout
	}
	if err == nil {
		values, err = list.Hash()
	}
	return text, values, err
}

// Matches reports whether Redis still has the same values, perhaps in another order.
func (d *Directory) Matches(record, list cluster.Reply) (bool, error) {
	if d.record == record.Text && d.list == list.Text {
		return true, nil
	}
	text, values, err := directoryIn(record, list)
	return d.text == text && maps.Equal(d.values, values), err
}
