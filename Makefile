# Tallyroll. `make` or `make help` lists what can be made.
GO ?= go
# Everything is compiled as releases are, so that what is built once serves everywhere. The race detector needs cgo, and
# compiles everything a second time: make race.
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
.PHONY: help run test race test-all tested test-machine quick bench-smoke build release lint vet staticcheck prose govulncheck fuzz faults servers drills soak simulate planted simulate-limits bench microbench proxies redis nginx caddy chromium prometheus alertmanager postgres node clean

##@ Every day
run: ## everything in one process on loopback, with a small load; Ctrl-C ends it
#> ARGS='--no-load --dir data/dev' are its flags; ARGS=--help lists them
	@$(GO) build -o bin/dev ./cmd/dev
	@exec bin/dev $(ARGS)

# The programs under test are built once for all packages (alone, `go test` builds its own), as `make run` builds them.
# One `go test` then compiles and runs the tests of all packages, so that tests that wait overlap with compiling: those that
# wait longest come first. More at a time make each server slow (CONTRIBUTING.md). What has not changed comes from the
# cache, except tests that start programs, which the cache does not know: these read TALLYROLL_RUN (tests/stack/build.go).
test race test-machine bench-smoke: export TALLYROLL_BIN := $(CURDIR)/bin/test
test race test-machine bench-smoke: export TALLYROLL_RUN := $(shell date +%s)
race: export GORACE := atexit_sleep_ms=0 $(GORACE)
race: export TEST_ALL := # make test-all has run all rounds without it
PROCESSORS := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
TESTED := -vet=off -ldflags=-w -timeout 60m -p $(shell echo $$((2 * $(PROCESSORS)))) -parallel $(shell echo $$((4 * $(PROCESSORS))))
OUTSIDE := $(GO) test -vet=off -timeout 60m -parallel $(shell echo $$((4 * $(PROCESSORS)))) -count=1
FIRST := $(addprefix ./,tests/faults tests/e2e internal/consume internal/worker $(addprefix tests/,docs clients drills stack runner layout))
BUILD_INTO := -v -buildvcs=false -ldflags=-w -o $(CURDIR)/bin/test/
BUILD_TESTED := $(GO) build $(BUILD_INTO) $(PROGRAMS:%=./cmd/%) ./cmd/dev github.com/nats-io/nats-server/v2 \
  $(foreach module,$(PROMQL) $(RLS),-- $(GO) build -C $(module) $(BUILD_INTO) .)
RUNNER := $(GO) run ./tests/runner

test: redis ## every promise once, on real servers; installs redis-server if it is missing
	@echo "make test takes some 2 minutes on two cores, and 4 more if nothing is built yet"
	@$(RUNNER) -- $(BUILD_TESTED) -- $(GO) test $(TESTED) -json $(FIRST) ./internal/... ./cmd/... \
	  $(foreach module,$(PROMQL) $(RLS),-- $(GO) test -C $(module) $(TESTED) -json ./...)
	@command -v python3 >/dev/null || echo "SKIPPED: the examples in Python (examples/python, docs/queries.md): python3 is missing"
	@sh tests/install.sh -n node
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || echo "SKIPPED: the example in examples/postgres: PostgreSQL is missing: make postgres installs it"
	@echo "make test-all runs all rounds of all tests, and those that need more of the machine: Docker, Chromium, nginx, Caddy, Prometheus, Alertmanager"

quick: ## the tests that need no servers, from the cache if nothing has changed
	@echo "SKIPPED: what needs servers or programs, promql and rls: make test"
	$(GO) test -vet=off -short ./internal/... ./cmd/...

build: ## the programs, static, into bin/
	@for p in $(PROGRAMS); do $(GO) build -ldflags "-s -w -X tallyroll/internal/platform/release.version=$(VERSION)" -o bin/$$p ./cmd/$$p || exit 1; done
	@for module in $(PROMQL) $(RLS); do $(GO) build -C $$module -ldflags "-s -w -X tallyroll/internal/platform/release.version=$(VERSION)" -o $(CURDIR)/bin/ . || exit 1; done
	@ls -l bin

clean: ## remove what was built
	rm -rf bin

