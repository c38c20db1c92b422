package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"

	"tallyroll/internal/natsconn"
)

const loadPerSecond = 50

// loadCounters are named like the pages of a small shop; the first ones are hit most.
var loadCounters = []string{"/home", "/search", "/cart", "/product/1", "/product/2", "/login", "/checkout", "/help", "/about", "/imprint"}

// load publishes synthetic hits until ctx ends, one per message: an object with only a key.
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
			counter := loadCounters[popularity.Uint64()]
			if _, err := js.Publish(ctx, "hits.load", fmt.Appendf(nil, `{"key":%q}`, counter)); err != nil {
				return fmt.Errorf("load: %w", err)
			}
		}
	}
}
