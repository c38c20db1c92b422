package clients_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"tallyroll/internal/hit"
	"tallyroll/tests/stack"
)

// pipeline is a configuration of a program that is not in this repository.
type pipeline struct {
	file string
	has  map[string]any // what must be at these places
	// code is where the fields of a hit are written, and payload is a message that it makes: seen when Bento
	// ran, and for Vector, which did not run, worked out by hand. The names of its fields are compared with
	// code.
	code, payload string
	hits, rejects int // of the payload
}

var pipelines = []pipeline{
	{
		"bento.yaml", map[string]any{
			"http.address": "127.0.0.1:4195",
			"output.retry.output.nats_jetstream.subject":          "hits.bento",
			"output.retry.output.nats_jetstream.urls.0":           "${NATS_URL:nats://127.0.0.1:4222}",
			"output.retry.output.nats_jetstream.headers." + msgID: "${! @msg_id }",
			"pipeline.processors.1.archive.format":                "lines",
		},
		"pipeline.processors.0.mapping",
		`{"id":"e0","key":"checkout","ts":"2026-11-22T08:00:00Z"}
{"id":null,"key":null,"not_json":"not json","ts":null}
{"id":"z","key":null,"ts":null}
{"id":"e249","key":"checkout","ts":"2026-11-22T08:00:09Z"}`, 2, 2,
	},
	{
		"vector.yaml", map[string]any{
			"sinks.tallyroll.type":                         "nats",
			"sinks.tallyroll.url":                          "nats://127.0.0.1:4222",
			"sinks.tallyroll.subject":                      "hits.vector",
			"sinks.tallyroll.encoding.codec":               "json",
			"sinks.tallyroll.jetstream.enabled":            true,
			"sinks.tallyroll.jetstream.headers.message_id": "{{ id }}",
			"sinks.tallyroll.acknowledgements.enabled":     true,
		},
		"transforms.hits.source",
		`{"id":"5f0c","key":"/apache_pb.gif","ts":"2026-11-22T08:00:00Z"}`, 1, 0,
	},
	{
		"vector.yaml", nil, "transforms.hits.source",
		`{"id":"5f0d","key":null,"line":"no line of an access log","ts":null}`, 0, 1,
	},
	{
		"vector-collect.yaml", map[string]any{
			"sinks.tallyroll.type":                     "http",
			"sinks.tallyroll.uri":                      "http://127.0.0.1:8081/v1/hits",
			"sinks.tallyroll.encoding.codec":           "json",
			"sinks.tallyroll.framing.method":           "newline_delimited",
			"sinks.tallyroll.acknowledgements.enabled": true,
			"transforms.hits.drop_on_error":            true,
		},
		"transforms.hits.source",
		`{"key":"/apache_pb.gif","ts":"2026-11-22T08:00:00Z"}
{"key":"/","ts":"2026-11-22T08:00:01Z"}`, 2, 0,
	},
}

const msgID = "Nats-Msg-Id"

// fieldName is the name of a field in JSON, or in the mappings of Bento and Vector.
var fieldName = regexp.MustCompile(`"(\w+)":|(?:root|hit)\.(\w+) = `)

func fields(text string) (names []string) {
	for _, m := range fieldName.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1]+m[2])
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// The configurations publish to where Tallyroll listens, in a form that it counts. Their mappings write no
// other fields than the payloads that are tried here.
func TestPipelinesMakeHits(t *testing.T) {
	written := make(map[string][]string)
	for _, p := range pipelines {
		written[p.file] = append(written[p.file], fields(p.payload)...)
	}
	for _, p := range pipelines {
		text, err := os.ReadFile(filepath.Join(examplesDir, p.file))
		require.NoError(t, err)
		var config map[string]any
		require.NoErrorf(t, yaml.Unmarshal(text, &config), "%s", p.file)
		for place, want := range p.has {
			if got := find(config, place); got != want {
				t.Errorf("%s: %s is %v, want %v", p.file, place, got, want)
			}
		}
		for _, name := range fields(fmt.Sprint(find(config, p.code))) {
			if !slices.Contains(written[p.file], name) {
				t.Errorf("%s writes the field %s, which no payload of the test has", p.file, name)
			}
		}
		decoder := hit.NewDecoder(hit.Limits{
			MaxAhead: 10 * time.Second, MaxHits: 10_000,
			Place: func([]byte, int64, int64) (hash uint64, late string) { return 0, "" },
		})
		stored := time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC)
		hits, rejects := decoder.Decode("bento", stored.UnixMilli(), []byte(p.payload))
		if len(hits) != p.hits || len(rejects) != p.rejects {
			t.Errorf("%s: %d hits and the rejects %v, want %d and %d", p.file, len(hits), rejects, p.hits, p.rejects)
		}
		for _, h := range hits {
			if string(h.Counter) == "bento" || h.At == stored.UnixMilli() {
				t.Errorf("%s: a hit has no name or time of its own: %+v", p.file, h)
			}
		}
	}
}

// find follows a path of names and indexes; nil if there is nothing.
func find(from any, path string) any {
	for step := range strings.SplitSeq(path, ".") {
		switch node := from.(type) {
		case map[string]any:
			from = node[step]
		case []any:
			index, err := strconv.Atoi(step)
			if err != nil || index >= len(node) {
				return nil
			}
			from = node[index]
		default:
			return nil
		}
	}
	return from
}

// If Bento is here, it is run: what it publishes is counted, once though it runs twice.
func TestBentoRuns(t *testing.T) {
	t.Parallel()
	need(t, "bento")
	nats, redis := stack.SharedNATS(t), stack.SharedRedis(t)
	stack.Ingest(t, nats, redis)
	query := stack.Query(t, redis)
	var events strings.Builder
	for i := range 200 { // two messages
		fmt.Fprintf(&events, `{"id":"e%d","time":%q,"type":"checkout"}`+"\n", i, time.Now().Format(time.RFC3339))
	}
	file := filepath.Join(t.TempDir(), "events.ndjson")
	require.NoError(t, os.WriteFile(file, []byte(events.String()), 0o600))
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), exampleTimeout)
		defer cancel()
		cmd := exec.CommandContext(ctx, "bento", "--set", "http.enabled=false", "--set", "input.batched.policy.period=5s", "-c", filepath.Join(examplesDir, "bento.yaml"))
		cmd.Env = append(os.Environ(), "EVENTS="+file, "NATS_URL="+nats.URL())
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("bento: %v\n%s", err, out)
		}
	}
	stream, err := nats.JetStream().Stream(t.Context(), "HITS")
	require.NoError(t, err)
	if n := stream.CachedInfo().State.Msgs; n != 2 {
		t.Errorf("the stream has %d messages, want 2", n)
	}
	stack.EventuallyTotal(t, query.URL(), "checkout", "1h", 200)
}

// If Vector is here, it checks its files.
func TestVectorAcceptsItsFiles(t *testing.T) {
	need(t, "vector")
	for _, file := range []string{"vector.yaml", "vector-collect.yaml"} {
		out, err := exec.CommandContext(t.Context(), "vector", "validate", "--no-environment", filepath.Join(examplesDir, file)).CombinedOutput()
		if err != nil {
			t.Errorf("vector validate %s: %v\n%s", file, err, out)
		}
	}
}
