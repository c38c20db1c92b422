package main

import (
	"errors"
	"flag"

	"tallyroll/internal/hit"
	"tallyroll/internal/outbox"
	"tallyroll/internal/program"
	"tallyroll/internal/setting"
)

type options struct {
	format  string
	key     field
	unique  field // empty: none
	subject string
	batch   int64
	rebase  rebaseTo
	speed   float64
	names   int64 // how many distinct ones there may be

	synthetic bool // hits are made up by load; standard input is not read
	load      synthetic
}

type rebaseTo struct {
	on bool
	at int64 // Unix milliseconds; hit.NoTime: when the log has been read
}

func newFlags(o *options) *program.FlagSet {
	fs := program.NewFlagSet("publish")
	fs.Add("format", "combined", "the `form` of standard input: combined (web access logs, common or combined), ndjson (hit objects {\"key\",\"n\",\"ts\",\"unique\"}), lines (each names a counter)", func(s string) error {
		switch s {
		case "combined", "ndjson", "lines":
			o.format = s
			return nil
		}
		return errors.New("allowed is combined, ndjson or lines")
	})
	fs.Add("key", "path", "the `part` of an access log's line that names the counter: path (without its query), url (with it; what is longer than 512 bytes is cut and marked with its hash), host, status, method", func(s string) (err error) {
		o.key, err = parseField(s)
		return err
	})
	fs.Add("unique", "", "count how many different ones there were of this `part` of an access log's line, such as host, on each counter: path, url, host, status, method", func(s string) (err error) {
		o.unique, err = parseField(s)
		return err
	})
	fs.Add("subject", "hits.publish", "the `subject` to publish under: messages go to <subject>.0 to <subject>.63 in turn", func(s string) error {
		o.subject = s
		return outbox.CheckSubject(s)
	})
	fs.Add("batch", "200", "`hits` in a message (1 to 10000); fewer if the next hit does not come within 100ms, or the server's largest message is reached", program.Whole(&o.batch, 1, 10_000))
	fs.Add("rebase", "", "shift the log's times so that its latest hit is at this `moment`: now, or an RFC 3339 time; holds the whole log in memory (24 bytes per hit, and each name and unique value once)", func(s string) (err error) {
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
	fs.Add("speed", "", "replay at this `multiple` of the log's own pace (default as fast as the stream acknowledges)", program.Number(&o.speed, "a number above 0, such as 10", func(f float64) bool { return f > 0 && f <= 1e12 }))

	fs.Add("max-names", "1000000", "the most distinct `names` that the input may have, because each is a counter in Redis; beyond them publish stops", program.Whole(&o.names, 1, 1e9))
	fs.Add("rate", "0", "synthetic load: `hits` per second; 0 is as fast as possible", program.Number(&o.load.rate, "a number from 0 to 1e9", func(f float64) bool { return f >= 0 && f <= 1e9 }))
	fs.Add("counters", "1000", "synthetic load: this many `names`, api-1, api-2 …", program.Whole(&o.load.counters, 1, 1e12))
	fs.Add("zipf", "0", "synthetic load: draw counters by Zipf's law with this `exponent` above 1; 0 draws them evenly", program.Number(&o.load.zipf, "0, or a number above 1 and up to 100, such as 1.1", func(f float64) bool { return f == 0 || f > 1 && f <= 100 }))
	fs.Add("duration", "", "synthetic load: for this `time`, such as 10s (default until Ctrl-C or --count)", func(s string) (err error) {
		o.load.duration, err = setting.ParseDuration(s)
		if err != nil || o.load.duration <= 0 {
			return errors.New("allowed is a duration above 0, such as 10s, 5m or 1d")
		}
		return nil
	})
	fs.Add("count", "", "synthetic load: this many `hits` in all (default until Ctrl-C or --duration)", program.Whole(&o.load.count, 1, 1e15))
	return fs
}

// check resolves whether hits are synthetic, and refuses flags that would have no effect together.
func (o *options) check(fs *program.FlagSet) error {
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for _, name := range []string{"rate", "counters", "zipf", "duration", "count"} {
		o.synthetic = o.synthetic || given[name]
	}
	if o.synthetic {
		for _, name := range []string{"format", "key", "unique", "rebase", "speed", "max-names"} {
			if given[name] {
				return setting.BadUsage("--%s is about standard input, which a synthetic load (--rate, --counters, --zipf, --duration, --count) does not read", name)
			}
		}
		return nil
	}
	switch {
	case given["key"] && o.format != "combined":
		return setting.BadUsage("--key belongs to --format combined, not to --format %s", o.format)
	case given["unique"] && o.format != "combined":
		return setting.BadUsage("--unique belongs to --format combined, not to --format %s", o.format)
	case given["rebase"] && o.format == "lines":
		return setting.BadUsage("--rebase needs hits with times, which --format lines has not")
	case given["speed"] && o.format == "lines":
		return setting.BadUsage("--speed needs hits with times, which --format lines has not")
	}
	return nil
}

const about = `reads hits from standard input, or makes a synthetic load, and publishes
them to JetStream. Every hit that it read is stored exactly once: it waits for
NATS and for the stream, and sends again what was not acknowledged.

  publish < access.log                          count the paths of a web server's log
  zcat access.log.gz | publish --rebase now     the same, as if it ended now
  publish --counters 1000 --zipf 1.1 --rate 5000 --duration 1m

Its last line says what was published, and which lines were not hits. 0: all that
was read is stored; 1: some hits may not be; 2: a bad flag or setting.`
