package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"tallyroll/internal/boot"
	"tallyroll/internal/hit"
)

// options are the flags.
type options struct {
	access    boot.NATSAccess            // where JetStream is; from the environment
	namespace string                     // whose rejects are counted; from the environment
	ask       func(question string) bool // a person on a terminal; nil if there is none
	format    string
	key       field
	subject   string
	batch     int64
	rebase    rebaseTo
	speed     float64
	names     int64 // how many distinct ones there may be

	follow string // a log that grows; standard input is not read
	state  string // where its place is kept

	rejects fromRejects // standard input is not read

	synthetic bool // hits are made up by load; standard input is not read
	load      synthetic

	version bool
}

// rebaseTo is the moment that the log's latest hit is shifted to.
type rebaseTo struct {
	on bool
	at int64 // Unix milliseconds; hit.NoTime: when the log has been read
}

// value is a flag whose error says what is allowed.
type value struct {
	text string
	set  func(string) error
}

func (v *value) String() string { return v.text }

func (v *value) Set(s string) error {
	v.text = s
	return v.set(s)
}

func newFlags(o *options) *flag.FlagSet {
	fs := flag.NewFlagSet("publish", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	add := func(name, def, usage string, set func(string) error) {
		if def != "" {
			if err := set(def); err != nil {
				panic("default of --" + name + ": " + err.Error())
			}
		}
		fs.Var(&value{text: def, set: set}, name, usage)
	}
	add("format", "combined", "the `form` of standard input: combined (web access logs, common or combined), ndjson (hit objects {\"key\",\"n\",\"ts\"}), lines (each names a counter)", func(s string) error {
		switch s {
		case "combined", "ndjson", "lines":
			o.format = s
			return nil
		}
		return errors.New("allowed is combined, ndjson or lines")
	})
	add("key", "path", "the `part` of an access log's line that names the counter: path (without its query), url (with it; what is longer than 512 bytes is cut and marked with its hash), host, status, method", func(s string) (err error) {
		o.key, err = parseField(s)
		return err
	})
	add("subject", "hits.publish", "the `subject` to publish under: messages go to <subject>.0 to <subject>.63 in turn", func(s string) error {
		o.subject = s
		return checkSubject(s)
	})
	add("batch", "200", "`hits` in a message (1 to 10000); fewer if the next hit does not come within 100ms, or the server's largest message is reached", whole(&o.batch, 1, 10_000))
	add("follow", "", "read this growing `file` instead of standard input, also through rotation, and keep the place: a restart counts nothing twice; needs --state", text(&o.follow))
	add("state", "", "follow: the `file` that keeps the place in the log, such as /var/lib/tallyroll/access.state; it needs a directory that lasts", text(&o.state))
	add("rebase", "", "shift the log's times so that its latest hit is at this `moment`: now, or an RFC 3339 time; holds the whole log in memory (16 bytes per hit, and each name once)", func(s string) (err error) {
		o.rebase = rebaseTo{on: true, at: hit.NoTime}
		if s == "now" {
			return nil
		}
		if o.rebase.at, err = hit.ParseTime(s); err == nil {
			err = hit.CheckTime(o.rebase.at)
		}
		if err != nil {
			return errors.New("allowed is now, or a time such as 2026-11-21T10:00:00Z")
		}
		return nil
	})
	add("speed", "", "replay at this `multiple` of the log's own pace (default as fast as the stream acknowledges)", number(&o.speed, "a number above 0, such as 10", func(f float64) bool { return f > 0 && f <= 1e12 }))

	add("max-names", "1000000", "the most distinct `names` that the input may have, because each is a counter in Redis; beyond them publish asks on a terminal whether to go on, and else stops", whole(&o.names, 1, 1e9))
	add("rate", "0", "synthetic load: `hits` per second, or with --from-rejects rejects per second; 0 is as fast as possible", number(&o.load.rate, "a number from 0 to 1e9", func(f float64) bool { return f >= 0 && f <= 1e9 }))
	add("counters", "1000", "synthetic load: this many `names`, api-1, api-2 …", whole(&o.load.counters, 1, 1e12))
	add("zipf", "0", "synthetic load: draw counters by Zipf's law with this `exponent` above 1; 0 draws them evenly", number(&o.load.zipf, "0, or a number above 1 and up to 100, such as 1.1", func(f float64) bool { return f == 0 || f > 1 && f <= 100 }))
	add("duration", "", "synthetic load: for this `time`, such as 10s (default until Ctrl-C or --count)", func(s string) (err error) {
		o.load.duration, err = boot.ParseDuration(s)
		if err != nil || o.load.duration <= 0 {
			return errors.New("allowed is a duration above 0, such as 10s, 5m or 1d")
		}
		return nil
	})
	add("count", "", "synthetic load: this many `hits` in all (default until Ctrl-C or --duration)", whole(&o.load.count, 1, 1e15))
	add("seed", "", "synthetic load: the same `seed` draws the same counters again (default another one each time)", func(s string) (err error) {
		if o.load.seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			return errors.New("allowed is a whole number from 0 to 18446744073709551615")
		}
		return nil
	})
	fs.BoolVar(&o.rejects.on, "from-rejects", false, "publish again what workers have rejected: reads HITS_REJECTED, and not standard input; removes there what is stored again")
	add("reason", "", "rejects: only those with these `reasons`, comma-separated, such as too_late (default all; those that would be refused again are left)", func(s string) error {
		for name := range strings.SplitSeq(s, ",") {
			if !slices.Contains(hit.Reasons, hit.Reason(name)) {
				return fmt.Errorf("allowed is one or more of %s", reasonNames())
			}
			o.rejects.reasons = append(o.rejects.reasons, hit.Reason(name))
		}
		return nil
	})
	add("stream", "", "rejects: only those of messages of this `stream`", func(s string) error {
		o.rejects.stream = s
		if checkSubject(s) != nil || strings.Contains(s, ".") {
			return errors.New("allowed is the name of a stream, such as HITS")
		}
		return nil
	})
	add("ts", "keep", "rejects: which `time` they get: keep (their own), now (they count when they are stored again), stored (when the refused message was stored)", func(s string) error {
		o.rejects.ts = timing(s)
		switch o.rejects.ts {
		case keepTime, nowTime, storedTime:
			return nil
		}
		return errors.New("allowed is keep, now or stored")
	})
	fs.BoolVar(&o.rejects.dryRun, "dry-run", false, "rejects: list what would be sent, at most 100 of them, and send nothing")
	fs.BoolVar(&o.version, "version", false, "print the version")
	return fs
}

