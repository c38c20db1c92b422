package e2e_test

import (
	"encoding/binary"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// Since 1 November 2026, British Columbia and Alberta keep their summer time, as 2026f has it. Time zones in
// ZONEINFO are used before those of the system and of Go's release, which may be older, and /v1/about has
// their version.
func TestZonesOfTheDay(t *testing.T) {
	t.Parallel()
	zones := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(zones, "America"), 0o755))
	for file, text := range map[string]string{
		"tzdata.zi": "# version 2026f\n", "America/Vancouver": zoneFile("MST", -7), "America/Edmonton": zoneFile("CST", -6),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(zones, file), []byte(text), 0o644))
	}
	s := startServers(t)
	s.ingest = stack.Ingest(t, s.nats, s.redis)
	s.query = stack.Query(t, s.redis, "ZONEINFO="+zones)
	s.send("hits.a", "")
	s.awaitTotal("a", 1)
	for zone, midnight := range map[string]int{"America/Vancouver": 7, "America/Edmonton": 6} {
		type answer struct{ Totals []stack.Total }
		total := ask[answer](s, "/v1/total", url.Values{"key": {"a"}, "window": {"today"}, "tz": {zone}}).Totals[0]
		require.Equal(t, midnight, total.From.UTC().Hour(), "%s: today begins at %s", zone, total.From)
	}
	eventuallySays(t, s.query.URL()+"/v1/about", http.StatusOK, `"time_zones":"2026f of `+zones+`"`)
}

// zoneFile is a zone's file (RFC 9636) with one offset at all times.
func zoneFile(name string, hours int) string {
	head := append([]byte("TZif2"), make([]byte, 15)...)
	out := append(head, make([]byte, 24)...)                // the first block has nothing
	out = append(append(out, head...), make([]byte, 16)...) // no leap second, no transition
	out = binary.BigEndian.AppendUint32(out, 1)             // types
	out = binary.BigEndian.AppendUint32(out, 4)             // characters of names
	out = binary.BigEndian.AppendUint32(out, uint32(hours*3600))
	return string(out) + "\x00\x00" + name + "\x00\n" + "\n"
}
