package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	units "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/limit"
	"tallyroll/internal/platform/setting"
	"tallyroll/tests/cases"
	"tallyroll/tests/stack"
)

// What files of envoyproxy/ratelimit say is decided here, or the translation says what is not. A case has
// files, with --- between them, and requests. Without requests, it gets the file of limits.
func TestFilesOfEnvoysOwnServiceAreTranslated(t *testing.T) {
	t.Parallel()
	client := stack.ProgramClientOf(t, stack.Redis(t))
	n := 0
	cases.Check(t, "translate", func(t *testing.T, _, given string) string {
		texts, requests, _ := strings.Cut(given, "\n> ")
		dir, files := t.TempDir(), []string(nil)
		for i, text := range strings.Split(texts, "\n---\n") {
			if strings.HasPrefix(text, "- ") {
				text = "domain: edge\ndescriptors:\n" + text
			}
			files = append(files, filepath.Join(dir, string(rune('a'+i))))
			require.NoError(t, os.WriteFile(files[i], []byte(text), 0o600))
		}
		out, err := translate(files)
		if err != nil {
			require.Equal(t, setting.ExitUsage, setting.ExitCode(err))
			return strings.ReplaceAll(err.Error(), dir+"/", "")
		}
		out = strings.ReplaceAll(strings.TrimSpace(out), dir+"/", "")
		if requests == "" {
			return out
		}
		var got []string
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "  #") {
				got = append(got, strings.TrimSpace(line))
			}
		}
		n++
		s := serviceOf(t, limit.New(client, fmt.Sprint("case", n), 5*time.Second), out)
		for _, request := range strings.Split(requests, "\n> ") {
			got = append(got, outcome(t, s, request))
		}
		return strings.Join(got, "\n")
	})
}

// Their windows end when a number of seconds since 1970 is a multiple of the unit's, and so do these.
func TestTranslatedWindowsEndWithTheirs(t *testing.T) {
	t.Parallel()
	client := stack.ProgramClientOf(t, stack.Redis(t))
	text := "domain: edge\ndescriptors:\n"
	seconds := map[string]int64{"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800, "month": 2592000, "year": 31536000}
	for unit := range seconds {
		text += fmt.Sprintf("- {key: %s, rate_limit: {unit: %s, requests_per_unit: 1000000}}\n", unit, unit)
	}
	file := filepath.Join(t.TempDir(), "theirs.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	limits, err := translate([]string{file})
	require.NoError(t, err)
	s := serviceOf(t, limit.New(client, "turns", 5*time.Second), limits)
	for unit, n := range seconds {
		length := time.Duration(n) * time.Second
		end := func(now time.Time) time.Time { return now.Add(length - time.Duration(now.UnixNano()%int64(length))) }
		stack.Eventually(t, "no turn of the "+unit+" while it asks", func() (bool, string) {
			before := time.Now()
			out, err := s.ShouldRateLimit(t.Context(), &rls.RateLimitRequest{Domain: "edge",
				Descriptors: []*ratelimit.RateLimitDescriptor{descriptor(unit + "=a")}})
			after := time.Now()
			require.NoError(t, err)
			if !end(before).Equal(end(after)) {
				return false, "a turn"
			}
			left := out.Statuses[0].DurationUntilReset.AsDuration()
			require.LessOrEqual(t, left, end(before).Sub(before)+time.Millisecond, unit)
			require.GreaterOrEqual(t, left, end(after).Sub(after)-time.Millisecond, unit)
			return true, ""
		})
	}
}

func TestTranslatePrintsOrRefuses(t *testing.T) {
	t.Parallel()
	const theirs = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 1}}]\n"
	good, bad := filepath.Join(t.TempDir(), "good.yaml"), filepath.Join(t.TempDir(), "bad.yaml")
	require.NoError(t, os.WriteFile(good, []byte(theirs), 0o600))
	require.NoError(t, os.WriteFile(bad, []byte("domain: other\ndescriptors: [{key: user, rate_limit: {unit: era}}]\n"), 0o600))
	run := func(args ...string) (out, log string, code int) {
		cmd := stack.Command(t.Context(), t, "rls", append([]string{"--translate"}, args...), nil)
		var text, errors bytes.Buffer
		cmd.Stdout, cmd.Stderr = &text, &errors
		_ = cmd.Run()
		return text.String(), errors.String(), cmd.ProcessState.ExitCode()
	}
	limits, log, code := run(good)
	require.Zero(t, code, log)
	r := start(t, stack.Redis(t), limits)
	require.Equal(t, "OK: OK", codesOf(r.ask(descriptor("user=a"))))
	require.Equal(t, "OVER_LIMIT: OVER_LIMIT", codesOf(r.ask(descriptor("user=a"))))
	for want, args := range map[string][]string{
		"rls: " + bad + `:2:15: unit: "era": must be second`: {good, bad},
		"rls: --translate: must be followed by files":        {},
		"rls: --translate: open /nowhere":                    {good, "/nowhere"},
	} {
		out, log, code := run(args...)
		require.Equal(t, setting.ExitUsage, code, args)
		require.Empty(t, out, args)
		require.Contains(t, log, want)
	}
}

