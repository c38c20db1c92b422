package query

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/answer"
	"tallyroll/internal/gate"
	"tallyroll/tests/asking"
)

// Features are on if a client can use them.
func TestAboutNamesFeaturesThatAClientCanUse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode         gate.TakeMode
		named        bool // there are named limits
		nats, limits bool
	}{
		{gate.TakeNamed, false, false, false},
		{gate.TakeNamed, true, true, true},
		{gate.TakeAny, false, false, true},
		{gate.TakeOff, true, false, false},
	} {
		settings := testSettings
		settings.Take = c.mode
		s, f := onFakeWith(t, &fakeLimiter{}, settings)
		if !c.named {
			s = newServiceFor(t, f, &fakeLimiter{}, settings)
		}
		s.status.AsksNATS = c.nats
		var got answer.AboutAnswer
		require.NoError(t, json.Unmarshal(asking.ReadAll(t, asking.Ask(s.handler(), http.MethodGet, "/v1/about", "")), &got))
		require.Equal(t, answer.Features{NATS: c.nats, Limits: c.limits, Watch: c.nats, Uniques: true}, got.Features, "%+v", c)
	}
}
