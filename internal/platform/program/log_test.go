package program

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/progress"
	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/platform/trace"
)

func TestLogFormatIsJSONUnlessATerminalReadsIt(t *testing.T) {
	var byDefault struct{ Log Log }
	require.NoError(t, setting.Parse(&byDefault))
	require.EqualValues(t, "auto", byDefault.Log.Format)
	for format, want := range map[LogFormat]string{
		"auto": `^\{`,
		// Lines of several programs are put in order by their times: these have milliseconds.
		"json":    `^\{.*"time":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}(Z|[+-]\d\d:\d\d)"`,
		"console": `^\d\d:\d\d:\d\d\.\d{3} INF hello[^\x1b]*$`, // without colours
	} {
		var text bytes.Buffer
		log := byDefault.Log
		log.Format = format
		line := log.New(progress.NewScreen(&text, "messages"))
		line.Info().Msg("hello")
		require.Regexp(t, want, text.String(), format)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	defer file.Close()
	if progress.IsTerminal(file) || progress.IsTerminal(progress.NewScreen(file, "messages")) {
		t.Error("a file is taken for a terminal")
	}
}

// A line has the trace of the request whose context it has, and of no other.
func TestLogNamesTheTrace(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	var out bytes.Buffer
	log := Sampled(Log{Format: "json"}.New(&out)) // as clients' failures are
	ctx := trace.With(t.Context(), map[string][]string{"Traceparent": {"00-" + id + "-00f067aa0ba902b7-01"}})
	log.Warn().Ctx(ctx).Msg("with")
	log.Warn().Ctx(t.Context()).Msg("without")
	log.Warn().Msg("alone")
	if got := out.String(); strings.Count(got, "trace_id") != 1 || !strings.Contains(got, `"message":"with"}`) || !strings.Contains(got, `"trace_id":"`+id+`","message":"with"`) {
		t.Errorf("%s", got)
	}
}

// A variable with the program's own prefix that is no setting is named, with the setting that it may have
// been meant for. Those of others are not.
func TestUnknownVariableOfTheProgramIsLoggedWithTheNearestSetting(t *testing.T) {
	type programSettings struct {
		Log    Log
		Redis  redisconn.Settings
		Addr   string `env:"BOOTED_ADDR"`
		Limits string `env:"BOOTED_LIMITS_FILE"`
		Token  string `env:"BOOTED_TOKEN" secret:"true"`
	}
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("secret"), 0o600))
	for key, value := range map[string]string{
		"BOOTED_LIMIT_FILE": "limits.yml", "BOOTED_LIMITS_FILE": "", "BOOTED_TOKEN_FILE": file, "BOOTED_EMPTY": "", "BOOTEDS_OTHER": "x", "REDIS_HOST": "x", "NATS_URL": "nats://x", "OTHER_BOOTED_ADDR": "x",
		"BOOTED_SERVICE_HOST": "10.0.0.1", "BOOTED_SERVICE_PORT_HTTP": "80", "BOOTED_PORT": "tcp://10.0.0.1:80", "BOOTED_PORT_80_TCP_ADDR": "10.0.0.1",
	} {
		t.Setenv(key, value)
	}
	var s programSettings
	require.NoError(t, setting.Parse(&s))
	require.Equal(t, []setting.Unknown{{Key: "BOOTED_LIMIT_FILE", Nearest: "BOOTED_LIMITS_FILE"}}, s.Log.Unknown)
	var text bytes.Buffer
	s.Log.New(&text)
	if got := text.String(); !strings.Contains(got, `"level":"warn","variable":"BOOTED_LIMIT_FILE","nearest":"BOOTED_LIMITS_FILE"`) || strings.Count(got, "\n") != 1 {
		t.Errorf("logged: %s", got)
	}
}
