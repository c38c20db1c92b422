# Tallyroll. `make` or `make help` lists what can be made.
GO ?= go
# Everything is compiled as releases are, so that what is built once serves everywhere. The race detector needs cgo; what
# is tested with it is compiled as by `go test -race`.
GIVEN := $(GOFLAGS)
export CGO_ENABLED := 0
export GOFLAGS := $(strip $(GIVEN) -trimpath)
RACE := env CGO_ENABLED=1 GOFLAGS='$(GIVEN)' $(GO) test
PROGRAMS := ingest query collect publish redrive audit watch
# promql is a module of its own: Prometheus's engine brings many others.
PROMQL := cmd/promql
# So is rls: gRPC and Envoy's messages bring as many.
RLS := cmd/rls
# So is the comparison with Postgres in the benchmarks: its driver is no dependency of Tallyroll.
MODULES := . $(PROMQL) $(RLS) tests/bench/pgcount
# And what makes releases and checks what is in deploy/.
TOOLS := deploy/tools
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help run test test-all tested test-machine quick bench-smoke build release lint vet staticcheck prose govulncheck fuzz faults servers drills soak simulate planted simulate-limits bench microbench proxies redis nginx caddy chromium prometheus alertmanager postgres node clean

help: ## list what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

run: ## everything in one process on loopback, with a small load; Ctrl-C ends it; flags in ARGS, as in ARGS='--no-load --dir data/dev' (ARGS=--help)
	@$(GO) build -o bin/dev ./cmd/dev
	@exec bin/dev $(ARGS)

# The programs under test are built once for all packages (alone, `go test` builds its own), as `make run` builds them.
# The tests of internal and cmd have the race detector, except those that mostly compute: these have it in `make
# test-all`. The tests of tests start programs: they do without, and -count=1 runs them though nothing of theirs has
# changed, as the cache does not know the programs. One `go test` runs after the other, with as many packages at a time as
# there are processors and four tests of each per processor: more at once make each server slow (CONTRIBUTING.md).
test test-machine bench-smoke: export TALLYROLL_BIN := $(CURDIR)/bin/test
test: export GORACE := atexit_sleep_ms=0 $(GORACE)
PROCESSORS := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
TESTED := -vet=off -timeout 60m -p $(PROCESSORS) -parallel $(shell echo $$((4 * $(PROCESSORS))))
COMPUTING = $(if $(TEST_ALL),,internal/query/answer internal/consume)
OUTSIDE := $(GO) test $(TESTED) -count=1
BUILD_INTO := -v -buildvcs=false -ldflags=-w -o $(CURDIR)/bin/test/
BUILD_TESTED := $(GO) build $(BUILD_INTO) $(PROGRAMS:%=./cmd/%) ./cmd/dev github.com/nats-io/nats-server/v2 \
  $(foreach module,$(PROMQL) $(RLS),-- $(GO) build -C $(module) $(BUILD_INTO) .)
RUNNER := $(GO) run ./tests/runner

test: redis ## every promise once, with the race detector, on real NATS and Redis servers; installs redis-server if there is none
	@echo "make test takes some 5 minutes on two cores, and 5 more if nothing is built yet"
	@$(RUNNER) -- $(BUILD_TESTED) \
	  -- $(OUTSIDE) -json ./tests/faults ./tests/e2e $(COMPUTING:%=./%) ./tests/docs ./tests/stack ./tests/clients ./tests/drills ./tests/runner ./tests/prose ./tests/layout \
	  -- $(RACE) -race $(TESTED) -json $$($(GO) list ./internal/... ./cmd/... | grep -vE '/($(subst $() ,|,$(COMPUTING)))$$') \
	  $(foreach module,$(PROMQL) $(RLS),-- $(RACE) -C $(module) -race $(TESTED) -count=1 -json ./...)
	@command -v python3 >/dev/null || echo "SKIPPED: the examples in Python (examples/python, docs/queries.md): python3 is missing"
	@sh tests/install.sh -n node
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || echo "SKIPPED: the example in examples/postgres: PostgreSQL is missing: make postgres installs it"
	@echo "make test-all runs all rounds of all tests, and those that need more of the machine: Docker, Chromium, nginx, Caddy, Prometheus, Alertmanager"