func reasonNames() string {
	names := make([]string, len(hit.Reasons))
	for i, r := range hit.Reasons {
		names[i] = string(r)
	}
	return strings.Join(names, ", ")
}

func text(to *string) func(string) error {
	return func(s string) error {
		if s == "" {
			return errors.New("allowed is the path of a file")
		}
		*to = s
		return nil
	}
}

func whole(to *int64, least, most int64) func(string) error {
	return func(s string) error {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < least || n > most {
			return fmt.Errorf("allowed is a whole number from %d to %d", least, most)
		}
		*to = n
		return nil
	}
}

func number(to *float64, allowed string, ok func(float64) bool) func(string) error {
	return func(s string) error {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || !ok(f) {
			return fmt.Errorf("allowed is %s", allowed)
		}
		*to = f
		return nil
	}
}

func checkSubject(s string) error {
	if !hit.ValidSubject(s) || strings.ContainsAny(s, "*>") {
		return errors.New("allowed is a subject without wildcards or spaces, such as hits.publish")
	}
	return nil
}

// parseFlags reads the arguments. Its errors are usage errors, and
// flag.ErrHelp if help is asked for.
func parseFlags(args []string) (options, error) {
	o := options{load: synthetic{seed: rand.Uint64()}}
	fs := newFlags(&o)
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return o, err
	} else if err != nil {
		return o, usage("%w: see publish --help", err)
	}
	if fs.NArg() > 0 {
		return o, usage("unexpected argument %q: hits are read from standard input: see publish --help", fs.Arg(0))
	}
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if o.rejects.on {
		if given["subject"] {
			o.rejects.subject = o.subject
		}
		o.rejects.rate = o.load.rate
		return o, o.rejects.check(given)
	}
	for _, name := range []string{"reason", "stream", "ts", "dry-run"} {
		if given[name] {
			return o, usage("--%s belongs to --from-rejects", name)
		}
	}
	for _, name := range []string{"rate", "counters", "zipf", "duration", "count"} {
		o.synthetic = o.synthetic || given[name]
	}
	return o, o.check(given)
}

