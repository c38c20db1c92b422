package boot_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
)

func TestJetStreamSubject(t *testing.T) {
	for name, c := range map[string]struct {
		access       boot.NATSAccess
		subject, far string
		imported     bool
	}{
		"as usual":           {boot.NATSAccess{}, "$JS.API.STREAM.INFO.X", "", false},
		"a domain":           {boot.NATSAccess{JSDomain: "leaf"}, "$JS.leaf.API.STREAM.INFO.X", "in the domain leaf", false},
		"a domain's prefix":  {boot.NATSAccess{JSAPIPrefix: "$JS.leaf.API."}, "$JS.leaf.API.STREAM.INFO.X", "in the domain leaf", false},
		"an account's":       {boot.NATSAccess{JSAPIPrefix: "JS.acc.API"}, "JS.acc.API.STREAM.INFO.X", "at the API prefix JS.acc.API", true},
		"with a dot":         {boot.NATSAccess{JSAPIPrefix: "JS.acc.API."}, "JS.acc.API.STREAM.INFO.X", "at the API prefix JS.acc.API", true},
		"the usual prefix":   {boot.NATSAccess{JSAPIPrefix: "$JS.API"}, "$JS.API.STREAM.INFO.X", "", false},
		"no domain, in fact": {boot.NATSAccess{JSAPIPrefix: "$JS.a.b.API"}, "$JS.a.b.API.STREAM.INFO.X", "at the API prefix $JS.a.b.API", true},
	} {
		t.Run(name, func(t *testing.T) {
			js, err := c.access.JetStream(&nats.Conn{})
			require.NoError(t, err)
			require.Equal(t, c.subject, boot.JetStreamSubject(js, "STREAM.INFO.X"))
			require.Equal(t, c.far, boot.FarJetStream(js))
			require.Equal(t, c.imported, boot.IsImported(js))
		})
	}
}

// A prefix holds for the account of the mirror. Asked from another account, it could lead to another stream of the same name, and
// as_of would claim what that one says.
func TestOriginJetStream(t *testing.T) {
	for name, c := range map[string]struct {
		access   boot.NATSAccess
		external *jetstream.ExternalStream
		subject  string // empty: the origin cannot be asked
	}{
		"beside the mirror":                {boot.NATSAccess{}, nil, "$JS.API.X"},
		"beside it, at the leaf":           {boot.NATSAccess{JSDomain: "leaf"}, nil, "$JS.leaf.API.X"},
		"beside it, in another account":    {boot.NATSAccess{JSAPIPrefix: "a.b"}, &jetstream.ExternalStream{DeliverPrefix: "d"}, "a.b.X"},
		"the usual prefix, at the leaf":    {boot.NATSAccess{JSDomain: "leaf"}, &jetstream.ExternalStream{APIPrefix: "$JS.API"}, "$JS.leaf.API.X"},
		"in another domain":                {boot.NATSAccess{}, &jetstream.ExternalStream{APIPrefix: "$JS.hub.API"}, "$JS.hub.API.X"},
		"the other domain, at the leaf":    {boot.NATSAccess{JSDomain: "leaf"}, &jetstream.ExternalStream{APIPrefix: "$JS.hub.API"}, "$JS.hub.API.X"},
		"an import":                        {boot.NATSAccess{}, &jetstream.ExternalStream{APIPrefix: "c.d"}, "c.d.X"},
		"an import, at the leaf":           {boot.NATSAccess{JSDomain: "leaf"}, &jetstream.ExternalStream{APIPrefix: "c.d"}, ""},
		"an import of the other account":   {boot.NATSAccess{JSAPIPrefix: "a.b"}, &jetstream.ExternalStream{APIPrefix: "c.d"}, ""},
		"a domain, from the other account": {boot.NATSAccess{JSAPIPrefix: "a.b"}, &jetstream.ExternalStream{APIPrefix: "$JS.hub.API"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			js, err := c.access.JetStream(&nats.Conn{})
			require.NoError(t, err)
			origin, err := boot.OriginJetStream(js, c.external)
			if c.subject == "" {
				if err == nil {
					t.Errorf("it is asked at %s", boot.JetStreamSubject(origin, "X"))
				}
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.subject, boot.JetStreamSubject(origin, "X"))
		})
	}
}
