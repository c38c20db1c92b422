package boot

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
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
		return &SettingError{Key: "TEST_NAME"}
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
func TestUnknownVariableOfTheProgramIsLoggedWithTheNearestSetting(t *testing.T) {
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
	require.Equal(t, []UnknownSetting{{Key: "BOOTED_LIMIT_FILE", Nearest: "BOOTED_LIMITS_FILE"}}, s.Log.Unknown)
	var text bytes.Buffer
	s.Log.New(&text)
	if got := text.String(); !strings.Contains(got, `"level":"warn","variable":"BOOTED_LIMIT_FILE","nearest":"BOOTED_LIMITS_FILE"`) || strings.Count(got, "\n") != 1 {
		t.Errorf("logged: %s", got)
	}
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

func TestSecretThatCanNoLongerBeReadStaysAndIsLoggedOnce(t *testing.T) {
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
func TestNATSLoginIsReadFromTheFileOfTheURL(t *testing.T) {
	path := filepath.Join(t.TempDir(), "url")
	n := NATS{URLFile: SecretFile{key: "NATS_URL_FILE", path: path}, NATSAccess: NATSAccess{User: "other", Password: "own"}}
	for text, want := range map[string]natsLogin{
		"nats://u:p%2C@a,nats://u:p%2C@b": {user: "u", password: "p,"}, "nats://token@a,b": {token: "token"}, "a:1": {user: "other", password: "own"},
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		if got, err := n.readLogin(); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"nats://u:hunter2@a,nats://v:hunter2@b", "http://u:hunter2@h"} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		if _, err := n.readLogin(); err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// The content of a secret file, where its name should be, is not repeated by the error.
func TestSecretInPlaceOfItsFileIsConcealed(t *testing.T) {
	for _, content := range []string{
		"SUAMHUNTER2ABCDEFGHIJKLMNOPQRSTUVWXYZ234567ABCDEFGHIJKLMNO", "eyJhunter2", "-----BEGIN NATS USER JWT-----\nhunter2", "-----BEGIN PRIVATE KEY----- hunter2", "hunter2\nx",
		"tokens: [{name: a, token: hunter2}]", "{name: a, token: hunter2}", "name: a, sha256: hunter2",
	} {
		for _, err := range []error{
			&SettingError{Key: "NATS_NKEY", Value: content, Allowed: fmt.Sprintf("a file that can be read (open %s: no such file)", content)},
			fmt.Errorf("COLLECT_TOKENS_FILE: %s", Conceal(content, "open "+content+": no such file")),
		} {
			text := err.Error()
			if strings.Contains(strings.ToLower(text), "hunter2") || !strings.Contains(text, "no such file") || !strings.Contains(text, "the content of such a file") {
				t.Errorf("%q: %s", content, text)
			}
		}
	}
	for _, path := range []string{"/etc/tokens.yml", "tokens.yaml", `C:\tokens`, "user.creds", "SHORT", "./a b/c", "key.pem"} {
		text := (&SettingError{Key: "NATS_NKEY", Value: path, Allowed: "a file that can be read (open " + path + ": no such file)"}).Error()
		if !strings.Contains(text, fmt.Sprintf("NATS_NKEY=%q", path)) || !strings.Contains(text, "open "+path+": ") {
			t.Errorf("%s: %s", path, text)
		}
	}
}

// filePair is two files that belong together, and how often they were read again.
type filePair struct {
	t          *testing.T
	one, two   string
	files      *Files
	file       *File[string]
	log        bytes.Buffer
	used       []string
	ok, failed atomic.Int32
}

func newFilePair(t *testing.T) *filePair {
	directory := t.TempDir()
	r := &filePair{t: t, one: filepath.Join(directory, "one"), two: filepath.Join(directory, "two")}
	r.files = NewFiles(zerolog.New(&r.log), func(what string) func(error) {
		require.Equal(t, "pair", what)
		return func(err error) {
			if err != nil {
				r.failed.Add(1)
				return
			}
			r.ok.Add(1)
		}
	})
	return r
}

func (r *filePair) write(path, text string) {
	r.t.Helper()
	require.NoError(r.t, os.WriteFile(path, []byte(text), 0o600))
}

// open takes a pair of which neither is "bad".
func (r *filePair) open() (err error) {
	r.file, err = openAll(r.files, "pair", []SettingFile{{"ONE", r.one}, {"TWO", r.two}}, func(texts [][]byte) (string, error) {
		text := fmt.Sprintf("%s+%s", texts[0], texts[1])
		if strings.Contains(text, "bad") {
			return "", errors.New("it is bad")
		}
		return text, nil
	}, func(value string, line *zerolog.Event) {
		if r.file != nil && r.file.Load() != value {
			r.t.Errorf("%q is used before it is loaded", value)
		}
		r.used = append(r.used, value)
		line.Str("value", value)
	})
	return err
}

// Files are read again once they have changed and are the same at two checks, and at each signal. What cannot be used
// changes nothing. Each time has a line in the log, and is counted.
func TestChangedFilesAreReadAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newFilePair(t)
		r.write(r.one, "a")
		r.write(r.two, "x")
		require.NoError(t, r.open())
		signals := make(chan os.Signal)
		go func() { _ = r.files.Follow(t.Context(), signals) }()
		time.Sleep(filesEvery / 2) // between two checks
		after := func(checks int, value string, ok, failed int32, what string) {
			t.Helper()
			time.Sleep(time.Duration(checks) * filesEvery)
			synctest.Wait()
			if got := r.file.Load(); got != value || r.ok.Load() != ok || r.failed.Load() != failed {
				t.Errorf("%s: %q, read %d times and refused %d times, want %q, %d and %d", what, got, r.ok.Load(), r.failed.Load(), value, ok, failed)
			}
		}
		after(5, "a+x", 0, 0, "nothing has changed")
		r.write(r.one, "b")
		after(1, "a+x", 0, 0, "it may be being written")
		r.write(r.one, "bc")
		after(1, "a+x", 0, 0, "it was being written")
		after(1, "bc+x", 1, 0, "it is written")
		r.write(r.two, "")
		after(2, "bc+", 2, 0, "the other is empty")
		r.write(r.one, "d")
		signals <- nil
		after(0, "d+", 3, 0, "a signal does not wait")
		after(5, "d+", 3, 0, "it was read at the signal")
		signals <- nil
		after(0, "d+", 3, 0, "a signal without a change")
		require.NoError(t, os.Remove(r.one))
		after(5, "d+", 3, 1, "it is gone")
		r.write(r.one, "bad")
		after(5, "d+", 3, 2, "it is bad")
		signals <- nil
		after(0, "d+", 3, 3, "it is still bad")
		r.write(r.one, "d")
		after(5, "d+", 4, 3, "it is back")

		if want := []string{"a+x", "bc+x", "bc+", "d+", "d+"}; fmt.Sprint(r.used) != fmt.Sprint(want) {
			t.Errorf("used are %q, want %q", r.used, want)
		}
		for line, n := range map[string]int{
			`{"level":"info","value":"a+x","file":"` + r.one + `","message":"pair read"}`:                                       1,
			`{"level":"info","audit":true,"from":"file","value":"bc+x","file":"` + r.one + `","message":"pair reloaded"}`:       1,
			`{"level":"info","audit":true,"from":"SIGHUP","value":"d+","file":"` + r.one + `","message":"pair reloaded"}`:       1,
			`{"level":"info","from":"SIGHUP","file":"` + r.one + `","message":"nothing to reload: pair unchanged"}`:             1,
			`"from":"file","error":"ONE: open ` + r.one + `: no such file or directory","message":"pair not reloaded: what was`: 1,
			`,"error":"it is bad","message":"pair not reloaded: what was read before stays in use"}`:                            2,
			"\n": 9,
		} {
			require.Equal(t, n, strings.Count(r.log.String(), line), line)
		}
	})
}

