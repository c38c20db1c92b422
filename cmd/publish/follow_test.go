package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/boot"
	"tallyroll/internal/outbox"
)

// following is a log of names in a directory of its own, and a stream that forgets ids at once.
type following struct {
	t      *testing.T
	broker *broker
	stream jetstream.Stream
	dir    string
	log    string // its path
	state  string
	want   map[string]int64
	made   int
	wait   time.Duration // for which a rotated file must be quiet
}

func startFollowing(t *testing.T) *following {
	b := startBroker(t)
	dir := t.TempDir()
	f := &following{t: t, broker: b, dir: dir, log: filepath.Join(dir, "access.log"), state: filepath.Join(dir, "state"), want: map[string]int64{}, wait: 300 * time.Millisecond}
	f.make()
	return f
}

// make makes the stream, with the shortest memory of ids that there is.
func (f *following) make() {
	f.t.Helper()
	js, err := jetstream.New(f.broker.connect())
	if err != nil {
		f.t.Fatal(err)
	}
	f.stream, err = js.CreateStream(f.t.Context(), jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}, Duplicates: 100 * time.Millisecond})
	if err != nil {
		f.t.Fatal(err)
	}
}

// write appends to a file as it is.
func (f *following) write(path, text string) {
	f.t.Helper()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := file.WriteString(text); err != nil {
		f.t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		f.t.Fatal(err)
	}
}

// add appends n names that have not been there before, and says that each is to be counted once.
func (f *following) add(path string, n int) {
	f.t.Helper()
	var text strings.Builder
	for range n {
		f.made++
		name := fmt.Sprintf("name-%d", f.made)
		f.want[name]++
		fmt.Fprintln(&text, name)
	}
	f.write(path, text.String())
}

// age sets the time at which a file was written to: the clock of a file system has steps of some milliseconds.
func (f *following) age(path string, by time.Duration) {
	f.t.Helper()
	at := time.Now().Add(-by)
	if err := os.Chtimes(path, at, at); err != nil {
		f.t.Fatal(err)
	}
}

func (f *following) rename(from, to string) {
	f.t.Helper()
	if err := os.Rename(from, to); err != nil {
		f.t.Fatal(err)
	}
}

// copied is what cp makes.
func (f *following) copied(from, to string) {
	f.t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o600)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// awaitCounts waits until every name has counted as often as it should, and no other.
func (f *following) awaitCounts() {
	f.t.Helper()
	var got map[string]int64
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, _, got = counts(f.t, f.stream); maps.Equal(got, f.want) {
			return
		}
		if time.Now().After(deadline) {
			break
		}
	}
	f.wantCounts()
}

func (f *following) wantCounts() {
	f.t.Helper()
	_, _, got := counts(f.t, f.stream)
	for name, n := range f.want {
		if got[name] != n {
			f.t.Errorf("%s counts %d, want %d", name, got[name], n)
		}
	}
	for name, n := range got {
		if f.want[name] == 0 {
			f.t.Errorf("%s counts %d, want none", name, n)
		}
	}
}

// followRun is a publish --follow that can be ended.
type followRun struct {
	*following
	log  *logLines
	stop context.CancelFunc
	done chan outcome
}

// begin starts one, with its state in the file.
func (f *following) begin(state string, args ...string) *followRun {
	f.t.Helper()
	opts := mustParse(f.t, append([]string{"--follow", f.log, "--state", state, "--format", "lines"}, args...)...)
	file, read, err := openState(opts.state, opts.follow, opts.subject)
	if err != nil {
		f.t.Fatal(err)
	}
	conn := f.broker.connect(outbox.ConnOptions()...)
	js, err := jetstream.New(conn)
	if err != nil {
		f.t.Fatal(err)
	}
	r := &followRun{following: f, log: newLogLines(), done: make(chan outcome, 1)}
	one := &follower{
		log: zerolog.New(r.log), conn: conn, js: js, out: boot.NewBar(r.log, "hits"), file: file, state: read,
		files: newRotations(f.log), waits: f.wait, parse: opts.parser(), most: int(opts.batch),
	}
	one.names.limit = opts.names
	ctx, stop := context.WithCancel(f.t.Context())
	r.stop = stop
	f.t.Cleanup(stop)
	go func() {
		rep, err := one.follow(ctx)
		file.close()
		r.done <- outcome{rep, err}
	}()
	return r
}

