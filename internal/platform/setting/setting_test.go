package setting

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestDurationsHaveDaysAndWeeks(t *testing.T) {
	for text, inGo := range map[string]string{
		"250ms": "250ms", "48h": "48h", "1h30m": "90m", "0": "0", "-1s": "-1s", "+5s": "5s", "2d": "48h", "1w": "168h",
		"1w2d3h4ms": "219h4ms", "1.5d": "36h", "-1d1s": "-24h1s",
	} {
		want, err := time.ParseDuration(inGo)
		require.NoError(t, err)
		got, err := ParseDuration(text)
		require.NoError(t, err)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"", "-", "2", "d", "2days", "2d3", "1d2w", "--1d", "1d-1s", "1e3d", "0x1d", "NaNd", "Infd", "1000000000d", "100000w", "2 d",
	} {
		_, err := ParseDuration(text)
		require.Error(t, err, text)
	}
}

func TestDurationThatGoWritesIsReadAsTheSame(t *testing.T) {
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
		return &Error{Key: "TEST_NAME"}
	}
	return nil
}

func TestSettingsAreParsedWithDefaultsAndValidated(t *testing.T) {
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
	var setting *Error
	if err := Parse(&s, "TEST_NAME=bad"); !errors.As(err, &setting) || setting.Key != "TEST_NAME" {
		t.Errorf("a struct within the settings is not validated: %v", err)
	}
	if err := Parse(&s, "TEST_FOR=2days"); !errors.As(err, &setting) || setting.Key != "TEST_FOR" || setting.MustBe != durationForms {
		t.Errorf("%v", err)
	}
}

type sharedSettings struct {
	Addr string `env:"ADDR" envDefault:"nowhere" help:"where {} listens"`
	File Path   `env:"FILE" help:"of {}ADDR"`
}

// A struct that programs share has each program's prefix, and the defaults and help of its tags.
func TestSharedSettingsBeginWithTheProgramsPrefix(t *testing.T) {
	var s struct {
		One sharedSettings `envPrefix:"ONE_" ADDR.default:"here"`
		Two sharedSettings `envPrefix:"TWO_" FILE.help:"a file besides {}ADDR"`
	}
	t.Setenv("TWO_ADDR", "there")
	require.NoError(t, Parse(&s, "TWO_FILE=/f"))
	require.Equal(t, sharedSettings{"here", Path{"ONE_FILE", ""}}, s.One)
	require.Equal(t, sharedSettings{"there", Path{"TWO_FILE", "/f"}}, s.Two)
	var got []string
	for _, f := range Fields(&s) {
		got = append(got, f.Key+"|"+f.Default+"|"+f.Help)
	}
	require.Equal(t, []string{
		"ONE_ADDR|here|where ONE_ listens", "ONE_FILE||of ONE_ADDR",
		"TWO_ADDR|nowhere|where TWO_ listens", "TWO_FILE||a file besides TWO_ADDR",
	}, got)
}

type secretSettings struct {
	Word     string     `env:"TEST_WORD" secret:"true"`
	Given    bool       `given:"TEST_WORD"`
	WordFile SecretFile `file:"TEST_WORD"`
	Tokens   Tokens     `env:"TEST_TOKENS" secret:"true"`
	Own      string     `env:"TEST_OWN" secret:"true"`
	OwnFile  string     `env:"TEST_OWN_FILE"`
	Open     string     `env:"TEST_OPEN"`
}

