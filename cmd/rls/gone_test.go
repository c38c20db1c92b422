package main

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// Redis is restarted while all connections of the program are idle. Each request after that is decided by
// Redis, over TLS as without it: Envoy sees no OVER_LIMIT for a connection that is gone.
func TestEnvoySeesNothingOfARestartOfRedisBetweenRequests(t *testing.T) {
	t.Parallel()
	certificate := stack.NewCertificate(t)
	server := stack.Redis(t, stack.RedisTLS(certificate))
	for _, redis := range []stack.Endpoint{server, stack.OverTLS(certificate, server)} {
		r := start(t, redis, `limits:
- {name: pages, window: 1h, max: 1000000, fail: closed, envoy: {domain: edge, descriptor: [{key: path}]}}
`)
		require.Equal(t, "OK: OK", codesOf(r.ask(descriptor("path=/"))))
		require.NoError(t, server.Client().ClientPause(t.Context(), 300*time.Millisecond).Err())
		var asking sync.WaitGroup
		for range 64 { // so that it opens all connections of its pool
			asking.Go(func() { r.ask(descriptor("path=/")) })
		}
		asking.Wait()
		server.Kill()
		server.Start()
		for i := range 200 {
			require.Equal(t, "OK: OK", codesOf(r.ask(descriptor("path=/"))), "%s, request %d", redis.URL(), i)
		}
	}
}
