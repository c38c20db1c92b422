package drills_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

func (d *drill) restoreNATSFromBackup(t *testing.T) {
	s := d.build(t)
	var backup stack.Backup
	d.step(t, "back up: nats stream backup HITS", func() { backup = stack.BackUp(t, s.nats.Conn(), "HITS") })
	s.publish(d.size)
	s.settle() // the backup lacks these; they are counted
	stop := s.load()
	s.publish(d.size)
	stop() // at once, so that workers have not counted the last of them
	s.nats.Kill()
	s.empty(s.store)
	began := time.Now()
	d.step(t, "stop the workers, or they make an empty stream", func() { s.ingest.Stop() })
	d.step(t, "start NATS empty", s.nats.Start)
	d.step(t, "nats stream restore", func() { backup.Restore(t, s.nats.Conn(), "HITS") })
	d.step(t, "purge what it brought back: all of it was counted before the loss", func() {
		stream, err := s.nats.JetStream().Stream(t.Context(), "HITS")
		if err == nil {
			err = stream.Purge(t.Context())
		}
		require.NoError(t, err)
	})
	d.step(t, "start the workers", s.ingest.Start)
	s.publish(d.size)
	d.awaitRecovery(s, began)
	if !s.isLossReported() {
		t.Error("no worker reports that the stream has lost messages")
	}
	d.note = "reported: answers from before say complete: false"
}

// Without Redis the backup is all that is left.
func (d *drill) loseBoth(t *testing.T) {
	s := d.build(t)
	var backup stack.Backup
	d.step(t, "back up: nats stream backup HITS", func() { backup = stack.BackUp(t, s.nats.Conn(), "HITS") })
	held := d.hits()
	s.publish(d.size / 10)
	s.settle()
	s.nats.Kill()
	s.empty(s.store)
	began := s.lose()
	d.step(t, "stop the workers", func() { s.ingest.Kill() }) // they wait for both servers
	d.step(t, "start both empty", func() { s.nats.Start(); s.redis.Start() })
	d.step(t, "nats stream restore", func() { backup.Restore(t, s.nats.Conn(), "HITS") })
	d.step(t, "start the workers", s.ingest.Start)
	gone := d.hits() - held
	s.publish(d.size)
	d.lost, d.twice = s.settle()
	d.took = time.Since(began)
	d.note = fmt.Sprintf("what the backup had not got; reported: %v", s.isLossReported())
	if d.lost != gone || d.twice > 0 {
		t.Errorf("%d hits are lost and %d count twice; the backup had not got %d", d.lost, d.twice, gone)
	}
}

func (d *drill) countBeside(t *testing.T) {
	s := d.build(t)
	stop := s.load()
	began := time.Now()
	var other *stack.Service
	d.step(t, "start workers with another TALLYROLL_NAMESPACE (and other SHARDS)", func() {
		stack.Ingest(t, s.nats, s.redis, "TALLYROLL_NAMESPACE=next", "SHARDS=4")
	})
	d.step(t, "start a query for it, and wait until as_of is now", func() {
		other = stack.Query(t, s.redis, "TALLYROLL_NAMESPACE=next")
		at := time.Now()
		stack.Eventually(t, "the other namespace", func() (bool, string) {
			_, asOf, err := stack.FetchTotal(other.URL(), "c0", "1h")
			return err == nil && asOf.After(at), fmt.Sprint(asOf, err)
		})
	})
	d.step(t, "send questions there, and stop the old workers and query", func() {
		s.ingest.Stop()
		s.query.Stop()
		s.query = other
	})
	stop()
	d.took = time.Since(began)
	if d.lost, d.twice = s.settle(); d.lost+d.twice > 0 {
		t.Errorf("%d hits are lost and %d count twice", d.lost, d.twice)
	}
}

// domain starts a NATS server with a domain of JetStream. more is added to its configuration.
func domain(t *testing.T, name, more string) *stack.NATSProc {
	t.Helper()
	config := filepath.Join(t.TempDir(), "nats.conf")
	text := fmt.Sprintf("jetstream { store_dir: %q, domain: %s }\n%s\n", t.TempDir(), name, more)
	require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
	return stack.NATSProcess(t, "--config", config)
}

