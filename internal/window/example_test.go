package window_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
)

// A question is answered by the finest tier that reaches back to its beginning.
func ExampleLayout_Plan() {
	layout := window.Layout{Tiers: must(window.ParseTiers("1s/1m, 1m/1h, 15m/1d")), Shards: 16}
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC).UnixMilli()
	for _, length := range []time.Duration{30 * time.Second, time.Hour, 90 * time.Minute, 48 * time.Hour} {
		plan, err := layout.Plan("/home", must(window.Last(length).At(now)), now)
		if err != nil {
			fmt.Println(strings.Replace(err.Error(), ": ", ":\n", 1))
			return
		}
		fmt.Println(human.FormatDuration(length), "is answered by", plan.Tier)
	}
	// Output:
	// 30s is answered by 1s/1m
	// 1h is answered by 1m/1h
	// 90m is answered by 15m/1d
	// the question reaches back 2 days (to 2026-11-19T10:00:00Z), further than any tier:
	// 1s cells reach back 1m, 1m cells reach back 1h, 15m cells reach back 1d
}

// A worker commits hits; a reader asks for them. All moments are by Redis's clock.
func Example_countAndAnswer() {
	ctx, now := context.Background(), time.Date(2026, 11, 21, 10, 0, 30, 0, time.UTC)
	server := must(miniredis.Run())
	defer server.Close()
	server.SetTime(now)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1})
	defer client.Close()

	store := schema.NewStore(client, "example")
	layout := window.Layout{Tiers: must(window.ParseTiers("1s/1m, 1m/1h, 15m/1d")), Shards: 1}
	layout = must(store.OpenLayout(ctx, layout))
	if err := store.AddStream(ctx, "HITS"); err != nil {
		fmt.Println(err)
	}
	batch, name := window.NewBatch(layout), []byte("/home")
	for ago, n := range map[time.Duration]int64{10 * time.Second: 1, 20 * time.Minute: 2, 3 * time.Hour: 4} {
		batch.Add(name, window.HashCounter(name), now.Add(-ago).UnixMilli(), now.UnixMilli(), n) // late, most of them
	}
	writer := must(commit.OpenWriter(ctx, store, layout, "HITS", 0))
	must(writer.Commit(ctx, batch.Shard(0), window.Cursor{
		Created: now.Add(-48 * time.Hour).UnixNano(), Seq: 3, Stored: now.UnixNano(), AsOf: now.UnixMilli(),
	}))

	reader := read.NewReader(store)
	reader.Local = func() time.Time { return now } // it stands still, as the server's does
	var questions []window.Question
	for _, length := range []time.Duration{time.Minute, time.Hour, 175 * time.Minute, 24 * time.Hour} {
		questions = append(questions, window.Question{Counter: "/home", Span: window.Last(length)})
	}
	found := must(reader.Answer(ctx, questions))
	for i, a := range found.Answers {
		fmt.Printf("%s: %d, at least %d, at most %d\n", human.FormatDuration(questions[i].Span.Length), a.Total, a.Lower, a.Upper)
	}
	fmt.Println("all hits stored before", time.UnixMilli(found.AsOf).UTC().Format(time.TimeOnly))
	// Output:
	// 1m: 1, at least 1, at most 1
	// 1h: 3, at least 3, at most 3
	// 175m: 6, at least 3, at most 7
	// 1d: 7, at least 7, at most 7
	// all hits stored before 10:00:30
}
