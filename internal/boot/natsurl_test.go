package boot

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/cases"
)

func TestNATSServers(t *testing.T) {
	cases.Check(t, "natsurl", func(t *testing.T, section, given string) string {
		var s NATSServers
		err := s.UnmarshalText([]byte(given))
		require.Equal(t, section != "refused", s.Set(), given)
		if err != nil {
			require.NotContains(t, err.Error(), "hunter2", given)
			allowed, why, _ := strings.Cut(err.Error(), " (")
			require.Contains(t, allowed, "tls://", given)
			return "(" + why
		}
		marshalled, _ := json.Marshal(struct{ URL NATSServers }{s})
		for _, printed := range []string{
			fmt.Sprint(s), fmt.Sprintf("%+v", s), fmt.Sprintf("%#v", s), fmt.Sprintf("%q", s), fmt.Sprintf("%+v", struct{ url NATSServers }{s}), string(marshalled),
		} {
			require.NotContains(t, printed, "hunter2", given)
		}
		return *s.text + "\n" + s.String()
	})
}
