package window_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
)

// cannedRedis replies without a server: what is measured is the reader's own work.
type cannedRedis struct {
	record  []byte // of the layout
	streams []byte
	cursor  []byte
	hash    []byte // every hash of cells
}

func (c cannedRedis) reply(name, key string) []byte {
	switch {
	case name == "get":
		return c.record
	case name == "hmget":
		return c.cursor
	case strings.HasSuffix(key, ":streams"):
		return c.streams
	case strings.HasSuffix(key, ":idle"):
		return array()
	}
	return c.hash
}

func bulk(out []byte, text string) []byte { return fmt.Appendf(out, "$%d\r\n%s\r\n", len(text), text) }

func array(texts ...string) []byte {
	out := fmt.Appendf(nil, "*%d\r\n", len(texts))
	for _, text := range texts {
		out = bulk(out, text)
	}
	return out
}

func (cannedRedis) DialHook(redis.DialHook) redis.DialHook {
	return func(context.Context, string, string) (net.Conn, error) { return nil, net.ErrClosed }
}

func (cannedRedis) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (c cannedRedis) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			switch cmd := cmd.(type) {
			case *redis.RawCmd:
				cmd.SetVal(c.reply(cmd.Name(), cmd.Args()[1].(string)))
			case *redis.TimeCmd:
				cmd.SetVal(time.Now())
			}
		}
		return nil
	}
}

// BenchmarkAnswer asks for eight windows of each counter; ns/op is per call.
func BenchmarkAnswer(b *testing.B) {
	var cells []string
	for i := range 10 {
		cells = append(cells, fmt.Sprint(11*i), "7")
	}
	canned := cannedRedis{
		record:  bulk(nil, `{"version":1,"tiers":"`+window.DefaultTiers+`","shards":16,"hash":"xxhash64","id":"X","epoch_cells":256}`),
		streams: array("HITS", "", "HITS_2", "live 1763683200000"),
		cursor:  array("1763683200000000000", "9", "1763683300000000000", "1763683300000000000", "1763683300000", "0", "1", "1", "", "W", ""),
		hash:    array(cells...),
	}
	client := redis.NewClient(&redis.Options{Addr: "canned:0", MaxRetries: -1})
	defer client.Close()
	client.AddHook(canned)
	for _, counters := range []int{1, 1000} {
		b.Run(fmt.Sprintf("counters=%d", counters), func(b *testing.B) {
			reader := window.NewReader(window.NewStore(client, "bench"))
			var questions []window.Question
			for i := range counters {
				for _, w := range []time.Duration{time.Minute, 10 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour, 7 * 24 * time.Hour, 14 * 24 * time.Hour, 30 * 24 * time.Hour} {
					questions = append(questions, window.Question{Counter: fmt.Sprintf("api-%d", i), Span: window.Last(w)})
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, errOf(reader.Answer(b.Context(), questions)))
			}
		})
	}
}
