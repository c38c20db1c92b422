// Package redisconn creates clients of one Redis server, a cluster, or a master behind Sentinels. They repeat
// no command, and leave a server that is not the master (any more).
package redisconn

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/rs/zerolog"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/cause"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/platform/wait"
)

//lint:file-ignore ST1005 Redis is a name

// Settings are those of the connection to Redis.
type Settings struct {
	URL       URL    `env:"REDIS_URL" envDefault:"redis://127.0.0.1:6379/0" secret:"true" help:"Redis: redis://[user:password@]host:port/db; a cluster: redis+cluster://host:port/db?addr=host:port; Sentinels: redis+sentinel://host:port/db?master_name=NAME&addr=host:port (their own credentials: sentinel_username, sentinel_password); rediss://, rediss+cluster://, rediss+sentinel:// for TLS"`
	Namespace string `env:"TALLYROLL_NAMESPACE" envDefault:"tallyroll" help:"first part of every Redis key: letters, digits, and _ - . (1 to 64)"`
	Password  string `env:"REDIS_PASSWORD" secret:"true" help:"the password, if REDIS_URL has none"`
	TLS       TLS

	IdleTimeout time.Duration `env:"REDIS_IDLE_TIMEOUT" envDefault:"3m" help:"a connection that was idle for so long is not used again: less than the idle timeout of any balancer or firewall on the way, some of which end connections without a word (Azure's after 4m, AWS's after 350s, others after 10m)"`

	// URLFile has the user and the password of the next connection. The rest is that of the start.
	URLFile      setting.SecretFile `file:"REDIS_URL"`
	PasswordFile setting.SecretFile `file:"REDIS_PASSWORD"`

	files *redisFiles
}

func (r *Settings) Validate() error {
	if err := hit.CheckNamespace(r.Namespace); err != nil {
		return setting.Check("TALLYROLL_NAMESPACE", r.Namespace, err)
	}
	if err := setting.CheckDuration("REDIS_IDLE_TIMEOUT", r.IdleTimeout, time.Second, 24*time.Hour); err != nil {
		return err
	}
	if r.Password != "" && r.URL.options.Password != "" {
		return &setting.Error{Key: "REDIS_PASSWORD", MustBe: "unset if REDIS_URL has a password"}
	}
	t := &r.TLS
	for _, path := range []setting.Path{t.CA, t.Cert, t.Key} {
		if path.File != "" && r.URL.options.TLSConfig == nil {
			return &setting.Error{Key: path.Key, Value: path.File, MustBe: "unset unless REDIS_URL begins with " +
				"rediss: the connection would not be encrypted"}
		}
	}
	if t.CA.File != "" {
		var err error
		if t.roots, err = t.CA.Pool(); err != nil {
			return err
		}
	}
	return setting.CheckKeyPair(t.Cert, t.Key)
}

type redisFiles struct {
	login *setting.Reloadable[redisLogin]
	pair  *setting.Reloadable[tls.Certificate]
}

// Logging returns settings whose clients log if their files cannot be reread.
func (r Settings) Logging(log zerolog.Logger) Settings {
	r.files = &redisFiles{
		setting.NewReloadable("file of a secret of Redis", log, r.readLogin),
		setting.NewReloadable("REDIS_CERT and REDIS_KEY", log, func() (tls.Certificate, error) {
			return setting.LoadPair(r.TLS.Cert, r.TLS.Key, log)
		}),
	}
	return r
}

type redisLogin struct{ user, password string }

func (r Settings) readLogin() (login redisLogin, err error) {
	url, password := r.URL, r.Password
	if r.URLFile.Set() {
		text, err := r.URLFile.Read()
		if err != nil {
			return login, err
		}
		if err := url.UnmarshalText([]byte(text)); err != nil {
			return login, r.URLFile.Refuse(err.Error())
		}
	}
	if r.PasswordFile.Set() {
		if password, err = r.PasswordFile.Read(); err != nil {
			return login, err
		}
	}
	return redisLogin{url.options.Username, cmp.Or(password, url.options.Password)}, nil
}

// ioTimeout bounds one exchange with Redis. Only the caller can decide whether a retry is safe.
const ioTimeout = 5 * time.Second

// Client returns a client with these Options for one server, a cluster, or the master behind Sentinels.
func (r Settings) Client() redis.UniversalClient { return r.ClientOnConnect(nil) }

// ClientOnConnect returns a client that calls connected with each new connection before use.
func (r Settings) ClientOnConnect(onConnect func(context.Context, *redis.Conn) error) redis.UniversalClient {
	o := r.Options()
	o.OnConnect = func(ctx context.Context, conn *redis.Conn) error {
		if err := setName(ctx, conn); err != nil || onConnect == nil {
			return err
		}
		return onConnect(ctx, conn)
	}
	to := new(servers)
	o.Dialer = to.dialer(o.TLSConfig)
	if !o.IsClusterMode {
		client := redis.NewUniversalClient(o)
		client.AddHook(to)
		return client
	}
	// By default, the client searches for the master only when a node redirects it. A dead node does not, so
	// for a minute the client would not find its successor.
	c := o.Cluster()
	c.ClusterStateReloadInterval = time.Second
	c.NewClient = func(options *redis.Options) *redis.Client {
		options.DB = o.DB // clusters of Valkey 9 have several, which the library does not support
		node := redis.NewClient(options)
		node.AddHook(endpoints{})
		return node
	}
	return redis.NewClusterClient(c)
}

