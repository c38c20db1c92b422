package boot

import (
	"bytes"
	"errors"
	"github.com/stretchr/testify/require"
	"os"
	"path/filepath"
	"pgregory.net/rapid"
	"strings"
	"testing"
	"time"
)

func TestParseDuration(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"250ms": 250 * time.Millisecond, "48h": 48 * time.Hour, "1h30m": 90 * time.Minute, "0": 0, "-1s": -time.Second,
		"2d": 2 * day, "1w": 7 * day, "1w2d3h4ms": 9*day + 3*time.Hour + 4*time.Millisecond, "1.5d": 36 * time.Hour, "-1d1s": -day - time.Second,
		"+5s": 5 * time.Second,
	} {
		if got, err := ParseDuration(text); err != nil || got != want {
			t.Errorf("%q is %v (%v), want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-", "2", "d", "2days", "2d3", "1d2w", "--1d", "1d-1s", "1e3d", "0x1d", "NaNd", "Infd", "1000000000d", "100000w", "2 d"} {
		if got, err := ParseDuration(text); err == nil {
			t.Errorf("%q is %v, want an error", text, got)
		}
	}
}

// What Go writes for a duration is read as the same.
func TestParseDurationTakesWhatGoWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(-1<<61, 1<<61).Draw(t, "duration"))
		if got, err := ParseDuration(d.String()); err != nil || got != d {
			t.Fatalf("%v is read as %v, %v", d, got, err)
		}
	})
}

type testSettings struct {
	For   time.Duration `env:"TEST_FOR" envDefault:"2d"`
	Addr  string        `env:"TEST_ADDR" envDefault:"here"`
	Given bool          `given:"TEST_ADDR"`
	Inner innerSettings
}

type innerSettings struct {
	Name string `env:"TEST_NAME"`
}

func (i *innerSettings) Validate() error {
	if i.Name == "bad" {
		return &SettingError{Key: "TEST_NAME"}
	}
	return nil
}

func TestParse(t *testing.T) {
	var s testSettings
	if err := Parse(&s); err != nil || s.For != 48*time.Hour || s.Given {
		t.Errorf("%+v, %v", s, err)
	}
	if err := Parse(&s, "TEST_ADDR=here", "TEST_FOR=1w"); err != nil || s.For != 168*time.Hour || !s.Given {
		t.Errorf("%+v, %v", s, err)
	}
	if err := Parse(&s, "TEST_ADDR="); err != nil || s.Given || s.Addr != "here" {
		t.Errorf("an empty variable: %+v, %v", s, err)
	}
	var setting *SettingError
	if err := Parse(&s, "TEST_NAME=bad"); !errors.As(err, &setting) || setting.Key != "TEST_NAME" {
		t.Errorf("a struct within the settings is not validated: %v", err)
	}
	if err := Parse(&s, "TEST_FOR=2days"); !errors.As(err, &setting) || setting.Key != "TEST_FOR" || setting.Allowed != durationForms {
		t.Errorf("%v", err)
	}
}

// A variable with the program's own prefix that is no setting is named, with the setting that it may have been meant for.
// Those of others are not.
func TestUnknownSettings(t *testing.T) {
	type programSettings struct {
		Log    Log
		Redis  Redis
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
	require.NoError(t, Parse(&s))
	require.Equal(t, []UnknownSetting{{"BOOTED_LIMIT_FILE", "BOOTED_LIMITS_FILE"}}, s.Log.Unknown)
	var text bytes.Buffer
	s.Log.New(&text)
	if got := text.String(); !strings.Contains(got, `"level":"warn","variable":"BOOTED_LIMIT_FILE","nearest":"BOOTED_LIMITS_FILE"`) || strings.Count(got, "\n") != 1 {
		t.Errorf("logged: %s", got)
	}
}
