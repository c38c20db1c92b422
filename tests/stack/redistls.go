package stack

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Certificate is a certificate for 127.0.0.1 that signs itself, as PEM files.
type Certificate struct{ CertFile, KeyFile string }

// NewCertificate makes one that holds for a day.
func NewCertificate(t testing.TB) Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:        true, BasicConstraintsValid: true, // it is its own authority
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, // nodes of a cluster are clients too
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	dir := t.TempDir()
	c := Certificate{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	for file, block := range map[string]*pem.Block{c.CertFile: {Type: "CERTIFICATE", Bytes: cert}, c.KeyFile: {Type: "PRIVATE KEY", Bytes: secret}} {
		require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	}
	return c
}

// RedisTLS makes the server listen for TLS too, on [RedisServer.TLSAddr], and the
// nodes of a cluster talk to each other in it. Clients must show a certificate:
// this one will do.
func RedisTLS(c Certificate) RedisOption {
	return func(o *redisOptions) { o.tls = &c }
}

func (c *Certificate) args(port int) []string {
	return []string{"--tls-port", strconv.Itoa(port), "--tls-cert-file", c.CertFile, "--tls-key-file", c.KeyFile,
		"--tls-ca-cert-file", c.CertFile, "--tls-auth-clients", "yes", "--tls-cluster", "yes", "--tls-replication", "yes"}
}

// TLSAddr is host:port of a server started with [RedisTLS].
func (s *RedisServer) TLSAddr() string { return address(s.tlsPort) }

// tlsEndpoint is a Redis as programs reach it over TLS.
type tlsEndpoint struct {
	url string
	Certificate
}

func (e tlsEndpoint) URL() string { return e.url }

// TLSEndpoint is a Redis of servers with [RedisTLS], at a rediss… URL.
func TLSEndpoint(c Certificate, url string) Endpoint { return tlsEndpoint{url, c} }

// OverTLS is a server, a cluster or the master behind Sentinels over TLS, started with [RedisTLS].
func OverTLS(c Certificate, redis Endpoint) Endpoint {
	url := strings.Replace(redis.URL(), "redis", "rediss", 1)
	var servers []*RedisServer
	switch redis := redis.(type) {
	case *RedisServer:
		servers = []*RedisServer{redis}
	case *RedisCluster:
		servers = redis.Nodes
	case *RedisSentinels:
		servers = redis.Sentinels
	}
	for _, s := range servers {
		url = strings.Replace(url, s.Addr(), s.TLSAddr(), 1)
	}
	return TLSEndpoint(c, url)
}

// RedisEnv are a program's settings for a Redis.
func RedisEnv(redis Endpoint) []string {
	env := []string{"REDIS_URL=" + redis.URL()}
	if c, ok := redis.(tlsEndpoint); ok && c.CertFile != "" {
		env = append(env, "REDIS_CA="+c.CertFile, "REDIS_CERT="+c.CertFile, "REDIS_KEY="+c.KeyFile)
	}
	return env
}