// check refuses flags that would have no effect.
func (fromRejects) check(given map[string]bool) error {
	for _, name := range []string{"format", "key", "batch", "rebase", "speed", "max-names", "follow", "state", "counters", "zipf", "duration", "count", "seed"} {
		if given[name] {
			return usage("--%s has no effect with --from-rejects", name)
		}
	}
	return nil
}

// check refuses flags that would have no effect together.
func (o options) check(given map[string]bool) error {
	if o.synthetic {
		for _, name := range []string{"format", "key", "rebase", "speed", "max-names", "follow", "state"} {
			if given[name] {
				return usage("--%s is about standard input, which a synthetic load (--rate, --counters, --zipf, --duration, --count) does not read", name)
			}
		}
		return nil
	}
	switch {
	case given["follow"] != given["state"]:
		return usage("--follow FILE and --state FILE go together: the state keeps the place in the log, such as --state /var/lib/tallyroll/access.state")
	case given["follow"] && (given["rebase"] || given["speed"]):
		return usage("--rebase and --speed are for logs that have ended, not for --follow")
	case given["seed"]:
		return usage("--seed belongs to a synthetic load: give --counters, --count or --duration as well")
	case given["key"] && o.format != "combined":
		return usage("--key belongs to --format combined, not to --format %s", o.format)
	case given["rebase"] && o.format == "lines":
		return usage("--rebase needs hits with times, which --format lines has not")
	case given["speed"] && o.format == "lines":
		return usage("--speed needs hits with times, which --format lines has not")
	}
	return nil
}

func usage(format string, args ...any) error {
	return boot.UsageError{Err: fmt.Errorf(format, args...)}
}

const about = `reads hits from standard input or a growing log, or makes a synthetic load, and publishes
them to JetStream. Every hit that it read is stored exactly once: it waits for
NATS and for the stream, and sends again what was not acknowledged.

  publish < access.log                          count the paths of a web server's log
  zcat access.log.gz | publish --rebase now     the same, as if it ended now
  publish --follow access.log --state access.state    as it happens, also through restarts and rotation
  publish --counters 1000 --zipf 1.1 --rate 5000 --duration 1m
  publish --from-rejects --reason too_late --ts now    count after all what was rejected

Its last line says what was published, which lines were not hits, and which hits
the workers have rejected so far, and why: for that it waits up to 5 seconds until
they have read its last message. Rejects do not change the exit code. 0: all that
was read is stored; 1: some hits may not be; 2: a bad flag or setting.`

// printHelp prints the environment variables and the flags.
func printHelp(w io.Writer, settings any) {
	boot.Usage(w, "publish", about, settings)
	fmt.Fprintln(w)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	newFlags(&options{}).VisitAll(func(f *flag.Flag) {
		if f.Name == "version" {
			return // boot.Usage has named it
		}
		arg, text := flag.UnquoteUsage(f)
		def := f.DefValue
		if def == "" {
			def = "(none)"
		}
		fmt.Fprintf(tw, "  --%s %s\t%s\t%s\n", f.Name, arg, def, text)
	})
	_ = tw.Flush()
}