func (d *drill) loseRegion(t *testing.T) {
	port := stack.FreePort(t)
	home := &site{t: t, drill: d, nats: domain(t, "home", fmt.Sprintf("leafnodes { host: 127.0.0.1, port: %d, no_advertise: true }", port))}
	addr, cut := link(t, fmt.Sprintf("127.0.0.1:%d", port))
	away := &site{t: t, drill: d, nats: domain(t, "away", fmt.Sprintf("leafnodes { remotes: [{url: %q}] }", "nats://"+addr))}
	home.startCounts() // makes HITS
	mirror, err := away.nats.JetStream().CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS", Mirror: &jetstream.StreamSource{
		Name: "HITS", External: &jetstream.ExternalStream{APIPrefix: "$JS.home.API"},
	}})
	require.NoError(t, err)
	away.startCounts()
	home.publish(d.size)
	home.settle()
	if lost, twice := away.settle(); lost+twice > 0 {
		t.Errorf("the other region lacks %d hits, and counts %d twice", lost, twice)
	}
	stop := home.load()
	home.publish(d.size)
	cut()
	home.publish(d.size / 10) // the mirror does not get these
	stop()
	lastAck := time.Now()
	for _, p := range []interface{ Kill() }{home.nats, home.redis, home.ingest, home.query} {
		p.Kill()
	}
	began := time.Now()
	var last *jetstream.StreamInfo
	d.step(t, "look how far the mirror has got: nats stream info HITS", func() {
		if last, err = mirror.Info(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	var gone int64 // by what was acknowledged
	for sequence := range d.acks {
		if sequence > last.State.LastSeq {
			gone += batch
		}
	}
	d.step(t, "promote it: take the mirror out of its configuration, and give it the subject", func() {
		config := last.Config
		config.Mirror, config.Subjects = nil, []string{"hits.>"}
		if _, err := away.nats.JetStream().UpdateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	})
	d.step(t, "send producers and questions there", func() { away.publish(d.size) })
	d.lost, d.twice = away.settle()
	d.took = time.Since(began)
	d.note = fmt.Sprintf("what the mirror had not got, of the last %.1f s; reported: %v", lastAck.Sub(last.State.LastTime).Seconds(), away.isLossReported())
	if d.lost != gone || d.twice > 0 || gone == 0 {
		t.Errorf("%d hits are lost and %d count twice; the mirror had not got %d", d.lost, d.twice, gone)
	}
}

// link carries TCP connections until it is cut.
func link(t *testing.T, target string) (addr string, cut func()) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp4", target)
			if err != nil {
				_ = near.Close()
				continue
			}
			context.AfterFunc(ctx, func() { _, _ = near.Close(), far.Close() })
			go func() { _, _ = io.Copy(near, far) }()
			go func() { _, _ = io.Copy(far, near) }()
		}
	}()
	cut = func() { _ = l.Close(); cancel() }
	t.Cleanup(cut)
	return l.Addr().String(), cut
}

// changeVersion replaces the programs of a commit by those of this one while hits come, and goes back.
func (d *drill) changeVersion(t *testing.T) {
	commit := os.Getenv("DRILLS_FROM")
	if commit == "" {
		d.note = "SKIPPED: set DRILLS_FROM to the tag or commit that you come from"
		t.Skip(d.note)
	}
	old := programs(t, commit)
	now := map[string]string{"ingest": stack.Build(t, "ingest"), "query": stack.Build(t, "query")}
	s := &site{t: t, drill: d, nats: stack.NATSProcess(t), redis: stack.Redis(t)}
	worker := func(paths map[string]string, number int) *stack.Process {
		return stack.Server(t, paths["ingest"], func(port int) (args, env []string) {
			return nil, []string{"NATS_URL=" + s.nats.URL(), "REDIS_URL=" + s.redis.URL(), fmt.Sprintf("INGEST_ADDR=127.0.0.1:%d", port), fmt.Sprintf("INGEST_WORKER=w%d", number)}
		})
	}
	workers := []*stack.Process{worker(old, 0), worker(old, 1)}
	s.query = stack.Query(t, s.redis) // of this version: it has to read what the old one wrote
	s.publish(d.size)
	s.settle()
	stop := s.load()
	began := time.Now()
	for _, to := range []struct {
		name  string
		paths map[string]string
	}{{"this version", now}, {commit, old}} {
		for i := range workers {
			d.step(t, fmt.Sprintf("replace worker %d by one of %s", i, to.name), func() {
				if code := workers[i].Stop(); code != 0 {
					t.Errorf("it ends with %d", code)
				}
				workers[i] = worker(to.paths, i)
			})
		}
		s.publish(d.size)
	}
	stop()
	d.took = time.Since(began)
	if d.lost, d.twice = s.settle(); d.lost+d.twice > 0 {
		t.Errorf("%d hits are lost and %d count twice", d.lost, d.twice)
	}
}

// programs builds ingest and query of a commit.
func programs(t *testing.T, commit string) map[string]string {
	t.Helper()
	sources, bin := t.TempDir(), t.TempDir()
	for _, command := range []string{
		fmt.Sprintf("git -C ../.. archive --format=tar '%s' | tar -x -C '%s'", strings.ReplaceAll(commit, "'", ""), sources),
		fmt.Sprintf("go build -C '%s' -trimpath -buildvcs=false -o '%s/' ./cmd/ingest ./cmd/query", sources, bin),
	} {
		if out, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	return map[string]string{"ingest": filepath.Join(bin, "ingest"), "query": filepath.Join(bin, "query")}
}
