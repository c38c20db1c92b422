package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"tallyroll/internal/consume"
	"tallyroll/internal/consume/source"
	"tallyroll/internal/hit"
	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/rules"
	"tallyroll/internal/worker"
)

// trying is --try, which prints what rules would count of messages. It needs no servers.
type trying struct {
	file     string
	defaults sample
}

func (o *trying) mode(settings *worker.Settings) program.Mode {
	return program.Mode{
		Name: "try",
		Help: "FILE [--stream NAME] [--subject NAME] reads messages from standard input, one per line, and prints " +
			"what the rules in FILE would count: exit code 0 if everything, 1 if some of it is rejected.",
		Reads: "messages are read from standard input",
		Flags: func(fs *program.FlagSet) {
			fs.Add("try", "", "", func(file string) error {
				if o.file = file; file == "" {
					return errors.New("must be a rules file")
				}
				return nil
			})
			fs.StringVar(&o.defaults.stream, "stream", "", "")
			fs.Add("subject", "", "", func(subject string) error {
				o.defaults.subject = subject
				return checkSubject(subject)
			})
		},
		Run: func() (int, error) {
			if err := setting.Parse(settings); err != nil {
				return setting.ExitUsage, err
			}
			return o.run(settings.HitLimits(), os.Stdin, os.Stdout, time.Now())
		},
	}
}

func (o *trying) run(limits hit.Limits, in io.Reader, out io.Writer, now time.Time) (code int, err error) {
	given := setting.Path{Key: "--try", File: o.file}
	text, err := given.Read()
	if err != nil {
		return 0, setting.UsageError{Err: err}
	}
	set, err := rules.Parse(text)
	if err != nil {
		return 0, setting.UsageError{Err: given.Mistake(err)}
	}
	defaults := o.defaults
	stream, subject := set.CommonSource()
	defaults.stream, defaults.subject = cmp.Or(defaults.stream, stream), cmp.Or(defaults.subject, subject)
	defaults.stored = now
	t := &trial{set: set, limits: limits, out: out, decoders: map[string]*consume.Trial{}, counters: map[string]bool{},
		reasons: map[hit.Reason]int{}}
	if err := readSamples(in, defaults, t.message); err != nil {
		return 0, err
	}
	return t.end()
}

// trial counts what becomes of the samples, and prints it.
type trial struct {
	set      *rules.Set
	limits   hit.Limits
	out      io.Writer
	decoders map[string]*consume.Trial // by stream

	messages, hits, unmet int
	counters              map[string]bool
	reasons               map[hit.Reason]int
}

func (t *trial) message(s sample) error {
	d := t.decoders[s.stream]
	if d == nil {
		d = consume.NewTrial(s.stream, t.limits, t.set)
		t.decoders[s.stream] = d
	}
	m := source.Delivery{Subject: s.subject, Header: make(nats.Header), Stored: s.stored.UnixNano(),
		Seq: uint64(t.messages) + 1, Data: s.body}
	for name, value := range s.headers {
		m.Header[name] = []string{value}
	}
	hits, rejects, unmet := d.Read(m)
	t.messages++
	t.hits += len(hits)
	t.unmet += unmet
	var text strings.Builder
	for _, h := range hits {
		t.counters[string(h.Counter)] = true
		fmt.Fprintf(&text, "%d\tcounted\t%s\t%d\t%s", s.line, h.Counter, h.N,
			time.UnixMilli(h.At).UTC().Format("2006-01-02T15:04:05.000Z07:00"))
		if h.Unique != nil {
			fmt.Fprintf(&text, "\tunique %q", h.Unique) // quoted: it may have tabs and line ends
		}
		text.WriteByte('\n')
	}
	for _, r := range rejects {
		t.reasons[r.Reason]++
		fmt.Fprintf(&text, "%d\trejected\t%s\titem %d\t%s\n", s.line, r.Reason, r.Item, r.Detail)
	}
	if unmet > 0 {
		fmt.Fprintf(&text, "%d\tleft out by when\t%d\n", s.line, unmet)
	}
	if text.Len() == 0 {
		fmt.Fprintf(&text, "%d\tnothing\n", s.line)
	}
	_, err := io.WriteString(t.out, text.String())
	return err
}

func (t *trial) end() (code int, err error) {
	rejected := 0
	var reasons []string
	for _, reason := range slices.Sorted(maps.Keys(t.reasons)) {
		rejected += t.reasons[reason]
		reasons = append(reasons, fmt.Sprintf("%s %d", reason, t.reasons[reason]))
	}
	sum := fmt.Sprintf("%d messages: %d hits on %d counters, %d rejected", t.messages, t.hits, len(t.counters),
		rejected)
	if rejected > 0 {
		sum += " (" + strings.Join(reasons, ", ") + ")"
		code = setting.ExitFailure
	}
	_, err = fmt.Fprintf(t.out, "%s, %d left out by when\n", sum, t.unmet)
	return code, err
}