// tree is a descriptor there.
type tree struct {
	key, value string
	limit      int // 0: none
	below      []tree
}

func (d tree) String() string {
	text := fmt.Sprintf("{key: %s, value: %q", d.key, d.value)
	if d.limit > 0 {
		text += fmt.Sprintf(", rate_limit: {unit: year, requests_per_unit: %d}", d.limit)
	}
	if d.below != nil {
		text += fmt.Sprintf(", descriptors: [%s]", list(d.below))
	}
	return text + "}"
}

func list(all []tree) string {
	var out []string
	for _, d := range all {
		out = append(out, d.String())
	}
	return strings.Join(out, ", ")
}

// theirLimitOf is the limit that decides there, or 0: at each depth that of the value, then of the first one
// with asterisks that matches, then of the key alone. There is no way back up.
func theirLimitOf(all []tree, entries []*ratelimit.RateLimitDescriptor_Entry) int {
	e := entries[0]
	find := func(ok func(value string) bool) int {
		return slices.IndexFunc(all, func(d tree) bool { return d.key == e.Key && ok(d.value) })
	}
	i := find(func(value string) bool { return value != "" && value == e.Value })
	if i < 0 {
		i = find(func(value string) bool {
			pattern := strings.ReplaceAll(regexp.QuoteMeta(value), `\*`, ".*")
			return strings.Contains(value, "*") && regexp.MustCompile("^"+pattern+"$").MatchString(e.Value)
		})
	}
	if i < 0 {
		i = find(func(value string) bool { return value == "" })
	}
	switch {
	case i < 0:
		return 0
	case len(entries) > 1:
		return theirLimitOf(all[i].below, entries[1:])
	}
	return all[i].limit
}

