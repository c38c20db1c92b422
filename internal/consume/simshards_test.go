package consume

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var simSchedules = flag.Int("simulation.schedules", 0, "simulate this many schedules, on all processors; 0: as many as rapid checks, in this process")

// simBatch is how many schedules a process runs at most. The Go runtime loses 48 bytes for each WaitGroup
// that is waited for in a synctest bubble (synctest_disassociate in Go 1.26): some 3.6 KB per schedule.
const simBatch = 20_000

// simShardEnv is the environment of a process of the simulation. It has one processor, because the
// goroutines of a schedule mostly wait for one another, and passing them between processors costs more
// than it gains. Its heap is small, so it need not collect garbage often; but what the runtime loses (see
// simBatch) must not multiply.
var simShardEnv = []string{"GOMAXPROCS=1", "GOGC=3000", "GOMEMLIMIT=256MiB"}

// simShards are the processes that share a simulation.
type simShards struct {
	left atomic.Int64 // schedules that no process has taken
	done atomic.Int64
	stop context.CancelFunc
	mu   sync.Mutex
	fail string // what the first process that failed printed
}

// simulateOnAllProcessors runs schedules until all have passed or one has failed.
func simulateOnAllProcessors(t *testing.T, schedules int) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	s := &simShards{stop: stop}
	s.left.Store(int64(schedules))
	began := time.Now()
	shards := min(runtime.NumCPU(), schedules)
	var running sync.WaitGroup
	for range shards {
		running.Go(func() { s.work(ctx, max(1, min(simBatch, schedules/shards))) })
	}
	ended := make(chan struct{})
	go func() { running.Wait(); close(ended) }()
	ticker := time.NewTicker(3 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			fmt.Println(s.sofar(began))
			continue
		case <-ended:
		}
		break
	}
	if s.fail != "" {
		t.Fatalf("%s, and one failed:\n%s", s.sofar(began), s.fail)
	}
	t.Logf("%s, no miscount", s.sofar(began))
}

func (s *simShards) sofar(began time.Time) string { return simRate(int(s.done.Load()), began) }

func simRate(schedules int, began time.Time) string {
	took := time.Since(began)
	return fmt.Sprintf("%d schedules in %s (%.0f per second)", schedules, took.Round(100*simTick), float64(schedules)/took.Seconds())
}

// work runs one process after another, until no schedules are left.
func (s *simShards) work(ctx context.Context, batch int) {
	for ctx.Err() == nil {
		n := min(int64(batch), s.left.Add(-int64(batch))+int64(batch))
		if n <= 0 {
			return
		}
		if printed, err := s.process(ctx, int(n)); err != nil && ctx.Err() == nil {
			s.mu.Lock()
			s.fail = cmp.Or(s.fail, printed+err.Error())
			s.mu.Unlock()
			s.stop()
		}
	}
}

// process runs schedules in a process, and returns what it prints except for its progress.
func (s *simShards) process(ctx context.Context, schedules int) (printed string, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	shard := exec.CommandContext(ctx, self, "-test.run=^TestSimulation$", "-test.timeout=0", "-rapid.nofailfile",
		"-rapid.checks="+strconv.Itoa(schedules), "-rapid.seed="+strconv.FormatUint(rand.Uint64(), 10),
		"-simulation.progress", "-simulation.log="+strconv.FormatBool(*simLog))
	shard.Env = append(os.Environ(), simShardEnv...)
	out, err := shard.StdoutPipe()
	if err != nil {
		return "", err
	}
	var failure bytes.Buffer
	shard.Stderr = &failure
	if err := shard.Start(); err != nil {
		return "", err
	}
	var rest strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if n, more := simProgressFrom(lines.Text()); more {
			s.done.Add(n)
			continue
		}
		rest.WriteString(lines.Text() + "\n")
	}
	err = shard.Wait()
	return rest.String() + failure.String(), err
}

var simTellsProgress = flag.Bool("simulation.progress", false, "print how many schedules have passed, for the process that started this one")

const simProgressLine = "simulated "

// simProgress tells the process that started this one how many schedules have passed.
type simProgress struct {
	reported int
	at       time.Time
}

func newSimProgress() *simProgress { return &simProgress{at: time.Now()} }

// due tells if it is time to.
func (p *simProgress) due(schedules int) {
	if time.Since(p.at) > time.Second {
		p.report(schedules)
	}
}

func (p *simProgress) report(schedules int) {
	if *simTellsProgress {
		fmt.Println(simProgressLine + strconv.Itoa(schedules-p.reported))
	}
	p.reported, p.at = schedules, time.Now()
}

func simProgressFrom(line string) (more int64, ok bool) {
	number, ok := strings.CutPrefix(line, simProgressLine)
	more, err := strconv.ParseInt(number, 10, 64)
	return more, ok && err == nil
}
