package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"

	"tallyroll/internal/platform/natsconn"
)

const loadPerSecond = 60

// loadCounters are named like the pages of a small shop; the first ones are hit most.
var loadCounters = []string{"/home", "/search", "/cart", "/product/1", "/product/2", "/login", "/checkout", "/help",
	"/about", "/imprint"}

// loadOfDocs are those that docs/queries.md asks about. They get one hit in six.
var loadOfDocs = []string{"checkout", "shop.eu.checkout", "shop.eu.cart", "shop.us.checkout", "visitors"}

// drawHit returns an object with a key, and of visitors with a unique value.
func drawHit(popularity *rand.Zipf) []byte {
	if rand.IntN(6) > 0 {
		return fmt.Appendf(nil, `{"key":%q}`, loadCounters[popularity.Uint64()])
	}
	counter := loadOfDocs[rand.IntN(len(loadOfDocs))]
	if counter == "visitors" {
		return fmt.Appendf(nil, `{"key":%q,"unique":"visitor-%d"}`, counter, rand.IntN(1000))
	}
	return fmt.Appendf(nil, `{"key":%q}`, counter)
}

// load publishes synthetic hits until ctx ends, one per message.
func load(ctx context.Context, url string, access natsconn.Access) error {
	conn, err := nats.Connect(url)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	defer conn.Close()
	js, err := access.JetStream(conn)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	popularity := rand.NewZipf(rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), 1.3, 1, uint64(len(loadCounters)-1))
	ticker := time.NewTicker(time.Second / loadPerSecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if _, err := js.Publish(ctx, "hits.load", drawHit(popularity)); err != nil {
				return fmt.Errorf("load: %w", err)
			}
		}
	}
}

const takesPerSecond = 15

// drawTake returns a take from one of the limits in limits.yml: two thirds are one client's, which is refused
// most of the time.
func drawTake() []byte {
	switch rand.IntN(takesPerSecond) {
	case 0:
		return fmt.Appendf(nil, `{"limit":"login","key":"user-%d"}`, rand.IntN(5))
	case 1:
		return fmt.Appendf(nil, `{"limit":"tokens-5h","key":"team-%d","n":%d}`, rand.IntN(3), 200+rand.IntN(3801))
	case 2, 3, 4:
		return fmt.Appendf(nil, `{"limit":"api","key":"client-%d"}`, 1+rand.IntN(4))
	}
	return []byte(`{"limit":"api","key":"client-0"}`)
}

// takeFromLimits asks query for takes until ctx ends. It heeds no answer: an operator's own settings may name
// other limits, or need tokens.
func takeFromLimits(ctx context.Context, url string) error {
	ticker := time.NewTicker(time.Second / takesPerSecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/take",
				bytes.NewReader(drawTake()))
			if err != nil {
				return err
			}
			if response, err := http.DefaultClient.Do(request); err == nil {
				_, _ = io.Copy(io.Discard, response.Body)
				response.Body.Close()
			}
		}
	}
}