func (r *followRun) end() outcome {
	r.t.Helper()
	r.stop()
	o := await(r.t, r.done)
	if o.err != nil {
		r.t.Errorf("%v\n%s", o.err, r.log)
	}
	return o
}

func (r *followRun) awaitLog(want string) { r.t.Helper(); r.log.waitFor(r.t, want) }

func TestFollow(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(t *testing.T, f *following){
		"a log that comes later, and half a line": func(t *testing.T, f *following) {
			r := f.begin(f.state)
			r.awaitLog("which is not there")
			f.add(f.log, 3)
			f.write(f.log, "hal")
			f.awaitCounts()
			f.write(f.log, "f\r\n\n\x00\nanother\n") // a blank line is nothing, the third one is bad
			f.want["half"], f.want["another"] = 1, 1
			f.awaitCounts()
			o := r.end()
			if got := o.report.String(); o.bad.count != 1 || !strings.Contains(got, "published 5 hits") || !strings.Contains(got, "; 5 distinct names; ") ||
				!strings.Contains(got, fmt.Sprintf("(first: at byte 28 of %s: ", f.log)) {
				t.Error(got)
			}
		},
		"runs one after the other count nothing twice": func(t *testing.T, f *following) {
			for range 3 {
				f.add(f.log, 500)
				f.write(f.log, "hal")
				r := f.begin(f.state, "--batch", "7")
				f.awaitCounts()
				r.end()
				r = f.begin(f.state)
				r.awaitLog("reads " + f.log + " from byte")
				f.write(f.log, "f\n")
				f.want["half"]++
				f.awaitCounts()
				r.end()
			}
		},
		"renamed, while it is still written to": func(t *testing.T, f *following) {
			f.add(f.log, 10)
			wait := f.wait
			f.wait = time.Hour
			r := f.begin(f.state)
			f.awaitCounts()
			f.rename(f.log, f.log+".1")
			f.add(f.log+".1", 10)
			f.awaitCounts()
			f.write(f.log, "later\n")
			r.awaitLog("is another file now")
			f.add(f.log+".1", 10)
			f.awaitCounts()
			r.end()
			f.write(f.log+".1", "the end") // nobody ends this line any more
			f.want["later"], f.want["the end"], f.wait = 1, 1, wait
			r = f.begin(f.state)
			f.awaitCounts()
			r.end()
		},
		"renamed several times while nobody reads": func(t *testing.T, f *following) {
			f.add(f.log+".2", 5) // from before the first start: not counted
			f.age(f.log+".2", 5*time.Hour)
			clear(f.want)
			f.add(f.log, 10)
			r := f.begin(f.state)
			f.awaitCounts()
			r.end()
			f.add(f.log, 10)
			f.age(f.log, 3*time.Hour)
			f.rename(f.log+".2", f.log+".5")
			f.rename(f.log, f.log+".4")
			f.add(f.log+".3", 10)
			f.age(f.log+".3", 2*time.Hour)
			f.add(filepath.Join(f.dir, "access-20261121.log"), 10)
			f.age(filepath.Join(f.dir, "access-20261121.log"), time.Hour)
			f.add(f.log, 10)
			for _, other := range []string{"access-1.log", "access.log.bak", "error.log.1"} {
				f.write(filepath.Join(f.dir, other), "other\n")
			}
			f.write(f.log+".3.gz", "compressed")
			r = f.begin(f.state)
			f.awaitCounts()
			r.awaitLog("access.log.3.gz was compressed before it was read")
			r.end()
		},
		"copied and truncated": func(t *testing.T, f *following) {
			f.add(f.log, 10)
			r := f.begin(f.state)
			f.awaitCounts()
			for range 3 {
				f.add(f.log, 10)
				f.copied(f.log, f.log+".1")
				if err := os.Truncate(f.log, 0); err != nil {
					t.Fatal(err)
				}
				f.add(f.log, 20) // it may be longer again before anybody looks
				f.awaitCounts()
			}
			r.awaitLog("has been truncated")
			r.end()
		},
		"copied and truncated while nobody reads": func(t *testing.T, f *following) {
			f.add(f.log, 10)
			r := f.begin(f.state)
			f.awaitCounts()
			r.end()
			f.add(f.log, 10)
			f.copied(f.log, f.log+".1")
			if err := os.Truncate(f.log, 0); err != nil {
				t.Fatal(err)
			}
			f.add(f.log, 100)
			r = f.begin(f.state)
			f.awaitCounts()
			r.end()
		},
		"another file with the inode of the one before": func(t *testing.T, f *following) {
			f.add(f.log, 10)
			r := f.begin(f.state)
			f.awaitCounts()
			r.end()
			if err := os.Remove(f.log); err != nil {
				t.Fatal(err)
			}
			f.add(f.log, 20)
			info, err := os.Stat(f.log)
			if err != nil {
				t.Fatal(err)
			}
			f.editState(func(s *followState) { s.Read.File.Device, s.Read.File.Inode = inodeOf(info) })
			r = f.begin(f.state)
			f.awaitCounts()
			r.awaitLog("is gone")
			r.end()
		},
		"the same lines at the same place again": func(t *testing.T, f *following) {
			config := f.stream.CachedInfo().Config
			config.Duplicates = time.Hour // it must not take the second for the first
			js, _ := jetstream.New(f.broker.connect())
			if _, err := js.UpdateStream(t.Context(), config); err != nil {
				t.Fatal(err)
			}
			f.write(f.log, "same\n")
			f.want["same"]++
			r := f.begin(f.state)
			f.awaitCounts()
			if err := os.Truncate(f.log, 0); err != nil {
				t.Fatal(err)
			}
			r.awaitLog("has been truncated")
			f.write(f.log, "same\n")
			f.want["same"]++
			f.awaitCounts()
			r.end()
		},
		"two with copies of the state, and a state from before": func(t *testing.T, f *following) {
			f.add(f.log, 100)
			r := f.begin(f.state, "--batch", "3")
			f.awaitCounts()
			r.end()
			f.copied(f.state, f.state+"2")
			r, other := f.begin(f.state, "--batch", "3"), f.begin(f.state+"2", "--batch", "5")
			for range 10 {
				f.add(f.log, 100)
				f.awaitCounts()
			}
			r.end()
			other.end()
			f.add(f.log, 10)
			f.awaitCountsOf(f.begin(f.state))
		},
		"killed between the stream and the state": func(t *testing.T, f *following) {
			f.add(f.log, 10)
			r := f.begin(f.state)
			f.awaitCounts()
			r.end()
			f.copied(f.state, f.state+"2")
			f.add(f.log, 10)
			f.awaitCountsOf(f.begin(f.state))
			sent := f.readState(f.state)
			f.copied(f.state+"2", f.state)
			f.editState(func(s *followState) { s.Sent = &sent.Read }) // as it was before the message went
			f.add(f.log, 10)
			f.awaitCountsOf(f.begin(f.state))
		},
		"killed before the first acknowledgement": func(t *testing.T, f *following) {
			f.add(f.log, 10)
			f.awaitCountsOf(f.begin(f.state))
			f.editState(func(s *followState) {
				sent := s.Read
				s.Sent, s.Sequence, s.Since, s.Read.Offset, s.Read.File.Head, s.Read.File.Sum = &sent, 0, 0, 0, 0, ""
			})
			f.add(f.log, 10)
			f.awaitCountsOf(f.begin(f.state))
		},
		"the stream no longer holds its messages": func(t *testing.T, f *following) {
			f.add(f.log, 10)
			f.awaitCountsOf(f.begin(f.state))
			if err := f.stream.Purge(t.Context()); err != nil {
				t.Fatal(err)
			}
			clear(f.want)
			f.add(f.log, 10)
			r := f.begin(f.state)
			f.awaitCounts()
			if err := f.stream.Purge(t.Context()); err != nil { // while it runs
				t.Fatal(err)
			}
			clear(f.want)
			f.add(f.log, 10)
			f.awaitCounts()
			r.end()
			// Killed after it sent, and away until nobody knows whether that was stored.
			size := f.readState(f.state).Read.Offset
			f.add(f.log, 10)
			l, err := openLog(f.log, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			sent, err := l.at(size + int64(len("name-31\n")*7))
			if err != nil {
				t.Fatal(err)
			}
			f.editState(func(s *followState) { s.Sent = &sent })
			js, _ := jetstream.New(f.broker.connect())
			if _, err := js.Publish(t.Context(), "hits.other", []byte(`{"key":"other"}`)); err != nil {
				t.Fatal(err)
			}
			if err := f.stream.Purge(t.Context()); err != nil {
				t.Fatal(err)
			}
			clear(f.want)
			f.want["name-38"], f.want["name-39"], f.want["name-40"] = 1, 1, 1
			r = f.begin(f.state)
			f.awaitCountsOf(r)
			r.awaitLog("they are left out")
		},
		"the stream is made anew": func(t *testing.T, f *following) {
			f.add(f.log, 10)
			r := f.begin(f.state)
			f.awaitCounts()
			js, _ := jetstream.New(f.broker.connect())
			if err := js.DeleteStream(t.Context(), "HITS"); err != nil {
				t.Fatal(err)
			}
			clear(f.want)
			f.add(f.log, 10)
			r.awaitLog("no stream takes hits.publish.follow-")
			f.make()
			f.awaitCounts()
			r.end()
			f.add(f.log, 10)
			f.awaitCountsOf(f.begin(f.state))
		},
		"names beyond the limit": func(t *testing.T, f *following) {
			f.add(f.log, 10)
			r := f.begin(f.state, "--max-names", "7")
			o := await(t, r.done)
			if want := fmt.Sprintf(`stopped before byte 49 of %s: "name-8" would be distinct name 8, and each is a counter in Redis: `+
				`choose a --key with fewer values, or go on from there (start it again) with --max-names 14`, f.log); o.err == nil || o.err.Error() != want {
				t.Errorf("%v, want %s", o.err, want)
			}
			f.awaitCountsOf(f.begin(f.state, "--max-names", "14"))
		},
		"a line that is too long, and messages by size": func(t *testing.T, f *following) {
			f.add(f.log, 10)
			f.write(f.log, strings.Repeat("x", 3*maxLine)+"\n")
			for i := range 9000 {
				name := fmt.Sprintf("%d-%s", i, strings.Repeat("y", 490))
				f.want[name]++
				f.write(f.log, name+"\n")
			}
			f.add(f.log, 10)
			r := f.begin(f.state, "--batch", "10000")
			f.awaitCounts()
			if o := r.end(); o.bad.count != 1 || !strings.Contains(fmt.Sprint(o.bad.reason), "at byte 71 of ") {
				t.Error(o.report)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, startFollowing(t))
		})
	}
}