test-all: export TEST_ALL := 1
test-all: test test-machine bench-smoke ## all tests and all of their rounds, those that need more of the machine, and the harness of the benchmarks

tested:
	@$(RUNNER) -- $(BUILD_TESTED)

# Chromium's tests run after the others: it drops all its connections if a network comes or goes on the machine, and the
# image tests make networks. Four at once take less time than eight, with which tabs wait for a processor for seconds.
test-machine: export TEST_ALL := 1
test-machine: redis tested ## the tests of deploy/ and the page, which need Docker, Chromium, nginx, Caddy, Prometheus and Alertmanager; prints what it skips
	$(OUTSIDE) ./tests/deploy
	$(OUTSIDE) -parallel 4 ./tests/page
	cd $(TOOLS) && $(OUTSIDE) ./...
	@git describe --tags --match 'v[0-9]*' >/dev/null 2>&1 || echo "SKIPPED: the comparison of the OpenAPI documents with those of the last release (deploy/tools/openapi): this clone has no tag of a release (git fetch --tags, if there are releases)"
	@command -v dpkg >/dev/null && [ "$$(id -u)" = 0 ] || echo "SKIPPED: installing the Debian package (deploy/tools/release), which needs dpkg and root"
	@command -v systemd-analyze >/dev/null || echo "SKIPPED: the check of deploy/systemd: systemd-analyze is missing"
	@docker info >/dev/null 2>&1 || echo "SKIPPED: the image tests of tests/deploy: a Docker engine is missing"
	@for program in nginx caddy chromium prometheus alertmanager; do sh tests/install.sh -n $$program; done

quick: ## for every day: the tests without servers and programs, from the cache if nothing has changed
	@echo "SKIPPED: what needs servers or programs, promql and rls: make test"
	$(GO) test -vet=off -short ./internal/... ./cmd/...

bench-smoke: redis tested ## the benchmark's harness: each candidate counts and answers right
	$(OUTSIDE) ./tests/bench
	@sh tests/install.sh -n postgres

build: ## the programs, static, into bin/
	@for p in $(PROGRAMS); do $(GO) build -ldflags "-s -w -X tallyroll/internal/platform/release.version=$(VERSION)" -o bin/$$p ./cmd/$$p || exit 1; done
	@for module in $(PROMQL) $(RLS); do $(GO) build -C $$module -ldflags "-s -w -X tallyroll/internal/platform/release.version=$(VERSION)" -o $(CURDIR)/bin/ . || exit 1; done
	@ls -l bin

release: ## static programs, archives, Debian packages, the Helm chart, SBOM and checksums into bin/release: VERSION=v0.1.0, or the tag; ARGS=-again makes it twice and compares
	cd $(TOOLS) && $(GO) run ./release -root ../.. $(if $(filter command environment,$(firstword $(origin VERSION))),-version '$(VERSION)') $(ARGS)

lint: vet staticcheck prose govulncheck ## vet, staticcheck, prose and govulncheck

vet: ## go vet and gofmt
	@for module in $(MODULES) $(TOOLS); do $(GO) vet -C $$module ./... || exit 1; done
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "run gofmt -w on these files"; exit 1; }

staticcheck: ## staticcheck, from its module
	@for module in $(MODULES); do (cd $$module && $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...) || exit 1; done

prose: ## the words of docs, comments, errors and logs, by Vale from its module, and the columns of lines: PROSE='internal/consume/fleet README.md' for a part
	@$(GO) run ./tests/prose $(PROSE)

