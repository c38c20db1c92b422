package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	units "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

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
