package redisconn

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/platform/setting"
)

// URL holds the address and the kind of Redis: one server, a cluster, or servers behind Sentinels.
type URL struct{ options *redis.UniversalOptions }

const redisForms = "redis://[user:password@]host:port/db, " +
	"redis+cluster://[user:password@]host:port/db?addr=host:port, or " +
	"redis+sentinel://[user:password@]host:port/db?master_name=NAME&addr=host:port" +
	"&sentinel_username=…&sentinel_password=…; rediss… in place of redis… for TLS"

// UnmarshalText reads a URL in one of redisForms. Errors quote only the scheme: an unescaped password can be
// anywhere else.
func (u *URL) UnmarshalText(text []byte) error {
	options, err := parseRedisURL(string(text))
	if err != nil {
		return fmt.Errorf("%s (%w)", redisForms, err)
	}
	u.options = options
	return nil
}

// Addr returns the address, or addresses, without credentials.
func (u URL) Addr() string { return strings.Join(u.options.Addrs, ",") }

type redisKind struct {
	port   string   // if the URL has none
	params []string // that are allowed
}

var redisKinds = map[string]redisKind{
	"":         {port: "6379"},
	"cluster":  {port: "6379", params: []string{"addr"}},
	"sentinel": {port: "26379", params: []string{"addr", "master_name", "sentinel_username", "sentinel_password"}},
}

// parseRedisURL reads all forms in the same way. The library's parsers disagree about whose password a URL
// has, and accept options that would break the promises of this program, such as reads from replicas.
func parseRedisURL(text string) (*redis.UniversalOptions, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("this is not a URL") // err quotes it
	}
	if !strings.Contains(text, "://") {
		return nil, fmt.Errorf("no scheme")
	}
	base, kindName, _ := strings.Cut(u.Scheme, "+")
	kind, ok := redisKinds[kindName]
	if !ok || base != "redis" && base != "rediss" || strings.HasSuffix(u.Scheme, "+") {
		return nil, fmt.Errorf("not %.24s://", u.Scheme)
	}
	host := u.Hostname()
	if host == "" {
		return nil, fmt.Errorf("no host")
	}
	if !setting.IsHost(host) {
		return nil, fmt.Errorf("its host is neither a name nor an address")
	}
	port := u.Port()
	if port == "" {
		port = kind.port
	}
	if !setting.IsPort(port) {
		return nil, fmt.Errorf("a port is a number from 1 to 65535")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("what follows the ? cannot be read")
	}
	for name := range query {
		if !slices.Contains(kind.params, name) {
			return nil, fmt.Errorf("the parameters of %s:// are: %s; a ? in a password is written %%3F", u.Scheme,
				cmp.Or(strings.Join(kind.params, ", "), "none"))
		}
	}
	if u.Fragment != "" {
		return nil, fmt.Errorf("a # in a password is written %%23")
	}
	o := &redis.UniversalOptions{
		Addrs:            []string{net.JoinHostPort(host, port)},
		Username:         u.User.Username(),
		IsClusterMode:    kindName == "cluster",
		MasterName:       query.Get("master_name"),
		SentinelUsername: query.Get("sentinel_username"),
		SentinelPassword: query.Get("sentinel_password"),
	}
	o.Password, _ = u.User.Password()
	for _, addr := range query["addr"] {
		// Addresses are logged, and a password before an @ would be part of one.
		if h, p, err := net.SplitHostPort(addr); err != nil || !setting.IsHost(h) || !setting.IsPort(p) {
			return nil, fmt.Errorf("an addr is not host:port; user and password come before the first host, for " +
				"all servers")
		}
		o.Addrs = append(o.Addrs, addr)
	}
	if kindName == "sentinel" && o.MasterName == "" {
		return nil, fmt.Errorf("no master_name")
	}
	if db := strings.Trim(u.Path, "/"); db != "" {
		if o.DB, err = strconv.Atoi(db); err != nil || o.DB < 0 {
			return nil, fmt.Errorf("the database is a whole number")
		}
	}
	if base == "rediss" {
		// A cluster or a Sentinel returns addresses of servers, so every certificate is checked against the
		// name in the URL.
		o.TLSConfig = &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	}
	return o, nil
}

// TLS holds how the client checks the servers of a rediss URL, and its own certificate.
type TLS struct {
	CA   setting.Path `env:"REDIS_CA" help:"with rediss: a PEM file of the authorities that sign the servers' certificates (default: the system's)"`
	Cert setting.Path `env:"REDIS_CERT" help:"this client's certificate (PEM), with REDIS_KEY: redis-server asks for one unless it has tls-auth-clients no"`
	Key  setting.Path `env:"REDIS_KEY" help:"the private key of REDIS_CERT (PEM)"`

	roots *x509.CertPool // of CA; nil for the system's
}

// apply returns a URL's configuration with the files; nil without TLS.
func (t TLS) apply(config *tls.Config, pair *setting.Reloadable[tls.Certificate]) *tls.Config {
	if config == nil {
		return nil
	}
	config = config.Clone()
	config.RootCAs = t.roots
	if t.Cert.File != "" {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			now, err := pair.Get()
			return &now, err
		}
	}
	return config
}