help: ## list what can be made
	@awk -F ':.*## ' '/^##@/ {print (n++ ? "\n" : "") substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2} \
	  /^#> / {printf "%23s%s\n", "", substr($$0, 4)}' $(MAKEFILE_LIST)

##@ Before you propose a change
test-all: export TEST_ALL := 1
test-all: test race test-machine bench-smoke ## all tests with all of their rounds, and what needs more of the machine

race: redis ## the tests of internal and cmd, with the race detector
	@$(RUNNER) -- $(BUILD_TESTED) -- $(RACE) -race $(TESTED) -json ./internal/... ./cmd/... \
	  $(foreach module,$(PROMQL) $(RLS),-- $(RACE) -C $(module) -race $(TESTED) -json ./...)

tested:
	@$(RUNNER) -- $(BUILD_TESTED)

# Chromium's tests run after the others: it drops all its connections if a network comes or goes on the machine, and the
# image tests make networks. Four at once take less time than eight, with which tabs wait for a processor for seconds.
test-machine: export TEST_ALL := 1
test-machine: redis tested ## the tests of deploy/ and the page; prints what it skips
#> need Docker, Chromium, nginx, Caddy, Prometheus and Alertmanager
	$(OUTSIDE) ./tests/deploy
	$(OUTSIDE) -parallel 4 ./tests/page
	cd $(TOOLS) && $(OUTSIDE) ./...
	@git describe --tags --match 'v[0-9]*' >/dev/null 2>&1 || echo "SKIPPED: the comparison of the OpenAPI documents with those of the last release (deploy/tools/openapi): this clone has no tag of a release (git fetch --tags, if there are releases)"
	@command -v dpkg >/dev/null && [ "$$(id -u)" = 0 ] || echo "SKIPPED: installing the Debian package (deploy/tools/release), which needs dpkg and root"
	@command -v systemd-analyze >/dev/null || echo "SKIPPED: the check of deploy/systemd: systemd-analyze is missing"
	@docker info >/dev/null 2>&1 || echo "SKIPPED: the image tests of tests/deploy: a Docker engine is missing"
	@for program in nginx caddy chromium prometheus alertmanager; do sh tests/install.sh -n $$program; done

##@ Words and code
lint: vet staticcheck prose govulncheck ## vet, staticcheck, prose and govulncheck

vet: ## go vet and gofmt
	@for module in $(MODULES) $(TOOLS); do $(GO) vet -C $$module ./... || exit 1; done
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "run gofmt -w on these files"; exit 1; }

staticcheck: ## staticcheck, from its module
	@for module in $(MODULES); do (cd $$module && $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...) || exit 1; done

prose: ## the words of docs, comments, errors and logs, and the columns of lines
#> PROSE='internal/consume/fleet README.md' for a part
	@$(GO) test ./tests/prose
	@$(GO) run ./tests/prose $(PROSE)

