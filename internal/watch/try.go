package watch

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"tallyroll/internal/platform/setting"
	"tallyroll/internal/platform/yamlfile"
	"tallyroll/internal/window"
)

const tryTimeout = 10 * time.Second

// Try prints what each rule reads now. It needs no NATS, notifies no target and changes nothing.
func Try(ctx context.Context, settings Settings, out io.Writer) error {
	var texts [][]byte
	for _, file := range settings.files() {
		text, err := file.Read()
		if err != nil {
			return setting.UsageError{Err: err}
		}
		texts = append(texts, text)
	}
	set, err := settings.parse(parseWithFiles)(texts)
	if err != nil {
		return setting.UsageError{Err: err}
	}
	client := settings.Redis.Client()
	defer client.Close()
	q := settings.newQuerier(client)
	bounded, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	current, err := q.query(bounded, set.Rules, func(*Rule) []string { return nil })
	if err != nil {
		return fmt.Errorf("query Redis: %w", err)
	}
	for _, r := range set.Rules {
		if err := current.refused[r]; err != nil {
			return setting.UsageError{Err: settings.file().Mistake(yamlfile.Errorf(r.line, "window: %v", err))}
		}
	}
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "RULE\tKEY\tHOLDS\tTOTAL\tLOWER\tUPPER\tWINDOW\tCONDITION\tAS OF\tWHY\n")
	for _, s := range current.results {
		if s.Rule.hasManyKeys() && s.Key == "" && s.Verdict == DoesNotHold {
			continue // all keys of the rule are known
		}
		holds := map[Verdict]string{Undecided: "unknown", Holds: "yes", DoesNotHold: "no"}[s.Verdict]
		total, lower, upper := s.bounds()
		text, zone := s.Rule.window()
		asOf := "never"
		if s.AsOf > 0 {
			asOf = toTime(s.AsOf).Format(time.RFC3339)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Rule.Name, s.Key, holds, formatBound(total),
			formatBound(lower), formatBound(upper),
			strings.TrimSpace(text+" "+zone), s.Rule.Condition, asOf, s.Reason)
	}
	return tw.Flush()
}

func formatBound(n window.Bound) string { return strings.Replace(n.String(), "null", "?", 1) }
