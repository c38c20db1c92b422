package boot

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

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

func TestSecretFromFile(t *testing.T) {
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
func TestBadSecretFile(t *testing.T) {
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
		"both":           {"TEST_WORD", "hunter2", good, "TEST_WORD_FILE: allowed is a file if TEST_WORD is not set"},
		"empty":          {"TEST_WORD", "", empty, `TEST_WORD_FILE="` + empty + `": allowed is a file that is not empty`},
		"none":           {"TEST_WORD", "", path("none"), `TEST_WORD_FILE="` + path("none") + `": allowed is a file that can be read (no such file or directory)`},
		"a directory":    {"TEST_WORD", "", dir, "a regular file"},
		"a pipe":         {"TEST_WORD", "", path("pipe"), "a regular file"},
		"too large":      {"TEST_WORD", "", large, "at most 65536 bytes"},
		"no such tokens": {"TEST_TOKENS", "", spaces, `TEST_TOKENS_FILE="` + spaces + `": allowed is comma-separated tokens`},
		"the secret":     {"TEST_WORD", "", "hunter2", "TEST_WORD_FILE: allowed is a file that can be read"},
		"a URL":          {"TEST_WORD", "", "/x://:hunter2@h", "TEST_WORD_FILE: allowed is a file that can be read"},
		"a key":          {"TEST_WORD", "", "/eyJ\nhunter2", "TEST_WORD_FILE: allowed is a file that can be read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(c.key, c.value)
			t.Setenv(c.key+"_FILE", c.file)
			err := Parse(new(secretSettings))
			if err == nil || exitCode(err) != ExitUsage || !strings.HasPrefix(err.Error(), c.key+"_FILE") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if err != nil && (strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "\n")) {
				t.Errorf("an error tells the secret, or has lines: %v", err)
			}
		})
	}
}

// What can no longer be read stays as it was, and is logged once per state.
func TestSecretsAreReadAgain(t *testing.T) {
	path := writeSecret(t, filepath.Join(t.TempDir(), "tokens"), "one,two")
	file := SecretFile{"TEST_TOKENS_FILE", path}
	var log bytes.Buffer
	kept := keep("file of tokens", zerolog.New(&log), func() (now Tokens, err error) {
		text, err := file.read()
		if err == nil && now.UnmarshalText([]byte(text)) != nil {
			err = file.refuse("a file of tokens")
		}
		return now, err
	})
	tokens := func() Tokens {
		now, err := kept.get()
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

// A file of NATS_URL can change who connects, as long as that is the same for all servers.
func TestNATSLoginFromFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "url")
	n := NATS{URLFile: SecretFile{"NATS_URL_FILE", path}, NATSAccess: NATSAccess{User: "other", Password: "own"}}
	for text, want := range map[string]natsLogin{
		"nats://u:p%2C@a,nats://u:p%2C@b": {user: "u", password: "p,"}, "nats://token@a,b": {token: "token"}, "a:1": {user: "other", password: "own"},
	} {
		writeSecret(t, path, text)
		if got, err := n.readLogin(); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"nats://u:hunter2@a,nats://v:hunter2@b", "http://u:hunter2@h"} {
		writeSecret(t, path, text)
		if _, err := n.readLogin(); err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
