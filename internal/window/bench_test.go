package window_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
)

// BenchmarkBatchAdd coalesces hits; ns/op is per hit. A batch is emptied after
// as many hits as a worker reads in one flush interval of 250 ms at full speed.
func BenchmarkBatchAdd(b *testing.B) {
	const flush = 50_000
	now := time.Date(2025, 11, 21, 0, 0, 0, 0, time.UTC).UnixMilli()
	for _, counters := range []int{1, 1000, 100_000} {
		b.Run(fmt.Sprintf("counters=%d", counters), func(b *testing.B) {
			// Zipf-distributed with exponent 1.1, as those of a web site's pages are.
			draw := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, uint64(counters-1))
			hits, hashes := make([][]byte, flush), make([]uint64, flush)
			for i := range hits {
				hits[i] = fmt.Appendf(nil, "api-%d", draw.Uint64())
				hashes[i] = window.HashCounter(hits[i])
			}
			batch := window.NewBatch(layout)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i == flush {
					batch.Reset()
					i = 0
				}
				at := now + int64(i/200) // the 250 ms that these hits came in
				batch.Add(hits[i], hashes[i], at, at, 1)
			}
		})
	}
}

func BenchmarkPlan(b *testing.B) {
	now := time.Date(2025, 11, 21, 10, 7, 23, 0, time.UTC).UnixMilli()
	for _, tiers := range []string{window.DefaultTiers, "1s/1h,1m/1d,1h/92d"} {
		layout := window.Layout{Tiers: must(window.ParseTiers(tiers)), Shards: layout.Shards}
		for _, w := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour, 30 * 24 * time.Hour} {
			b.Run("tiers="+tiers+"/window="+human.FormatDuration(w), func(b *testing.B) {
				r := window.Range{From: now - w.Milliseconds(), To: now}
				b.ReportAllocs()
				for b.Loop() {
					require.NoError(b, errOf(layout.Plan("api-1", r, now)))
				}
			})
		}
	}
}

// BenchmarkCommit commits batches to a real Redis, as the transactions cannot
// be seen without one: ns/op has Redis's own time in it, the allocations are
// this package's and the client's alone. new: each commit is the first to its
// hashes, so that half of the commands are expiries; seen: none is.
func BenchmarkCommit(b *testing.B) {
	server := stack.Redis(b, stack.RedisArgs("--appendonly", "no"))
	one := window.Layout{Tiers: layout.Tiers, Shards: 1}
	for _, test := range []struct {
		name     string
		counters int // by four tiers
		fresh    bool
	}{
		{"commands=2000/hashes=seen", 500, false},
		{"commands=2000/hashes=new", 250, true},
	} {
		b.Run(test.name, func(b *testing.B) {
			ctx, client := b.Context(), server.Client()
			require.NoError(b, client.FlushAll(ctx).Err())
			w, err := commit.OpenWriter(ctx, schema.NewStore(client, "bench"), one, "HITS", 0)
			require.NoError(b, err)
			now := time.Now()
			batch := window.NewBatch(one)
			var cursor window.Cursor
			fill := func(round int) {
				batch.Reset()
				for i := range test.counters {
					name := fmt.Appendf(nil, "api-%d", i)
					if test.fresh {
						name = fmt.Appendf(nil, "api-%d-%d", round, i)
					}
					batch.Add(name, window.HashCounter(name), now.UnixMilli(), now.UnixMilli(), 1)
				}
				cursor = cursorAt(uint64(round)+1, now)
			}
			fill(0)
			require.NoError(b, errOf(w.Commit(ctx, batch.Shard(0), cursor)))
			b.ReportAllocs()
			commands := 0
			for round := 1; b.Loop(); round++ {
				b.StopTimer()
				fill(round)
				b.StartTimer()
				done, err := w.Commit(ctx, batch.Shard(0), cursor)
				if err != nil || done.Hits != int64(test.counters) {
					b.Fatalf("%+v: %v", done, err)
				}
				commands = done.Commands
			}
			b.ReportMetric(float64(commands), "commands/op")
		})
	}
}

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
	layout := `{"version":1,"tiers":"` + window.DefaultTiers + `","shards":16,"hash":"xxhash64","id":"X","epoch_cells":256}`
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
	client.AddHook(hook(func(_ context.Context, cmds []redis.Cmder, _ func([]redis.Cmder) error) error {
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
					span := window.Last(must(human.ParseDuration(w)))
					questions = append(questions, window.Question{Counter: fmt.Sprintf("api-%d", i), Span: span})
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, errOf(reader.Answer(b.Context(), questions)))
			}
		})
	}
}
