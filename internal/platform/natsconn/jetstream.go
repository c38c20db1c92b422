package natsconn

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/platform/cause"
)

// JetStream's API has other subjects than usual if it belongs to another domain (a leaf node with its own
// JetStream), or to another account, which exports it.

const (
	domainStart = "$JS."
	domainEnd   = ".API"
)

// JetStream returns the JetStream of these settings.
func (n Access) JetStream(conn *nats.Conn, opts ...jetstream.JetStreamOpt) (jetstream.JetStream, error) {
	prefix := strings.TrimSuffix(n.JSAPIPrefix, ".")
	domain, named := domainOf(prefix)
	switch {
	case n.JSDomain != "":
		return jetstream.NewWithDomain(conn, n.JSDomain, opts...)
	case named:
		return jetstream.NewWithDomain(conn, domain, opts...)
	case prefix != "" && prefix+"." != jetstream.DefaultAPIPrefix:
		return jetstream.NewWithAPIPrefix(conn, prefix, opts...)
	}
	return jetstream.New(conn, opts...)
}

// ExplainJetStream returns an error of JetStream with its cause, if there is no JetStream. One of another
// account or domain may only be unreachable.
func ExplainJetStream(js jetstream.JetStream, err error) error {
	none := errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, nats.ErrNoResponders)
	switch remote := DescribeRemote(js) != ""; {
	case remote && none:
		return errors.New("no reply: the connection to it may be closed, or NATS_JS_DOMAIN or NATS_JS_API_PREFIX " +
			"(or the context) may be wrong")
	case none, errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return cause.NoJetStream.Of(fmt.Errorf("%s: %w", ServerOf(js.Conn()), err))
	}
	return err
}

func domainOf(prefix string) (domain string, named bool) {
	rest, begins := strings.CutPrefix(prefix, domainStart)
	domain, ends := strings.CutSuffix(rest, domainEnd)
	return domain, begins && ends && domain != "" && !strings.Contains(domain, ".")
}

// APISubject returns the subject of an API request that the client library lacks, such as
// "STREAM.INFO.HITS".
func APISubject(js jetstream.JetStream, request string) string {
	o := js.Options()
	switch {
	case o.Domain != "":
		return domainStart + o.Domain + domainEnd + "." + request
	case o.APIPrefix != "":
		return strings.TrimSuffix(o.APIPrefix, ".") + "." + request
	}
	return jetstream.DefaultAPIPrefix + request
}

// DescribeRemote describes how a JetStream of another account or domain is reached; "" is the connection's
// own. A far one can be unreachable while the NATS server answers.
func DescribeRemote(js jetstream.JetStream) string {
	o := js.Options()
	switch {
	case o.Domain != "":
		return "in the domain " + o.Domain
	case o.APIPrefix != "":
		return "at the API prefix " + strings.TrimSuffix(o.APIPrefix, ".")
	}
	return ""
}

// IsImported reports whether the API is another account's.
func IsImported(js jetstream.JetStream) bool { return js.Options().APIPrefix != "" }

// IsOwn reports whether a mirror or source with this field copies a stream of its own JetStream.
func IsOwn(js jetstream.JetStream, external *jetstream.ExternalStream) bool {
	origin, err := OriginJetStream(js, external)
	return err == nil && origin == js
}

// OriginJetStream returns the JetStream that has the origin of one of js's mirrors. external is the mirror's
// own field, nil if both are in one JetStream. An error means that js's connection cannot reach it: a prefix
// is valid in the mirror's account, and may be another API in this program's. A domain has the same name
// everywhere.
func OriginJetStream(js jetstream.JetStream, external *jetstream.ExternalStream) (jetstream.JetStream, error) {
	if external == nil {
		return js, nil
	}
	prefix := strings.TrimSuffix(external.APIPrefix, ".")
	if prefix == "" || prefix+"." == jetstream.DefaultAPIPrefix {
		return js, nil
	}
	o := js.Options()
	_, isDomain := domainOf(prefix)
	if o.APIPrefix != "" || o.Domain != "" && !isDomain {
		return nil, fmt.Errorf("its origin at %s cannot be read from here: JetStream is %s", prefix, DescribeRemote(js))
	}
	return jetstream.NewWithAPIPrefix(js.Conn(), prefix)
}
