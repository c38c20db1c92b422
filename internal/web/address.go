package web

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"tallyroll/internal/platform/setting"
)

// Addresses are the settings of where a service listens, for a field with an envPrefix and ADDR.default.
type Addresses struct {
	Addr        Address `env:"ADDR" help:"where HTTP listens, host:port"`
	TLS         TLS
	MetricsAddr Address `env:"METRICS_ADDR" help:"an address of its own for /metrics and Go's profiles (/debug/pprof/), host:port, where /healthz and /readyz are too; by default /metrics is at {}ADDR, and there are no profiles"`
}

// Listeners are open addresses. Serve closes them.
type Listeners struct {
	Main        net.Listener
	Certificate *Certificate // of Main; nil for plain HTTP
	metrics     net.Listener // nil if they have no address of their own
}

// Listen opens the addresses. The certificate becomes one of files, which are reread.
func (a Addresses) Listen(files *setting.Files) (*Listeners, error) {
	var out Listeners
	var err error
	if out.Certificate, err = openCertificate(a.TLS, files); err != nil {
		return nil, err
	}
	out.Main, err = a.Addr.Listen()
	if err != nil || !a.MetricsAddr.Set() {
		return &out, err
	}
	if out.metrics, err = a.MetricsAddr.Listen(); err != nil {
		return nil, errors.Join(err, out.Main.Close())
	}
	return &out, nil
}

// URL is where the service answers.
func (l *Listeners) URL() string {
	if l.Certificate != nil {
		return "https://" + l.Main.Addr().String()
	}
	return "http://" + l.Main.Addr().String()
}

// Address is a setting of where a program listens: host:port. The zero value is unset.
type Address struct{ key, hostPort string }

func (a *Address) SetKey(key string) { a.key = key }

func (a *Address) UnmarshalText(text []byte) error {
	a.hostPort = string(text)
	if _, _, err := net.SplitHostPort(a.hostPort); err != nil {
		return errors.New("host:port")
	}
	return nil
}

func (a Address) String() string { return a.hostPort }

func (a Address) Set() bool { return a.hostPort != "" }

// Listen opens the address.
func (a Address) Listen() (net.Listener, error) {
	l, err := net.Listen("tcp", a.hostPort)
	if err != nil {
		allowed := fmt.Sprintf("a host:port of this machine (%v)", err)
		if errors.Is(err, syscall.EADDRINUSE) {
			allowed = fmt.Sprintf("a host:port that is free (%v): stop what listens there, or set %s to another port; "+
				"port 0 is any free one", err, a.key)
		}
		return nil, &setting.Error{Key: a.key, Value: a.hostPort, MustBe: allowed}
	}
	return l, nil
}

// ListenNear opens the address or, if its port is in use, any free port of the same host. It is for an
// address that was not configured and that others do not need to know.
func (a Address) ListenNear() (net.Listener, error) {
	l, err := net.Listen("tcp", a.hostPort)
	if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	host, _, _ := net.SplitHostPort(a.hostPort) // it has been parsed
	return Address{a.key, net.JoinHostPort(host, "0")}.Listen()
}
