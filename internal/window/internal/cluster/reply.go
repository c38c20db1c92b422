package cluster

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
)

// Reply is a reply as it came over the wire (RESP 2 or 3). The client's own commands would make a string of
// each field and a map of each hash, most of an answer's cost. And equal bytes are an unchanged reply.
type Reply struct{ Key, Text string }

type replyError string

func (e replyError) Error() string { return string(e) }

// RedisError makes it a redis.Error.
func (replyError) RedisError() {}

var _ redis.Error = replyError("")

func errorIn[T string | []byte](text T) error {
	if len(text) == 0 || text[0] != '-' {
		return nil
	}
	return replyError(strings.TrimSuffix(string(text[1:]), "\r\n"))
}

// Value parses the reply to GET. exists is false if there is no such key.
func (r Reply) Value() (value string, exists bool, err error) {
	one := elements{Reply: r, rest: r.Text, Left: 1}
	return one.Next()
}

// Elements parses the reply to HGETALL, HVALS or HMGET.
func (r Reply) Elements() (elements, error) {
	if r.Text != "" && (r.Text[0] == '*' || r.Text[0] == '%') {
		if n, rest, ok := takeLength(r.Text); ok {
			if r.Text[0] == '%' {
				n *= 2
			}
			if n <= len(rest) {
				return elements{r, rest, n}, nil
			}
		}
	}
	return elements{}, r.unexpected(r.Text)
}

// unexpected returns the error for a part of a reply. It is a *window.ForeignError if the key has another
// type.
func (r Reply) unexpected(text string) error {
	if err := errorIn(text); err != nil {
		return WrapForeign(r.Key, err)
	}
	return fmt.Errorf("key %s: Redis replied %.40q", r.Key, text)
}

type elements struct {
	Reply
	rest string
	Left int
}

// Next reads a string. exists is false if Redis replied null.
func (e *elements) Next() (value string, exists bool, err error) {
	e.Left--
	if strings.HasPrefix(e.rest, "$") {
		if n, rest, ok := takeLength(e.rest); ok && len(rest) >= n+2 {
			e.rest = rest[n+2:]
			return rest[:n], true, nil
		}
	}
	for _, null := range [...]string{"$-1\r\n", "_\r\n"} {
		if rest, ok := strings.CutPrefix(e.rest, null); ok {
			e.rest = rest
			return "", false, nil
		}
	}
	return "", false, e.unexpected(e.rest)
}

func (e *elements) pair() (field, value string, err error) {
	if field, _, err = e.Next(); err == nil {
		value, _, err = e.Next()
	}
	return field, value, err
}

// takeLength takes a line with a length off a reply: its type, digits, and the end of the line.
func takeLength(text string) (n int, rest string, ok bool) {
	i := 1
	for i < min(len(text), maxDigits) && '0' <= text[i] && text[i] <= '9' {
		n = 10*n + int(text[i]-'0')
		i++
	}
	if i == 1 || i+2 > len(text) {
		return 0, "", false
	}
	return n, text[i+2:], true
}

// Number parses the reply to a command that counts.
func (r Reply) Number() (int64, error) {
	if text, ok := strings.CutPrefix(r.Text, ":"); ok {
		if n, err := strconv.ParseInt(strings.TrimSuffix(text, "\r\n"), 10, 64); err == nil {
			return n, nil
		}
	}
	return 0, r.unexpected(r.Text)
}

func (r Reply) Hash() (map[string]string, error) {
	fields, err := r.Elements()
	if err != nil {
		return nil, err
	}
	out := make(map[string]string, fields.Left/2)
	for fields.Left > 0 {
		field, value, err := fields.pair()
		if err != nil {
			return nil, err
		}
		out[field] = value
	}
	return out, nil
}

// Cells parses the reply to HGETALL of a hash of cells.
func (r Reply) Cells() ([]window.StoredCell, error) {
	fields, err := r.Elements()
	if err != nil {
		return nil, err
	}
	out := make([]window.StoredCell, 0, fields.Left/2)
	for fields.Left > 0 {
		pair := fields
		f, okField := fields.count()
		n, okCount := fields.count()
		if !okField || !okCount {
			return nil, pair.noCell()
		}
		out = append(out, window.StoredCell{Field: f, N: n})
	}
	return out, nil
}

// Log parses the reply to GET of a sparse log of the tier t.
func (r Reply) Log(t window.Tier) ([]window.StoredCell, error) {
	text, exists, err := r.Value()
	if err != nil || !exists {
		return nil, err
	}
	cells, err := t.ParseLog(text)
	if err != nil {
		return nil, &window.ForeignError{Key: r.Key, Err: err}
	}
	return cells, nil
}

// Sum adds up the reply to HVALS of a hash of cells.
func (r Reply) Sum() (sum int64, err error) {
	values, err := r.Elements()
	if err != nil {
		return 0, err
	}
	for values.Left > 0 {
		one := values
		n, ok := values.count()
		if !ok {
			value, _, err := one.Next()
			if err != nil {
				return 0, err
			}
			return 0, &window.ForeignError{Key: r.Key, Err: fmt.Errorf("its value %q is not that of a cell", value)}
		}
		sum = window.AddCounts(sum, n)
	}
	return sum, nil
}

// noCell is the error for a field of a hash of cells that is not a cell.
func (e *elements) noCell() error {
	field, value, err := e.pair()
	if err != nil {
		return err
	}
	return &window.ForeignError{Key: e.Key, Err: fmt.Errorf("its field %q with the value %q is not a cell", field,
		value)}
}

// count reads a string of digits, as Redis writes a count; ok is false for any other string.
func (e *elements) count() (n int64, ok bool) {
	e.Left--
	if !strings.HasPrefix(e.rest, "$") {
		return 0, false
	}
	length, rest, ok := takeLength(e.rest)
	if !ok || len(rest) < length+2 || length == 0 || length > maxDigits {
		return 0, false
	}
	for _, c := range []byte(rest[:length]) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	e.rest = rest[length+2:]
	return n, n >= 0
}

// maxDigits are the digits of the largest int64. Fewer than twice as many never wrap round to a count.
const maxDigits = 19

// encodeReply turns a parsed reply back into its wire format; ok is false if value and err were not a reply.
func encodeReply(value any, err error) ([]byte, bool) {
	var refused redis.Error
	switch {
	case errors.Is(err, redis.Nil):
		return appendReply(nil, nil), true
	case errors.As(err, &refused):
		return fmt.Appendf(nil, "-%s\r\n", refused), true
	}
	return appendReply(nil, value), err == nil
}

func appendReply(out []byte, value any) []byte {
	switch value := value.(type) {
	case string:
		return fmt.Appendf(out, "$%d\r\n%s\r\n", len(value), value)
	case int64:
		return fmt.Appendf(out, ":%d\r\n", value)
	case []any:
		out = fmt.Appendf(out, "*%d\r\n", len(value))
		for _, v := range value {
			out = appendReply(out, v)
		}
		return out
	case map[any]any:
		out = fmt.Appendf(out, "%%%d\r\n", len(value))
		for field, v := range value {
			out = appendReply(appendReply(out, field), v)
		}
		return out
	}
	return append(out, "$-1\r\n"...)
}
