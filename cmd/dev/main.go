// Dev runs all of Tallyroll in one process on loopback, to try it or work on it: embedded NATS with
// JetStream, a Redis, one worker, collect, query with four limits, watch with two rules, and a small
// synthetic load.
//
//	load, HTTP ─▶ collect ─▶ NATS (embedded) ─▶ consume ─▶ Redis (redis-server, or a stand-in) ◀─ query ◀─ HTTP
//	                                                                                           ◀─ watch
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/collect"
	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/progress"
	"tallyroll/internal/platform/release"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/platform/wait"
	"tallyroll/internal/query"
	"tallyroll/internal/watch"
	"tallyroll/internal/web"
	"tallyroll/internal/worker"
)

func main() {
	var o options
	flag.Usage = func() {
		if slices.Contains(os.Args, "--help") || slices.Contains(os.Args, "-h") {
			flag.CommandLine.SetOutput(os.Stdout)
		}
		fmt.Fprint(flag.CommandLine.Output(), "dev runs all of Tallyroll on loopback: NATS, Redis, a worker, the "+
			"services collect and query with four limits,\nwatch with two rules, and a small load.\n\n")
		flag.PrintDefaults()
		fmt.Fprint(flag.CommandLine.Output(), "\nThe variables of ingest, collect, query and watch (see their --help) "+
			"apply, except for addresses and URLs.\n")
	}
	flag.BoolVar(&o.noLoad, "no-load", false, "publish nothing by itself")
	flag.StringVar(&o.host, "host", "127.0.0.1",
		"query and collect listen on this `address`, such as 0.0.0.0 in a container")
	flag.StringVar(&o.dir, "dir", "",
		"keep the data in this `directory` (default: a temporary one, removed at the end)")
	version := flag.Bool("version", false, "print the version")
	flag.Parse()
	if *version {
		fmt.Println("dev", release.Version())
		return
	}
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "dev: unknown argument %q, see dev --help\n", flag.Arg(0))
		os.Exit(setting.ExitUsage)
	}
	program.Main("dev", o.run)
}

type options struct {
	noLoad bool
	host   string
	dir    string
}

// run starts the servers, then the programs. It stops them in reverse, because the last commit needs both
// servers.
func (o options) run(ctx context.Context) (err error) {
	dir, cleanUp, err := o.directory()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cleanUp()) }()

	redis, err := startRedis(ctx, filepath.Join(dir, "redis"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, redis.stop()) }()
	nats, err := startNATS(filepath.Join(dir, "nats"))
	if err != nil {
		return err
	}
	defer stopNATS(nats)

	settings := []string{
		"NATS_URL=" + nats.ClientURL(),
		"REDIS_URL=" + redis.url,
		"INGEST_ADDR=" + address(8082),
		"QUERY_ADDR=" + o.address(8080),
		"COLLECT_ADDR=" + o.address(8081),
		"WATCH_ADDR=" + address(9092),
		"INGEST_WORKER=dev",
		// These are about another server than the embedded one.
		"NATS_NKEY=", "NATS_INBOX_PREFIX=", "NATS_JS_DOMAIN=", "NATS_JS_API_PREFIX=",
	}
	if os.Getenv("LOG_LEVEL") == "" {
		settings = append(settings, "LOG_LEVEL=warn")
	}
	if !redis.uniques {
		settings = append(settings, "UNIQUE_TIERS=off")
	}
	if os.Getenv("QUERY_TAKE") == "" {
		settings = append(settings, "QUERY_TAKE=any")
	}
	limits := os.Getenv("QUERY_LIMITS_FILE")
	for variable, file := range map[string]demoFile{
		"WATCH_FILE":        {"watch.yml", rulesOfLoad},
		"QUERY_LIMITS_FILE": {"limits.yml", limitsOfLoad},
	} {
		if os.Getenv(variable) != "" {
			continue
		}
		path, err := file.write(dir)
		if err != nil {
			return err
		}
		settings = append(settings, variable+"="+path)
		if variable == "QUERY_LIMITS_FILE" {
			limits = path
		}
	}
	if os.Getenv("WATCH_LIMITS_FILE") == "" {
		settings = append(settings, "WATCH_LIMITS_FILE="+limits)
	}
	var ingest worker.Settings
	var answers query.Settings
	var hits collect.Settings
	var alerts watch.Settings
	for _, of := range []any{&ingest, &answers, &hits, &alerts} {
		if err := setting.Parse(of, settings...); err != nil {
			return err
		}
	}
	screen := progress.NewScreen(os.Stderr, "messages")
	ingest.Log.Unknown = slices.Concat(ingest.Log.Unknown, answers.Log.Unknown, hits.Log.Unknown, alerts.Log.Unknown)
	log := ingest.Log.New(screen)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return worker.Run(ctx, ingest, log, screen.Progress, nil) })
	group.Go(func() error {
		// The worker creates the stream for collect and the layout for query.
		if err := waitReady(ctx, ingest.Addr); err != nil {
			return ignoreCancelled(err)
		}
		group.Go(func() error { return collect.Run(ctx, hits, log, nil) })
		group.Go(func() error { return query.Run(ctx, answers, log, nil) })
		group.Go(func() error { return watch.Run(ctx, alerts, log, nil) })
		for _, addr := range []web.Address{hits.Addr, answers.Addr, alerts.Addr} {
			if err := waitReady(ctx, addr); err != nil {
				return ignoreCancelled(err)
			}
		}
		o.greet(nats.ClientURL(), redis, addresses{ingest.Addr, answers.Addr, hits.Addr, alerts.Addr}, dir, alerts.File,
			answers.LimitsFile)
		if o.noLoad {
			return nil
		}
		group.Go(func() error { return takeFromLimits(ctx, "http://"+answers.Addr.String()) })
		return ignoreCancelled(load(ctx, nats.ClientURL(), ingest.NATS.Access))
	})
	return group.Wait()
}

