// Servers runs the core of the suite on servers that people have, and writes docs/servers.md:
//
//	go run ./tests/servers                       all of them, into the page
//	go run ./tests/servers 'Valkey 9.1'          one, into its row of the page
//	go run ./tests/servers 'Valkey 9.1' -short   one, briefly, without the page
//
// fetch.sh puts each server into bin/servers, without installing it. A server that cannot be had has a row
// that says so.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

type server struct {
	name, licence string
	fetch         []string // arguments of fetch.sh; nil: the one on the PATH
}

const redis8Licence = "AGPL-3.0, or two that are not open source"

var servers = []server{
	{"Redis 7.0", "BSD-3-Clause", nil},
	{"Redis 8.0", redis8Licence, []string{"debian", "trixie", "redis-server", "8.0"}},
	{"Valkey 8.0", "BSD-3-Clause", []string{"debian", "bookworm-backports bookworm", "valkey-server", "8.0"}},
	{"Valkey 8.1", "BSD-3-Clause", []string{"debian", "trixie", "valkey-server", "8.1"}},
	{"Valkey 9.1", "BSD-3-Clause", []string{"debian", "sid", "valkey-server", "9.1"}},
	{"nats-server 2.10", "Apache-2.0", []string{"nats", "v2.10.27"}},
	{"nats-server 2.12", "Apache-2.0", []string{"nats", "v2.12.15"}},
	{"nats-server 2.14", "Apache-2.0", []string{"nats", "v2.14.10"}},
	{"nats-server 2.15", "Apache-2.0", []string{"nats", "v2.15.3"}},
}

// part is a call of go test. tests lists names of tests, each of which must run; empty: all that there are.
type part struct{ packages, tests string }

var (
	redisParts = []part{
		{"./internal/window/... ./internal/limit ./internal/query/answer ./internal/unique ./internal/audit ./internal/platform/redisconn", ""},
		{"./internal/consume", "TestRulesAreSwept TestFailedFlushAtShutdownIsTheLast TestASessionStopsWhileRedisHangs"},
		{"./tests/e2e", "TestUsersNeedOnlyTheRightsThatTheDocsGive TestAClusterOverTLSCountsForAUserOfFewRights " +
			"TestRetierKeepsEveryFigure TestARedisThatEvictsIsUsedOnlyIfAllowed " +
			"TestRedisHoldsAtMostTwoHashesOfACounterAndTier TestTakesAreDecidedByAFileThatCanChange " +
			"TestFailModesAndReadinessWithoutRedis TestManagedRedisIsEnough"},
		{"./tests/faults", "TestExactAfterAllFaultsInTurn TestCountsAreExactAfterATornAppendOnlyFile TestFlushAllWhileAStreamIsTaken " +
			"TestCountsAreExactIfAClusterLosesItsMaster TestCountsAreExactIfSentinelsLoseTheirMaster TestCountsAreExactIfAFailOverIsByName " +
			"TestCountsAreExactWhileSlotsMove TestLimitsWhenSentinelsFailOver TestLimitsOverABadNetwork TestPlacesWhenRedisLacksThem TestSettlementsThroughKills"},
	}
	natsParts = []part{
		{"./tests/e2e", ""},
		{"./tests/faults", "TestExactAfterAllFaultsInTurn TestAPurgedStreamKeepsItsCounts TestARecreatedStreamIsCountedFromItsBeginning " +
			"TestCountsAreExactIfTheLeaderOfNATSIsKilled TestCountsAreExactIfTheLeaderOfNATSStepsDown TestCountsAreExactIfTheLeaderOfNATSIsPaused " +
			"TestARestoredStreamOfAClusterIsCountedExactly TestCountsAreExactWhileStreamsComeAndGo TestCollectStoresHitsOnceWhileNATSIsKilled"},
	}
	shortParts = []part{
		{"./internal/window/... ./internal/limit ./internal/platform/redisconn", ""},
		{"./tests/faults", "TestCountsAreExactAfterATornAppendOnlyFile TestSettlementsThroughKills"},
	}
)

func (s server) isNATS() bool { return strings.HasPrefix(s.name, "nats") }

func main() {
	log.SetFlags(0)
	args := os.Args[1:]
	short := slices.Contains(args, "-short")
	args = slices.DeleteFunc(args, func(a string) bool { return a == "-short" })
	rows, failed := map[string]string{}, false
	for _, s := range servers {
		if len(args) > 0 && !slices.Contains(args, s.name) {
			continue
		}
		row, ok := s.test(short)
		fmt.Println(row)
		rows[s.name], failed = row, failed || !ok
		if !short {
			writePage(rows)
		}
	}
	if len(rows) == 0 {
		log.Fatalf("no server has the name %q", args)
	}
	if failed {
		os.Exit(1)
	}
}

