// Servers runs the core of the suite on servers that people have, and writes docs/servers.md:
//
//	go run ./tests/servers              all of them, into the page
//	go run ./tests/servers 'Valkey 9.1' -short   one, briefly, and prints the row
//
// fetch.sh puts each server into bin/servers, without installing it. A server that cannot be had has a row
// that says so.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

type server struct {
	name, licence string
	fetch         []string // arguments of fetch.sh; nil: the one on the PATH
}

var servers = []server{
	{"Redis 7.0", "BSD-3-Clause", nil},
	{"Redis 8.0", "AGPL-3.0, or not open source", []string{"debian", "trixie", "redis-server", "8.0"}},
	{"Valkey 8.0", "BSD-3-Clause", []string{"debian", "bookworm-backports bookworm", "valkey-server", "8.0"}},
	{"Valkey 8.1", "BSD-3-Clause", []string{"debian", "trixie", "valkey-server", "8.1"}},
	{"Valkey 9.1", "BSD-3-Clause", []string{"debian", "sid", "valkey-server", "9.1"}},
	{"nats-server 2.10", "Apache-2.0", []string{"nats", "v2.10.27"}},
	{"nats-server 2.12", "Apache-2.0", []string{"nats", "v2.12.15"}},
	{"nats-server 2.14", "Apache-2.0", []string{"nats", "v2.14.10"}},
	{"nats-server 2.15", "Apache-2.0", []string{"nats", "v2.15.3"}},
}

// part is a call of go test.
type part struct {
	pattern  string
	packages []string
}

const faults = "TestExactAfterEachFault|TestReservationsThroughKills|TestLimitsOverABadNetwork|TestUniques|TestPlacesWhenRedisLacksThem"

var (
	redisParts = []part{
		{".", []string{"./internal/window/...", "./internal/limit", "./internal/answer", "./internal/fleet"}},
		{faults, []string{"./tests/faults"}},
	}
	natsParts  = []part{{".", []string{"./tests/faults"}}} // other tests have a NATS inside their process
	shortParts = []part{{".", []string{"./internal/window", "./internal/limit"}}, {"TestReservationsThroughKills", []string{"./tests/faults"}}}
)

func main() {
	log.SetFlags(0)
	args := os.Args[1:]
	short := slices.Contains(args, "-short")
	args = slices.DeleteFunc(args, func(a string) bool { return a == "-short" })
	var rows []string
	failed := false
	for _, s := range servers {
		if len(args) > 0 && !slices.Contains(args, s.name) {
			continue
		}
		row, ok := s.test(short)
		fmt.Println(row)
		rows, failed = append(rows, row), failed || !ok
	}
	if len(rows) == len(servers) {
		writePage(rows)
	}
	if failed {
		os.Exit(1)
	}
}

// test returns the server's row, and whether nothing has failed.
func (s server) test(short bool) (row string, ok bool) {
	folder := filepath.Join("bin", "servers", strings.ReplaceAll(s.name, " ", "-"))
	env := os.Environ()
	if s.fetch != nil {
		fetch := exec.Command("sh", append([]string{"tests/servers/fetch.sh", folder}, s.fetch...)...)
		if out, err := fetch.CombinedOutput(); err != nil {
			log.Printf("SKIPPED: %s cannot be had here: %v: %s", s.name, err, out)
			return fmt.Sprintf("| %s | %s | – | – | – | cannot be had here |", s.name, s.licence), true
		}
		full, err := filepath.Abs(folder)
		if err != nil {
			log.Fatal(err)
		}
		env = append(env, "PATH="+full+":"+os.Getenv("PATH"))
		if s.fetch[0] == "nats" {
			env = append(env, "TALLYROLL_NATS_SERVER="+filepath.Join(full, "nats-server"))
		}
	}
	parts := redisParts
	switch {
	case short:
		parts = shortParts
	case s.fetch != nil && s.fetch[0] == "nats":
		parts = natsParts
	}
	began := time.Now()
	var passed, skipped int
	var failures []string
	for _, p := range parts {
		args := append([]string{"test", "-json", "-count=1", "-vet=off", "-timeout", "15m", "-run", p.pattern}, p.packages...)
		cmd := exec.Command("go", args...)
		cmd.Env, cmd.Stderr = env, os.Stderr
		out, err := cmd.Output()
		before := len(failures)
		lines := bufio.NewScanner(bytes.NewReader(out))
		lines.Buffer(nil, 1<<24)
		for lines.Scan() {
			var event struct{ Action, Test string }
			if json.Unmarshal(lines.Bytes(), &event) != nil || event.Test == "" || strings.Contains(event.Test, "/") {
				continue
			}
			switch event.Action {
			case "pass":
				passed++
			case "skip":
				skipped++
			case "fail":
				failures = append(failures, event.Test)
			}
		}
		if err != nil && len(failures) == before {
			failures = append(failures, strings.Join(p.packages, " "))
		}
		if err != nil {
			_ = os.WriteFile(filepath.Join("bin", "servers", strings.ReplaceAll(s.name, " ", "-")+".json"), out, 0o644)
		}
	}
	result := fmt.Sprintf("%d s", int(time.Since(began).Seconds()))
	if failures != nil {
		result = "failed: " + strings.Join(failures, ", ")
	}
	return fmt.Sprintf("| %s | %s | %d | %d | %d | %s |", s.name, s.licence, passed, len(failures), skipped, result), failures == nil
}

const page, begin, end = "docs/servers.md", "<!-- make servers rewrites from here -->\n", "<!-- to here -->\n"

func writePage(rows []string) {
	text, err := os.ReadFile(page)
	if err != nil {
		log.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	_, after, foundEnd := strings.Cut(rest, end)
	if !found || !foundEnd {
		log.Fatalf("%s lacks its markers", page)
	}
	table := fmt.Sprintf("\nMeasured %s.\n\n| server | licence | passed | failed | skipped | |\n| --- | --- | --- | --- | --- | --- |\n%s\n\n",
		time.Now().UTC().Format(time.DateOnly), strings.Join(rows, "\n"))
	if err := os.WriteFile(page, []byte(before+begin+table+end+after), 0o644); err != nil {
		log.Fatal(err)
	}
}