govulncheck: ## known vulnerabilities; needs the vulnerability database
	$(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...
	for module in $(PROMQL) $(RLS); do (cd $$module && $(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...) || exit 1; done

fuzz: ## every fuzz target for FUZZTIME (default 30s) each
	@for f in $$(grep -rlE '^func Fuzz' --include='*_test.go' .); do \
	  for t in $$(grep -oE '^func Fuzz[A-Za-z0-9]+' $$f | cut -d' ' -f2); do \
	    echo "== $$t in $$(dirname $$f)"; $(GO) test -run '^$$' -fuzz "^$$t$$" -fuzztime $(or $(FUZZTIME),30s) $$(dirname $$f) || exit 1; \
	  done; done

faults: redis ## the fault tests of tests/faults, many rounds of each, and those of watch
	$(RACE) -race -count=2 -timeout 30m ./internal/watch
	FAULTS=full $(GO) test -v -count=1 -timeout 60m -parallel 3 ./tests/faults # one of them mostly waits for a target that is away for ten minutes

servers: redis tested ## the core of the suite on Redis 7 and 8, Valkey 8 and 9, NATS 2.10 to 2.15, into docs/servers.md: SERVERS="'Valkey 9.1' -short" for one, briefly
	TALLYROLL_BIN=$(CURDIR)/bin/test $(GO) run ./tests/servers $(SERVERS)

drills: redis ## what operators do after a loss (docs/disasters.md), under load and timed; DRILLS_FROM=v0.1.0 upgrades from there and goes back
	@DRILLS=full $(GO) test -v -count=1 -timeout 30m ./tests/drills
	@test -n "$$DRILLS_FROM" || echo "SKIPPED: the upgrade and downgrade between two versions: DRILLS_FROM=COMMIT names the other one (make drills DRILLS_FROM=v0.1.0)"

soak: redis ## all faults mixed for SOAK (default 30m)
	SOAK=$(or $(SOAK),30m) $(GO) test -v -count=1 -timeout 0 -run '^TestSoak$$' ./tests/faults

simulate: ## the stories of schedules that went wrong once, and N random fault schedules, against the production code, on all processors (N=100000)
	$(GO) test ./internal/consume -run '^(TestSimulation|TestStories)$$' -simulation.schedules=$(or $(N),100000) -timeout 0 -v

planted: redis ## plant known bugs in the production code, one at a time: the simulation finds each within N schedules (N=40000), and tests find those of limits
	$(GO) test ./internal/consume -run '^TestPlantedBugs$$' -simulation.planted=$(or $(N),40000) -timeout 0 -v
	$(GO) test ./internal/limit -run '^TestPlantedBugsOf' -trips.planted -timeout 0 -v

simulate-limits: redis ## N random schedules of takes against models of the limits' policies, and with trouble (N=100000)
	TEST_ALL=1 $(GO) test ./internal/limit -run '^(TestPoliciesAgainstModels|TestBound|TestPlacesBound|TestShadowAgrees|TestSettlementsAgainstModel)$$' -rapid.checks=$(or $(N),100000) -rapid.nofailfile -timeout 0 -count=1 -v

bench: redis ## Tallyroll compared with the articles' techniques, into docs/benchmarks-tables.md: RUNS=5 SCALE=1 ONLY=pattern (an hour and a half on two cores)
	BENCH=1 RUNS=$(RUNS) SCALE=$(SCALE) ONLY='$(ONLY)' OUT=$(CURDIR)/docs/benchmarks-tables.md FLEET=$(FLEET) $(GO) test -v -count=1 -timeout 0 -run '^TestBench$$' ./tests/bench

microbench: redis ## benchmarks of single parts, for benchstat: COUNT=10 times each; BENCH=Drain is the whole worker
	@$(GO) test -run '^$$' -bench '$(or $(BENCH),.)' -skip '$(if $(BENCH),^$$,Drain|IdleStreams)' -benchmem -count $(or $(COUNT),10) -timeout 0 ./internal/hit ./internal/consume ./internal/worker ./internal/window ./internal/window/commit ./internal/window/read ./internal/limit

proxies: redis nginx caddy ## nginx and Caddy as in deploy/examples, each under load for LOAD (30s)
	LOAD=$(or $(LOAD),30s) $(GO) test -v -count=1 -run '^TestProxy' ./tests/deploy

nginx: ## install nginx, with which a test tries its example in deploy/examples
caddy: ## install Caddy, with which a test tries its example in deploy/examples
chromium: ## install Chromium, for the tests of the page
prometheus: ## install prometheus and promtool, for the tests of metrics, alerts and scraping
alertmanager: ## install Alertmanager and amtool, for the check of its example
postgres: ## install PostgreSQL, for the comparison in the benchmarks
node: ## install Node, with which tests run the examples in TypeScript

# Each prints what it installs before it does; none does anything if the program is there.
redis nginx caddy chromium prometheus alertmanager postgres node:
	@sh tests/install.sh $@

clean: ## remove what was built
	rm -rf bin