func writeSecret(t *testing.T, path, text string) string {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestSecretIsReadFromItsFile(t *testing.T) {
	dir := t.TempDir()
	file := writeSecret(t, filepath.Join(dir, "word"), "hun ter2\r\n")
	t.Setenv("TEST_WORD_FILE", file)
	t.Setenv("TEST_OWN_FILE", "/none") // a setting of the program's own
	t.Setenv("TEST_OPEN_FILE", "/none")
	var s secretSettings
	if err := Parse(&s); err != nil || s.Word != "hun ter2" || !s.Given || s.WordFile != (SecretFile{"TEST_WORD_FILE", file}) || s.OwnFile != "/none" {
		t.Errorf("%+v: %v", s, err)
	}
	s = secretSettings{}
	if err := Parse(&s, "TEST_WORD=other"); err != nil || s.Word != "other" || s.WordFile.Set() {
		t.Errorf("overridden: %+v: %v", s, err)
	}
	t.Setenv("TEST_WORD", "")
	if err := Parse(&s); err != nil {
		t.Errorf("an empty setting beside a file: %v", err)
	}
	t.Setenv("TEST_WORD_FILE", "word")
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	s = secretSettings{}
	if err := Parse(&s); err != nil || s.Word != "hun ter2" {
		t.Errorf("a credential of systemd: %+v: %v", s, err)
	}
}

// Each mistake is an error about the setting that names the file, and never about what is in it.
func TestUnusableSecretFileIsAnErrorThatKeepsTheSecret(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	good := writeSecret(t, path("good"), "hunter2")
	empty := writeSecret(t, path("empty"), "\n\n")
	large := writeSecret(t, path("large"), strings.Repeat("hunter2", maxSecret))
	spaces := writeSecret(t, path("spaces"), "hunter2 hunter2\n")
	require.NoError(t, syscall.Mkfifo(path("pipe"), 0o600))
	for name, c := range map[string]struct {
		key, value, file string
		want             string
	}{
		"both":           {"TEST_WORD", "hunter2", good, "TEST_WORD_FILE: must be unset if TEST_WORD is set"},
		"empty":          {"TEST_WORD", "", empty, `TEST_WORD_FILE="` + empty + `": must be a file that is not empty`},
		"none":           {"TEST_WORD", "", path("none"), `TEST_WORD_FILE="` + path("none") + `": must be a file that can be read (no such file or directory)`},
		"a directory":    {"TEST_WORD", "", dir, "a regular file"},
		"a pipe":         {"TEST_WORD", "", path("pipe"), "a regular file"},
		"too large":      {"TEST_WORD", "", large, "at most 65536 bytes"},
		"no such tokens": {"TEST_TOKENS", "", spaces, `TEST_TOKENS_FILE="` + spaces + `": must be comma-separated tokens`},
		"the secret":     {"TEST_WORD", "", "hunter2", "TEST_WORD_FILE: must be a file that can be read"},
		"a URL":          {"TEST_WORD", "", "/x://:hunter2@h", "TEST_WORD_FILE: must be a file that can be read"},
		"a key":          {"TEST_WORD", "", "/eyJ\nhunter2", "TEST_WORD_FILE: must be a file that can be read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(c.key, c.value)
			t.Setenv(c.key+"_FILE", c.file)
			err := Parse(new(secretSettings))
			if err == nil || ExitCode(err) != ExitUsage || !strings.HasPrefix(err.Error(), c.key+"_FILE") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if err != nil && (strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "\n")) {
				t.Errorf("an error tells the secret, or has lines: %v", err)
			}
		})
	}
}

func TestSecretThatCanNoLongerBeReadStaysAndIsLoggedOnce(t *testing.T) {
	path := writeSecret(t, filepath.Join(t.TempDir(), "tokens"), "one,two")
	file := SecretFile{"TEST_TOKENS_FILE", path}
	var log bytes.Buffer
	kept := NewReloadable("file of tokens", zerolog.New(&log), func() (now Tokens, err error) {
		text, err := file.Read()
		if err == nil && now.UnmarshalText([]byte(text)) != nil {
			err = file.Refuse("a file of tokens")
		}
		return now, err
	})
	tokens := func() Tokens {
		now, err := kept.Get()
		if err != nil {
			t.Error(err)
		}
		return now
	}
	for i, c := range []struct {
		text  string
		want  int // tokens
		lines int // of the log, in all
	}{
		{"one,two", 2, 0}, {"one", 1, 0}, {"", 1, 1}, {"", 1, 1}, {"hunter2 x", 1, 2}, {"hunter2 y", 1, 2}, {"a,b,c", 3, 3}, {"", 3, 4}, {"a", 1, 5},
	} {
		writeSecret(t, path, c.text)
		if n := len(tokens().hashes); n != c.want || strings.Count(log.String(), "\n") != c.lines || strings.Contains(log.String(), "hunter2") {
			t.Errorf("%d: after %q there are %d tokens, and the log is:\n%s", i, c.text, n, log.String())
		}
	}
	require.NoError(t, os.Remove(path))
	require.Len(t, tokens().hashes, 1)
}

// The content of a secret file, where its name should be, is not repeated by the error.
func TestSecretInPlaceOfItsFileIsConcealed(t *testing.T) {
	for _, content := range []string{
		"SUAMHUNTER2ABCDEFGHIJKLMNOPQRSTUVWXYZ234567ABCDEFGHIJKLMNO", "eyJhunter2", "-----BEGIN NATS USER JWT-----\nhunter2", "-----BEGIN PRIVATE KEY----- hunter2", "hunter2\nx",
		"tokens: [{name: a, token: hunter2}]", "{name: a, token: hunter2}", "name: a, sha256: hunter2",
	} {
		for _, err := range []error{
			&Error{Key: "NATS_NKEY", Value: content, MustBe: fmt.Sprintf("a file that can be read (open %s: no such file)", content)},
			fmt.Errorf("COLLECT_TOKENS_FILE: %s", Conceal(content, "open "+content+": no such file")),
		} {
			text := err.Error()
			if strings.Contains(strings.ToLower(text), "hunter2") || !strings.Contains(text, "no such file") || !strings.Contains(text, "the content of such a file") {
				t.Errorf("%q: %s", content, text)
			}
		}
	}
	for _, path := range []string{"/etc/tokens.yml", "tokens.yaml", `C:\tokens`, "user.creds", "SHORT", "./a b/c", "key.pem"} {
		text := (&Error{Key: "NATS_NKEY", Value: path, MustBe: "a file that can be read (open " + path + ": no such file)"}).Error()
		if !strings.Contains(text, fmt.Sprintf("NATS_NKEY=%q", path)) || !strings.Contains(text, "open "+path+": ") {
			t.Errorf("%s: %s", path, text)
		}
	}
}
