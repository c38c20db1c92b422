package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
	"tallyroll/tests/cases"
)

const goodLine = `83.149.9.216 - - [17/May/2015:10:05:03 +0000] "GET /images/a.png?x=1&y=2 HTTP/1.1" 200 203023 "http://example.com/" "Mozilla/5.0 (X11)"`

func TestLinesOfAccessLogsAreReadOrSkipped(t *testing.T) {
	t.Parallel()
	cases.Check(t, "combined", func(t *testing.T, section, line string) string {
		key, unique, _ := strings.Cut(section, ", unique: ")
		line = strings.NewReplacer("GOOD", goodLine, "HEAD", "h - - [17/May/2015:10:05:03 +0000]").Replace(line)
		h, err := combinedParser(field(key), field(unique))([]byte(line))
		if err != nil {
			return "skipped: " + err.Error()
		}
		require.Equal(t, int64(1), h.N)
		out := fmt.Sprintf("%s at %s", h.Counter, time.UnixMilli(h.At).UTC().Format(time.RFC3339))
		if h.Unique != nil {
			out += fmt.Sprintf(" of %s", h.Unique)
		}
		return out
	})
}

func TestLongPathsAreShortenedAndStayApart(t *testing.T) {
	t.Parallel()
	parse := combinedParser("path", "")
	seen := map[string]bool{}
	for _, path := range []string{
		"/" + strings.Repeat("a", hit.MaxName-1), "/" + strings.Repeat("a", hit.MaxName), "/" + strings.Repeat("a", hit.MaxName+1),
		"/" + strings.Repeat("ä", hit.MaxName), "/x" + strings.Repeat("ä", hit.MaxName),
	} {
		h, err := parse([]byte(`h - - [17/May/2015:10:05:03 +0000] "GET ` + path + ` HTTP/1.1" 200 1`))
		if err != nil {
			t.Errorf("path of %d bytes: %v", len(path), err)
		}
		if whole := string(h.Counter) == path; whole != (len(path) <= hit.MaxName) {
			t.Errorf("path of %d bytes is counted as %q", len(path), h.Counter)
		}
		if !strings.HasPrefix(string(h.Counter), path[:hit.MaxName-32]) {
			t.Errorf("path of %d bytes is counted as %q, which does not begin like it", len(path), h.Counter)
		}
		seen[string(h.Counter)] = true
	}
	require.Len(t, seen, 5)
}

func FuzzCombinedParser(f *testing.F) {
	f.Add(goodLine)
	f.Add(`h - - [17/May/2015:10:05:03 +0000] "GET /a\"b HTTP/1.1" 200`)
	f.Add(`h - - [[17/May/2015:10:05:03 +0000] "-" 408`)
	f.Add(`h [`)
	f.Fuzz(func(t *testing.T, line string) {
		for _, key := range []field{"path", "host", "status", "method"} {
			h, err := combinedParser(key, "")([]byte(line))
			if err != nil {
				continue
			}
			if err := hit.CheckName(h.Counter); err != nil {
				t.Errorf("%s %q: %v", key, h.Counter, err)
			}
			if len(h.Counter) < hit.MaxName-32 && !strings.Contains(line, string(h.Counter)) {
				t.Errorf("%s %q does not stand in the line", key, h.Counter)
			}
			if h.N != 1 || h.At == hit.NoTime {
				t.Errorf("n %d, ts %d", h.N, h.At)
			}
		}
	})
}
