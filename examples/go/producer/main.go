// Producer counts a hit for each line of standard input: the line names the counter.
//
//	printf 'checkout\n/cart\n' | go run ./examples/go/producer
//
// It ends with 0 if JetStream has stored every hit. NATS_URL says where NATS is.
package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"log"
	"os"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func main() {
	conn, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		log.Fatal(err)
	}
	var hits []map[string]any
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		// ts is when it happened. Without it, a hit counts at the time at which JetStream stores it.
		hits = append(hits, map[string]any{"key": lines.Text(), "ts": time.Now().UnixMilli()})
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
	for message := range slices.Chunk(hits, 100) { // INGEST_MAX_HITS allows 10,000 in one message
		store(js, message)
	}
}

// store returns when JetStream has stored the message. After an error it is uncertain whether it has. So each
// attempt has the same Nats-Msg-Id: of those within two minutes, JetStream stores the first.
func store(js jetstream.JetStream, hits []map[string]any) {
	body, err := json.Marshal(hits)
	if err != nil {
		log.Fatal(err)
	}
	id := jetstream.WithMsgID(rand.Text())
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_, err = js.Publish(ctx, "hits.example", body, id)
		cancel()
		if err == nil {
			return
		}
		log.Printf("not stored yet: %v", err) // no stream? ingest creates it
	}
	log.Fatal("given up: the last hits may not be stored")
}
