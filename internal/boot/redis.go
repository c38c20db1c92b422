package boot

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/rs/zerolog"
)

// Redis settings.
type Redis struct {
	URL       RedisURL `env:"REDIS_URL" envDefault:"redis://127.0.0.1:6379/0" secret:"true" help:"Redis: redis://[user:password@]host:port/db, or rediss:// for TLS"`
	Namespace string   `env:"TALLYROLL_NAMESPACE" envDefault:"tallyroll" help:"first part of every Redis key: letters, digits, and _ - . (1 to 64)"`
}

// RedisURL is the address of a Redis server.
type RedisURL struct{ options *redis.Options }

// UnmarshalText reads a redis:// or rediss:// URL.
func (u *RedisURL) UnmarshalText(text []byte) error {
	options, err := redis.ParseURL(string(text))
	if err != nil {
		// The library's errors can quote the URL and with it a password.
		return fmt.Errorf("redis://[user:password@]host:port/db or rediss://…%s", hint(string(text)))
	}
	u.options = options
	return nil
}

func hint(text string) string {
	if scheme, _, ok := strings.Cut(text, "://"); ok && scheme != "redis" && scheme != "rediss" {
		return fmt.Sprintf(" (not %s://)", scheme)
	}
	if u, err := url.Parse(text); err == nil && u.Host == "" {
		return " (it names no host)"
	}
	return ""
}

// Addr is the server's address, without credentials.
func (u RedisURL) Addr() string { return u.options.Addr }

// ioTimeout bounds one exchange with Redis; what it stops is tried again by
// the caller, who knows whether that is safe.
const ioTimeout = 5 * time.Second

// Client is a client with these Options.
func (r Redis) Client() *redis.Client { return redis.NewClient(r.Options()) }

// Options are those of a client that never repeats a command by itself: go-redis
// resends after a lost reply, and a resent HINCRBY counts twice.
func (r Redis) Options() *redis.Options {
	o := *r.URL.options
	o.MaxRetries = -1
	o.ContextTimeoutEnabled = true // otherwise a deadline does not bound socket reads
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = ioTimeout, ioTimeout, ioTimeout
	o.ReadBufferSize, o.WriteBufferSize = 128<<10, 128<<10 // transactions of 2000 commands in few system calls
	o.ClientName = "tallyroll"
	return &o
}

// WaitForRedis waits until Redis answers; refused credentials are an error at once.
func WaitForRedis(ctx context.Context, client redis.UniversalClient, log zerolog.Logger) error {
	return WaitFor(ctx, log, "Redis", func(ctx context.Context) error {
		err := client.Ping(ctx).Err()
		if redis.IsAuthError(err) || redis.IsPermissionError(err) {
			return UsageError{fmt.Errorf("Redis refused the credentials: %w: put user and password into REDIS_URL", err)}
		}
		return err
	})
}

// QuietRedis stops go-redis from writing lines of its own to standard error:
// what matters comes back as errors and is logged once.
func QuietRedis() { logging.Disable() }