func (f *following) awaitCountsOf(r *followRun) {
	f.t.Helper()
	f.awaitCounts()
	r.end()
	f.wantCounts()
}

func (f *following) readState(path string) (s followState) {
	f.t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

func (f *following) editState(edit func(*followState)) {
	f.t.Helper()
	s := f.readState(f.state)
	edit(&s)
	text, err := json.Marshal(s)
	if err == nil {
		err = os.WriteFile(f.state, text, 0o600)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

func TestOpenState(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state")
	file, state, err := openState(path, "/a.log", "hits.publish")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := openState(path, "/a.log", "hits.publish"); err == nil || !strings.Contains(err.Error(), "another publish follows with it") {
		t.Errorf("%v, want that it is locked", err)
	}
	if err := file.save(state); err != nil {
		t.Fatal(err)
	}
	file.close()
	for _, c := range []struct {
		log, subject, err string
		usage             bool
	}{
		{"/a.log", "hits.publish", "", false},
		{"/b.log", "hits.publish", "is that of /a.log", true},
		{"/a.log", "hits.other", "give the same --subject", true},
	} {
		file, again, err := openState(path, c.log, c.subject)
		var usage boot.UsageError
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) || errors.As(err, &usage) != c.usage {
				t.Errorf("%v, want %q", err, c.err)
			}
			continue
		}
		if err != nil || again.Source != state.Source {
			t.Fatalf("%v: %+v", err, again)
		}
		file.close()
	}
	if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := openState(path, "/a.log", "hits.publish"); err == nil || !strings.Contains(err.Error(), "is no state of publish --follow") {
		t.Error(err)
	}
	if _, _, err := openState(filepath.Join(path, "none", "state"), "/a.log", "hits.publish"); err == nil {
		t.Error("a directory that is not there is no error")
	}
}