// setName names a connection, unless Redis refuses that, as to a user without the right. After any other
// error the reply may still come, and would be taken for that of the next command.
func setName(ctx context.Context, conn *redis.Conn) error {
	err := conn.ClientSetName(ctx, "tallyroll").Err()
	if errors.As(err, new(redis.Error)) {
		return nil
	}
	return err
}

// Options returns options with retries off. By default, go-redis resends after a lost reply, and a resent
// HINCRBY counts twice. A cluster's client follows redirects and repeats what failed on the way, so use it
// only for reads, and for writes that can be repeated. The clients of its nodes do not repeat.
func (r Settings) Options() *redis.UniversalOptions {
	Quiet()
	o := *r.URL.options
	files := r.files
	if files == nil {
		files = r.Logging(zerolog.Nop()).files
	}
	o.TLSConfig = r.TLS.apply(o.TLSConfig, files.pair)
	o.Password = cmp.Or(r.Password, o.Password)
	if r.URLFile.Set() || r.PasswordFile.Set() {
		o.CredentialsProviderContext = func(context.Context) (user, password string, err error) {
			login, err := files.login.Get()
			return login.user, login.password, err
		}
	}
	o.MaxRetries = -1
	o.ContextTimeoutEnabled = true // otherwise a deadline does not bound socket reads
	// one takes 5 s if a machine is gone: the caller retries, by then maybe at another machine
	o.DialerRetries = 1
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = ioTimeout, ioTimeout, ioTimeout
	o.ReadBufferSize, o.WriteBufferSize = 128<<10, 128<<10 // transactions of 2000 commands in few system calls
	o.ConnMaxIdleTime = r.IdleTimeout
	o.Protocol = 2 // with RESP3 the client checks for push messages before each reply, 7 % of a worker's time
	return &o
}

// Await waits until Redis answers; on a cluster, until every master does. If the server is of another kind
// than in REDIS_URL, it fails at once.
func Await(ctx context.Context, client redis.UniversalClient, log zerolog.Logger) error {
	return Retry(ctx, log, func(ctx context.Context) error {
		err := ping(ctx, client)
		if err != nil && strings.Contains(err.Error(), "cluster support disabled") {
			return setting.UsageError{Err: fmt.Errorf("Redis is not a cluster: %w: write redis:// in REDIS_URL", err)}
		}
		return err
	})
}

// Retry calls try until it succeeds, because a fail-over can happen between any two calls. try must be safe
// to repeat. Refused credentials, certificates and rights are errors at once.
func Retry(ctx context.Context, log zerolog.Logger, try func(context.Context) error) error {
	return wait.Until(ctx, log, "Redis", func(ctx context.Context) error {
		return Explain(try(ctx))
	})
}

// IsFull reports whether Redis refused a command, maybe one of a script, because it has no memory left
// (maxmemory).
func IsFull(err error) bool {
	return err != nil && strings.Contains(err.Error(), "OOM command not allowed")
}

// Explain returns an error with its cause, if that is known. What waiting does not mend is permanent.
func Explain(err error) error {
	if err == nil {
		return nil
	}
	if refused := setting.RefusedCertificate(err, "Redis"); refused != nil {
		return refused
	}
	switch {
	case redis.HasErrorPrefix(err, "SELECT is not allowed"), redis.HasErrorPrefix(err, "DB index is out of range"):
		return cause.RedisDatabase.Of(err)
	case redis.IsAuthError(err):
		return cause.RedisLogin.Of(err)
	case redis.IsPermissionError(err), redis.HasErrorPrefix(err, "unknown command"),
		redis.HasErrorPrefix(err, "EXECABORT Transaction discarded because of: NOPERM"):
		return cause.RedisRights.Of(err)
	case IsFull(err):
		return cause.RedisFull.Of(err)
	}
	return err
}

// endpoints explains the answer of a cluster whose nodes announce no address, which the library takes for
// that of a missing key.
type endpoints struct{}

func (endpoints) DialHook(next redis.DialHook) redis.DialHook { return next }

func (endpoints) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == redis.Nil && cmd.Name() == "cluster" {
			err = cause.RedisEndpoint.Of(errors.New("no host in the reply to CLUSTER SLOTS"))
			cmd.SetErr(err)
		}
		return err
	}
}

func (endpoints) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func ping(ctx context.Context, client redis.UniversalClient) error {
	if cluster, ok := client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			info, err := node.ClusterInfo(ctx).Result()
			if err == nil && !strings.Contains(info, "cluster_state:ok") {
				err = fmt.Errorf("%s reports that the cluster is not ok", node.Options().Addr)
			}
			return err
		})
	}
	if err := client.Ping(ctx).Err(); err != nil {
		return err
	}
	// Both kinds answer PING and refuse most other commands. If a server does not report its kind, REDIS_URL
	// decides.
	info := client.Info(ctx, "server").Val()
	switch { // redis_mode, or server_mode from Valkey 8 on
	case strings.Contains(info, "_mode:cluster"):
		return setting.UsageError{Err: fmt.Errorf("Redis is a node of a cluster: write redis+cluster:// in REDIS_URL")}
	case strings.Contains(info, "_mode:sentinel"):
		return setting.UsageError{Err: fmt.Errorf("Redis is a Sentinel: write redis+sentinel://…?master_name=NAME in " +
			"REDIS_URL")}
	}
	return nil
}

// Quiet stops go-redis's own lines on standard error: errors are returned, and logged once.
var Quiet = sync.OnceFunc(logging.Disable)