// A setting that names no file has no value, and nothing to read again. A file that cannot be used ends the start, with the
// setting and the file, unless its content stands in place of its name.
func TestFileThatCannotBeUsedEndsTheStart(t *testing.T) {
	t.Parallel()
	r := newFilePair(t)
	text := func(text []byte) (string, error) {
		if string(text) == "bad" {
			return "", errors.New("line 1: it is bad")
		}
		return string(text), nil
	}
	none, err := Open(r.files, "pair", SettingFile{Key: "ONE", Path: ""}, text, nil)
	if err != nil || none != nil || none.Load() != "" {
		t.Errorf("without a file: %v, %v", none, err)
	}
	r.files.Reload()
	require.Contains(t, r.log.String(), "nothing to reload: no setting names a file", &r.log)
	r.write(r.one, "good")
	good, err := Open(r.files, "pair", SettingFile{Key: "ONE", Path: r.one}, text, nil)
	if err != nil || good.Load() != "good" {
		t.Errorf("%v, %v", good, err)
	}
	r.write(r.two, "bad")
	large := r.one + ".large"
	r.write(large, strings.Repeat("#", maxFile+1))
	for path, want := range map[string]string{
		r.two:              "ONE: " + r.two + ": line 1: it is bad",
		r.one + ".no":      "ONE: open " + r.one + ".no: no such file or directory",
		large:              "ONE: " + large + ": it has more than 4194304 bytes: allowed is a file of at most that size",
		"tokens: [secret]": "ONE: open …, which is the content of such a file: no such file or directory",
	} {
		_, err := Open(r.files, "pair", SettingFile{Key: "ONE", Path: path}, text, nil)
		var usage UsageError
		if !errors.As(err, &usage) || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
