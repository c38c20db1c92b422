// Package cause names the state of NATS or Redis that an error comes from, and the remedy, if the error's own
// text does not. All programs use its words.
package cause

import (
	"fmt"

	"tallyroll/internal/platform/setting"
)

// Cause is a state that makes requests fail.
type Cause struct {
	what, remedy string
	lasts        bool // waiting does not mend it
}

// The states of Redis.
var (
	RedisLogin = Cause{"Redis refused the credentials",
		"put user and password into REDIS_URL, or the password into REDIS_PASSWORD", true}
	RedisRights = Cause{"Redis refused a command",
		"give the user of REDIS_URL the rights in docs/delivery.md, and rename no command", true}
	RedisDatabase = Cause{"Redis refused the database of REDIS_URL", "use one that it has, or leave it out", true}
	RedisEndpoint = Cause{"the nodes of the cluster announce no address",
		"set cluster-announce-ip and cluster-preferred-endpoint-type ip on each, or a cluster-announce-hostname", false}
	RedisTLS = Cause{"Redis closed the connection before its first reply, as a server with TLS does",
		"if it has TLS, write rediss:// in REDIS_URL", false}
	RedisFull = Cause{"Redis is full", "bound the names with INGEST_MAX_NAMES, then erase some, or raise " +
		"maxmemory (docs/operations.md#tallyrollredismemory)", false}
	RedisNoTLS = Cause{"Redis did not answer the TLS handshake, as a server without TLS does",
		"if it has no TLS, write redis:// in REDIS_URL", false}
)

// The states of NATS.
var (
	NATSNoTLS = Cause{"NATS has no TLS", "write nats:// in NATS_URL, or give the server a tls block", true}
	NATSTLS   = Cause{"NATS sent nothing before TLS, as a server with handshake_first does",
		"if it has that, set handshake_first: auto in its tls block", false}
	NoJetStream = Cause{"NATS has no JetStream",
		"start nats-server with -js, or enable JetStream for the account", true}
	NoLimitsStream = Cause{"no stream takes LIMITS_SUBJECT",
		"start ingest, or set it to a subject of a stream that ingest reads", false}
	NoAck = Cause{"the stream has no_ack, so nothing shows whether it stores a message",
		"update it with no_ack: false", true}
)

// With adds what else is known of the state.
func (c Cause) With(detail string) Cause {
	if detail != "" {
		c.what += ": " + detail
	}
	return c
}

// Of returns an error's cause and remedy, around the error.
func (c Cause) Of(err error) error {
	out := fmt.Errorf("%s: %w: %s", c.what, err, c.remedy)
	if c.lasts {
		return setting.UsageError{Err: out}
	}
	return out
}
