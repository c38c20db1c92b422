package read_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/windowtest"
)

func bulk(text string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text) }

func array(texts ...string) string {
	out := fmt.Sprintf("*%d\r\n", len(texts))
	for _, text := range texts {
		out += bulk(text)
	}
	return out
}

// BenchmarkAnswer asks for eight windows of each counter; ns/op is per call. Replies come without a server:
// what is measured is the reader's own work.
func BenchmarkAnswer(b *testing.B) {
	layout := `{"version":3,"tiers":"` + window.DefaultTiers + `","shards":16,"hash":"xxhash64","id":"X","epoch_cells":256}`
	const cursor = "1763683200000000000,9,1763683300000000000,1763683300000000000,1763683300000,0,1,1,,W,,"
	replies := map[string][]byte{ // by command, or by what the key ends with
		"get":      []byte(bulk(layout)),
		"hmget":    []byte(array(strings.Split(cursor, ",")...)),
		":streams": []byte(array("HITS", "", "HITS_2", "live 1763683200000")),
		":idle":    []byte(array()),
	}
	var cells []string
	for i := range 10 {
		cells = append(cells, fmt.Sprint(11*i), "7")
	}
	hash := []byte(array(cells...))
	client := redis.NewClient(&redis.Options{Addr: "canned:0", MaxRetries: -1})
	defer client.Close()
	client.AddHook(windowtest.Hook(func(_ context.Context, cmds []redis.Cmder, _ func([]redis.Cmder) error) error {
		for _, cmd := range cmds {
			switch cmd := cmd.(type) {
			case *redis.RawCmd:
				key := cmd.Args()[1].(string)
				reply := hash
				if canned, ok := replies[cmd.Name()]; ok {
					reply = canned
				} else if canned, ok := replies[key[strings.LastIndex(key, ":"):]]; ok {
					reply = canned
				}
				cmd.SetVal(reply)
			case *redis.TimeCmd:
				cmd.SetVal(time.Now())
			}
		}
		return nil
	}))
	for _, counters := range []int{1, 1000} {
		b.Run(fmt.Sprintf("counters=%d", counters), func(b *testing.B) {
			reader := read.NewReader(schema.NewStore(client, "bench"))
			var questions []window.Question
			for i := range counters {
				for _, w := range []string{"1m", "10m", "1h", "6h", "1d", "7d", "14d", "30d"} {
					span := window.Last(windowtest.Must(human.ParseDuration(w)))
					questions = append(questions, window.Question{Counter: fmt.Sprintf("api-%d", i), Span: span})
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, windowtest.ErrOf(reader.Answer(b.Context(), questions)))
			}
		})
	}
}