govulncheck: ## known vulnerabilities; needs the vulnerability database
	$(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...
	for module in $(PROMQL) $(RLS); do (cd $$module && $(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...) || exit 1; done

##@ Proofs
fuzz: ## every fuzz target for FUZZTIME (30s) each
	@for f in $$(grep -rlE '^func Fuzz' --include='*_test.go' .); do \
	  for t in $$(grep -oE '^func Fuzz[A-Za-z0-9]+' $$f | cut -d' ' -f2); do \
	    echo "== $$t in $$(dirname $$f)"; $(GO) test -run '^$$' -fuzz "^$$t$$" -fuzztime $(or $(FUZZTIME),30s) $$(dirname $$f) || exit 1; \
	  done; done

faults: redis ## real servers are broken, many rounds of each fault
	$(RACE) -race -count=2 -timeout 30m ./internal/watch
	FAULTS=full $(GO) test -v -count=1 -timeout 60m -parallel 3 ./tests/faults # one of them mostly waits for a target that is away for ten minutes

servers: redis tested ## the core of the suite on other servers, into docs/servers.md
#> SERVERS="'Valkey 9.1' -short" for one, briefly
	TALLYROLL_BIN=$(CURDIR)/bin/test $(GO) run ./tests/servers $(SERVERS)

drills: redis ## what operators do after a loss (docs/disasters.md), under load and timed
#> DRILLS_FROM=v0.1.0 upgrades from there and goes back
	@DRILLS=full $(GO) test -v -count=1 -timeout 30m ./tests/drills
	@test -n "$$DRILLS_FROM" || echo "SKIPPED: the upgrade and downgrade between two versions: DRILLS_FROM=COMMIT names the other one (make drills DRILLS_FROM=v0.1.0)"

soak: redis ## all faults mixed for SOAK (30m)
	SOAK=$(or $(SOAK),30m) $(GO) test -v -count=1 -timeout 0 -run '^TestSoak$$' ./tests/faults

simulate: ## N random schedules of faults, and all that once went wrong (N=100000)
	$(GO) test ./internal/consume -run '^(TestSimulation|TestStories)$$' -simulation.schedules=$(or $(N),100000) -timeout 0 -v

planted: redis ## known bugs, planted one at a time: the simulation finds each (N=40000)
	$(GO) test ./internal/consume -run '^TestPlantedBugs$$' -simulation.planted=$(or $(N),40000) -timeout 0 -v
	$(GO) test ./internal/limit -run '^TestPlantedBugsOf' -trips.planted -timeout 0 -v

simulate-limits: redis ## N random schedules of takes against models of the policies (N=100000)
	TEST_ALL=1 $(GO) test ./internal/limit -run '^(TestPoliciesAgainstModels|TestBound|TestPlacesBound|TestShadowAgrees|TestSettlementsAgainstModel|TestPeriodsAgainstModel)$$' -rapid.checks=$(or $(N),100000) -rapid.nofailfile -timeout 0 -count=1 -v

##@ Benchmarks
bench: redis ## compared with the articles' techniques, into docs/benchmarks-tables.md
#> RUNS=5 SCALE=1 ONLY=pattern; an hour and a half on two cores
	BENCH=1 RUNS=$(RUNS) SCALE=$(SCALE) ONLY='$(ONLY)' OUT=$(CURDIR)/docs/benchmarks-tables.md FLEET=$(FLEET) $(GO) test -v -count=1 -timeout 0 -run '^TestBench$$' ./tests/bench

microbench: redis ## benchmarks of single parts, for benchstat
#> COUNT=10 times each; BENCH=Drain is the whole worker
	@$(GO) test -run '^$$' -bench '$(or $(BENCH),.)' -skip '$(if $(BENCH),^$$,Drain|IdleStreams)' -benchmem -count $(or $(COUNT),10) -timeout 0 ./internal/hit ./internal/consume ./internal/worker ./internal/window ./internal/window/commit ./internal/window/read ./internal/limit

bench-smoke: redis tested ## each candidate of the benchmarks counts and answers right
	$(OUTSIDE) ./tests/bench
	@sh tests/install.sh -n postgres

proxies: redis nginx caddy ## nginx and Caddy as in deploy/examples, each under load for LOAD (30s)
	LOAD=$(or $(LOAD),30s) $(GO) test -v -count=1 -run '^TestProxy' ./tests/deploy

##@ Release
release: ## archives, packages, the Helm chart, SBOM and checksums, into bin/release
#> VERSION=v0.1.0, or the tag; ARGS=-again makes it twice and compares
	cd $(TOOLS) && $(GO) run ./release -root ../.. $(if $(filter command environment,$(firstword $(origin VERSION))),-version '$(VERSION)') $(ARGS)

##@ Install
nginx: ## install nginx, with which a test tries its example in deploy/examples
caddy: ## install Caddy, with which a test tries its example in deploy/examples
chromium: ## install Chromium, for the tests of the page
prometheus: ## install prometheus and promtool, for tests of metrics, alerts and scraping
alertmanager: ## install Alertmanager and amtool, for the check of its example
postgres: ## install PostgreSQL, for the comparison in the benchmarks
node: ## install Node, with which tests run the examples in TypeScript

# Each prints what it installs before it does; none does anything if the program is there.
redis nginx caddy chromium prometheus alertmanager postgres node:
	@sh tests/install.sh $@