func ignoreCancelled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func (o options) directory() (dir string, cleanUp func() error, err error) {
	if o.dir != "" {
		return o.dir, func() error { return nil }, os.MkdirAll(o.dir, 0o755)
	}
	if dir, err = os.MkdirTemp("", "tallyroll-dev-"); err != nil {
		err = fmt.Errorf("%w: set --dir, or add --tmpfs /tmp to docker run", err)
	}
	return dir, func() error { return os.RemoveAll(dir) }, err
}

var (
	//go:embed watch.yml
	rulesOfLoad []byte
	//go:embed limits.yml
	limitsOfLoad []byte
)

type demoFile struct {
	name    string
	content []byte
}

// write writes the file, unless a kept directory already has one.
func (f demoFile) write(dir string) (path string, err error) {
	path = filepath.Join(dir, f.name)
	if _, err = os.Stat(path); errors.Is(err, os.ErrNotExist) {
		err = os.WriteFile(path, f.content, 0o644)
	}
	return path, err
}

func waitReady(ctx context.Context, addr web.Address) error {
	return wait.Until(ctx, zerolog.Nop(), addr.String(), func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr.String()+"/readyz", nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
}

type addresses struct{ ingest, query, collect, watch web.Address }

func (o options) greet(natsURL string, redis *redisServer, at addresses, dir, rules, limits string) {
	data := "in memory and " + dir + ", removed at the end (--dir keeps it)"
	if o.dir != "" {
		data = "kept in " + dir
	}
	about := fmt.Sprintf("about %d hits per second on %d counters, and %d takes from limits (--no-load: none)",
		loadPerSecond, len(loadCounters)+len(loadOfDocs), takesPerSecond)
	if o.noLoad {
		about = "none (--no-load)"
	}
	text := fmt.Sprintf(`
Tallyroll is up.
  page     http://%[1]s/
  query    http://%[1]s/docs
  collect  http://%[8]s/v1/hits
  metrics  http://%[1]s/metrics   http://%[2]s/metrics   http://%[8]s/metrics   http://%[9]s/metrics
  watch    %[10]s has its rules, the page shows them under Alerts
  limits   %[11]s has them, the page shows them under Limits
  NATS     %[3]s (embedded)
  Redis    %[4]s (%[5]s)
  data     %[6]s
  load     %[7]s

How many in the last minute, ask again and again:
  curl -s 'http://%[1]s/v1/total?key=/home&window=1m'
Three windows at once:
  curl -s 'http://%[1]s/v1/total?key=/home&window=1m&window=24h&window=30d'
Count a hit of your own, and ask until it is counted:
  curl -sS -d '{"key":"my-counter"}' http://%[8]s/v1/hits && until curl -s 'http://%[1]s/v1/total?key=my-counter&window=24h' | grep '"total":[1-9]'; do sleep 1; done

Ask a limit of 5 per minute six times: the last answer is 429.
  for i in 1 2 3 4 5 6; do curl -s -o /dev/null -w '%%{http_code} ' -d '{"limit":"login","key":"me"}' http://%[1]s/v1/take; done

Ctrl-C ends all of it.
`, at.query, at.ingest, natsURL, redis.url, redis.about, data, about, at.collect, at.watch, rules, limits)
	fmt.Print(strings.ReplaceAll(text, "0.0.0.0", "127.0.0.1"))
}