// test returns the server's row, and whether nothing has failed.
func (s server) test(short bool) (row string, ok bool) {
	folder, err := filepath.Abs(filepath.Join("bin", "servers", strings.ReplaceAll(s.name, " ", "-")))
	if err != nil {
		log.Fatal(err)
	}
	env := append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"))
	program, parts := "redis-server", redisParts
	if s.isNATS() {
		program, parts = filepath.Join(folder, "nats-server"), natsParts
		env = append(env, "TALLYROLL_NATS_SERVER="+program)
	} else if s.fetch != nil {
		program = filepath.Join(folder, program)
	}
	timeout := 10 * time.Minute
	if short {
		parts, timeout = shortParts, 80*time.Second
	}
	version, err := s.version(folder, program, timeout)
	if err != nil {
		log.Printf("SKIPPED: %s CANNOT BE HAD HERE: %v", s.name, err)
		return fmt.Sprintf("| %s | – | %s | – | – | – | **cannot be had here** |", s.name, s.licence), true
	}
	began := time.Now()
	passed, skipped := 0, 0
	var failures []string
	for _, p := range parts {
		pattern := "."
		if p.tests != "" {
			pattern = "^(" + strings.ReplaceAll(p.tests, " ", "|") + ")$"
		}
		args := append([]string{"test", "-json", "-count=1", "-vet=off", "-timeout", "4m", "-p", "1", "-parallel", "8", "-run", pattern}, strings.Fields(p.packages)...)
		cmd := exec.Command("go", args...)
		cmd.Env, cmd.Stderr = env, os.Stderr
		if p.tests != "" {
			cmd.Env = append(env, "TEST_ALL=1") // some of them are only in make test-all
		}
		out, err := cmd.Output()
		seen, printed, before := map[string]bool{}, map[string]string{}, len(failures)
		lines := bufio.NewScanner(bytes.NewReader(out))
		lines.Buffer(nil, 1<<24)
		for lines.Scan() {
			var event struct{ Action, Test, Output string }
			if json.Unmarshal(lines.Bytes(), &event) != nil {
				continue
			}
			test, part, _ := strings.Cut(event.Test, "/")
			printed[test] += event.Output
			if test == "" || part != "" {
				continue
			}
			seen[test] = true
			switch event.Action {
			case "pass":
				passed++
				delete(printed, test)
			case "skip":
				skipped++
				if p.tests != "" {
					failures = append(failures, test+" (skipped)")
				}
			case "fail":
				failures = append(failures, test)
				log.Print(printed[test])
			}
		}
		for _, test := range strings.Fields(p.tests) {
			if !seen[test] {
				failures = append(failures, test+" (missing)")
			}
		}
		if err != nil && len(failures) == before {
			failures = append(failures, p.packages)
			log.Print(printed[""])
		}
	}
	result := fmt.Sprintf("%d s", int(time.Since(began).Seconds()))
	if failures != nil {
		result = "failed: " + strings.Join(failures, ", ")
	}
	return fmt.Sprintf("| %s | %s | %s | %d | %d | %d | %s |", s.name, version, s.licence, passed, len(failures), skipped, result), failures == nil
}

var number = regexp.MustCompile(`v=?(\d+\.\d+)\.\d+`)

// version fetches the server, and returns the version of the program that then runs.
func (s server) version(folder, program string, timeout time.Duration) (string, error) {
	if s.fetch != nil {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		fetch := exec.CommandContext(ctx, "sh", append([]string{"tests/servers/fetch.sh", folder}, s.fetch...)...)
		fetch.WaitDelay = time.Second
		if out, err := fetch.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
	}
	out, err := exec.Command(program, "--version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w: %s", program, err, out)
	}
	found := number.FindStringSubmatch(string(out))
	if _, want, _ := strings.Cut(s.name, " "); found == nil || found[1] != want {
		return "", fmt.Errorf("%s is another version: %s", program, out)
	}
	return strings.Trim(found[0], "v="), nil
}

const page, begin, end = "docs/servers.md", "<!-- make servers rewrites from here -->\n", "<!-- to here -->\n"

const head = `
| server | version | licence | passed | failed | skipped | |
| --- | --- | --- | --- | --- | --- | --- |
`

// writePage replaces these rows of the page; the others stay.
func writePage(rows map[string]string) {
	text, err := os.ReadFile(page)
	if err != nil {
		log.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	measured, after, foundEnd := strings.Cut(rest, end)
	if !found || !foundEnd {
		log.Fatalf("%s lacks its markers", page)
	}
	table := head
	for _, s := range servers {
		row := rows[s.name]
		for line := range strings.Lines(measured) {
			if row == "" && strings.HasPrefix(line, "| "+s.name+" |") {
				row = strings.TrimSpace(line)
			}
		}
		if row != "" {
			table += row + "\n"
		}
	}
	if err := os.WriteFile(page, []byte(before+begin+table+"\n"+end+after), 0o644); err != nil {
		log.Fatal(err)
	}
}