// Whatever a file says, what is limited there is limited by the same number here. What is not is not limited
// here either, or a comment says so.
func TestTranslationLimitsAsMuchAsTheirs(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "theirs.yaml")
	read, stricter := 0, 0
	node := rapid.Custom(func(t *rapid.T) tree {
		return tree{key: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key"), limit: rapid.IntRange(0, 1).Draw(t, "limit"),
			value: rapid.SampledFrom([]string{"", "x", "xy", "*", "x*", "*y", "x*y", "xy*", "x*y*x"}).Draw(t, "value")}
	})
	numbers := 0
	var trees func(t *rapid.T, depth int) []tree
	trees = func(t *rapid.T, depth int) []tree {
		out := rapid.SliceOfNDistinct(node, 0, 4, func(d tree) string { return d.key + "=" + d.value }).Draw(t, "descriptors")
		for i := range out {
			numbers++
			out[i].limit *= numbers
			if depth < 2 {
				out[i].below = trees(t, depth+1)
			}
		}
		return out
	}
	var requests [][]*ratelimit.RateLimitDescriptor_Entry
	for _, key := range []string{"a", "b"} {
		for _, value := range []string{"", "x", "xy", "xzy", "xyzx", "y"} {
			for _, below := range []string{"", "a", "a=x", "a=xy", "a=xyy", "b=y", "b=xyx"} {
				requests = append(requests, descriptor(append([]string{key + "=" + value}, strings.Fields(below)...)...).Entries)
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		numbers = 0
		all := trees(t, 1)
		text := fmt.Sprintf("domain: edge\ndescriptors: [%s]\n", list(all))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		out, err := translate([]string{file})
		if err != nil {
			require.Contains(t, err.Error(), "put the longer first")
			return
		}
		read++
		m, err := parseLimits([]byte(out))
		require.NoError(t, err)
		for _, entries := range requests {
			here := 0
			rules := m.find("edge", entries)
			require.LessOrEqual(t, len(rules), 1)
			if len(rules) == 1 {
				here = int(rules[0].limit.Max)
			}
			switch there := theirLimitOf(all, entries); {
			case here == there:
			case there > 0:
				t.Fatalf("%s\n%v has the limit %d, and there %d", text, entries, here, there)
			default:
				stricter++
				require.Contains(t, out, "stricter here: what matches nothing below", "%s\n%v has the limit %d", text, entries, here)
			}
		}
	})
	if !t.Failed() && (read == 0 || stricter == 0) {
		t.Errorf("%d files were read, and %d requests were limited more", read, stricter)
	}
}

// serviceOf is a service in the test's own process.
func serviceOf(t *testing.T, takes *limit.Limiter, limits string) *service {
	t.Helper()
	file := filepath.Join(t.TempDir(), "limits.yml")
	require.NoError(t, os.WriteFile(file, []byte(limits), 0o600))
	var settings Settings
	require.NoError(t, setting.Parse(&settings, "RLS_LIMITS_FILE="+file))
	s, err := newService(takes, settings, zerolog.Nop())
	require.NoError(t, err)
	return s
}

// outcome repeats a request until it is over a limit, and returns how often it was not. A request has
// descriptors with | between them: key=value of entries, and domain=, hits= and limit=number/unit.
func outcome(t *testing.T, s *service, text string) string {
	t.Helper()
	req := &rls.RateLimitRequest{Domain: "edge"}
	for part := range strings.SplitSeq(text, " | ") {
		d := &ratelimit.RateLimitDescriptor{}
		for _, field := range strings.Fields(part) {
			key, value, _ := strings.Cut(field, "=")
			count, unit, _ := strings.Cut(value, "/")
			number, _ := strconv.ParseUint(count, 10, 32)
			switch key {
			case "domain":
				req.Domain = value
			case "hits":
				req.HitsAddend = uint32(number)
			case "limit":
				d.Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(number),
					Unit: units.RateLimitUnit(units.RateLimitUnit_value[unit])}
			default:
				d.Entries = append(d.Entries, descriptor(field).Entries...)
			}
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	var per []string
	for allowed := range 6 {
		out, err := s.ShouldRateLimit(t.Context(), req)
		require.NoError(t, err)
		per = nil
		for _, status := range out.Statuses {
			switch l := status.CurrentLimit; {
			case l != nil:
				per = append(per, fmt.Sprintf("%s, %d per %s", l.Name, l.RequestsPerUnit, l.Unit))
			case status.LimitRemaining == math.MaxUint32:
				per = append(per, "unlimited")
			default:
				per = append(per, "no limit")
			}
		}
		text := fmt.Sprintf("%d allowed: %s", allowed, strings.Join(per, "; "))
		switch refused := out.DynamicMetadata.String(); {
		case out.OverallCode == rls.RateLimitResponse_OVER_LIMIT:
			return text
		case strings.Contains(strings.ReplaceAll(refused, " ", ""), `"would_refuse"value:{bool_value:true}`):
			return text + " (and one that would be refused)"
		}
	}
	return "all allowed: " + strings.Join(per, "; ")
}
