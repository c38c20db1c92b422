package setting

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

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
	r.file, err = OpenAll(r.files, "pair", []Path{{"ONE", r.one}, {"TWO", r.two}}, func(texts [][]byte) (string, error) {
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

// Files are read again once they have changed and are the same at two checks, and at each signal. What cannot
// be used changes nothing. Each time has a line in the log, and is counted.
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

// A setting that names no file has no value, and nothing to read again. A file that cannot be used ends the
// start, with the setting and the file, unless its content stands in place of its name.
func TestFileThatCannotBeUsedEndsTheStart(t *testing.T) {
	t.Parallel()
	r := newFilePair(t)
	text := func(text []byte) (string, error) {
		if string(text) == "bad" {
			return "", errors.New("line 1: it is bad")
		}
		return string(text), nil
	}
	none, err := Open(r.files, "pair", Path{Key: "ONE", File: ""}, text, nil)
	if err != nil || none != nil || none.Load() != "" {
		t.Errorf("without a file: %v, %v", none, err)
	}
	r.files.Reload()
	require.Contains(t, r.log.String(), "nothing to reload: no setting names a file", &r.log)
	r.write(r.one, "good")
	good, err := Open(r.files, "pair", Path{Key: "ONE", File: r.one}, text, nil)
	if err != nil || good.Load() != "good" {
		t.Errorf("%v, %v", good, err)
	}
	r.write(r.two, "bad")
	large := r.one + ".large"
	r.write(large, strings.Repeat("#", maxFile+1))
	for path, want := range map[string]string{
		r.two:              "ONE: " + r.two + ": line 1: it is bad",
		r.one + ".no":      "ONE: open " + r.one + ".no: no such file or directory",
		large:              "ONE: " + large + ": more than 4194304 bytes, which is the most that it may have",
		"tokens: [secret]": "ONE: open …, which is the content of such a file: no such file or directory",
	} {
		_, err := Open(r.files, "pair", Path{Key: "ONE", File: path}, text, nil)
		var usage UsageError
		if !errors.As(err, &usage) || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// lineWriter receives lines of a log, each with its own copy.
type lineWriter chan<- []byte

func (w lineWriter) Write(line []byte) (int, error) {
	w <- slices.Clone(line)
	return len(line), nil
}

// A certificate is logged 14 days before its end and at its end, unless it was replaced.
func TestEndOfACertificateIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		certificateEnds.Clear() // of the round before
		lines := make(chan []byte, 9)
		log := zerolog.New(lineWriter(lines))
		use := func(key string, left time.Duration) {
			UseCertificate(key, tls.Certificate{Leaf: &x509.Certificate{NotAfter: time.Now().Add(left)}}, log)
		}
		const day = 24 * time.Hour
		logged := func(after time.Duration, want ...string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			var got []string
			for len(lines) > 0 {
				var one struct{ Level, Setting string }
				require.NoError(t, json.Unmarshal(<-lines, &one))
				got = append(got, one.Level+" "+one.Setting)
			}
			require.Equal(t, want, got)
		}
		use("A", 20*day)
		use("A", 20*day) // read again
		use("B", 20*day)
		logged(6*day - 1)
		use("B", 20*day)
		logged(1, "warn A")
		use("C", 13*day)
		logged(0, "warn C")
		use("D", -day)
		logged(0, "error D")
		logged(6*day, "warn B")
		logged(8*day, "error C", "error A")
		ends := map[string]time.Duration{}
		EachCertificateEnd(func(key string, end time.Time) { ends[key] = time.Until(end) })
		require.Equal(t, map[string]time.Duration{"A": 0, "B": 6*day - 1, "C": -day, "D": -15 * day}, ends)
	})
}
