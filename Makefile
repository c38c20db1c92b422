# Tallyroll. `make` or `make help` lists what can be made.
GO ?= go
PROGRAMS := ingest query publish
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help run test build lint vet staticcheck govulncheck fuzz faults soak simulate bench microbench redis clean

help: ## list what can be made
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

run: ## everything in one process on loopback, with a small load; Ctrl-C ends it; flags in ARGS, as in ARGS='--no-load --dir data/dev' (ARGS=--help)
	@$(GO) build -o bin/dev ./cmd/dev
	@exec bin/dev $(ARGS)

test: redis ## all tests, with the race detector, on real NATS and Redis servers; installs redis-server if there is none
	$(GO) test -race -count=1 -timeout 15m ./... # the cache does not know the programs that the tests build
	@docker info >/dev/null 2>&1 || echo "SKIPPED: the image tests of tests/deploy, for want of a Docker engine"

build: ## the programs, static, into bin/
	@for p in $(PROGRAMS); do CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w -X tallyroll/internal/boot.version=$(VERSION)" -o bin/$$p ./cmd/$$p || exit 1; done
	@ls -l bin

lint: vet staticcheck govulncheck ## vet, staticcheck and govulncheck

vet: ## go vet and gofmt
	$(GO) vet ./...
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "run gofmt -w on these files"; exit 1; }

staticcheck: ## staticcheck, from its module
	$(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...

govulncheck: ## known vulnerabilities; needs the vulnerability database
	$(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...

fuzz: ## every fuzz target for FUZZTIME (default 30s) each
	@for f in $$(grep -rlE '^func Fuzz' --include='*_test.go' .); do \
	  for t in $$(grep -oE '^func Fuzz[A-Za-z0-9]+' $$f | cut -d' ' -f2); do \
	    echo "== $$t in $$(dirname $$f)"; $(GO) test -run '^$$' -fuzz "^$$t$$" -fuzztime $(or $(FUZZTIME),30s) $$(dirname $$f) || exit 1; \
	  done; done

faults: redis ## the fault tests of tests/faults, many rounds of each
	FAULTS=full $(GO) test -v -count=1 -timeout 60m ./tests/faults

soak: redis ## all faults mixed for SOAK (default 30m)
	SOAK=$(or $(SOAK),30m) $(GO) test -v -count=1 -timeout 0 -run '^TestSoak$$' ./tests/faults

simulate: ## N random fault schedules against the production code (N=100000)
	$(GO) test ./internal/consume -run '^TestSimulation$$' -rapid.checks=$(or $(N),100000) -rapid.nofailfile -timeout 0 -v

bench: redis ## Tallyroll beside the articles' techniques, into docs/benchmarks.md: RUNS=5 SCALE=1 ONLY=pattern (an hour on two cores)
	BENCH=1 RUNS=$(RUNS) SCALE=$(SCALE) ONLY='$(ONLY)' OUT=$(CURDIR)/docs/benchmarks.md FLEET=$(FLEET) $(GO) test -v -count=1 -timeout 0 -run '^TestBench$$' ./tests/bench

microbench: redis ## benchmarks of single parts, for benchstat: COUNT=10 times each; BENCH=Drain is the whole worker
	@$(GO) test -run '^$$' -bench '$(or $(BENCH),.)' -skip '$(if $(BENCH),^$$,Drain)' -benchmem -count $(or $(COUNT),10) -timeout 0 ./internal/consume ./internal/window

# The tests need a real redis-server; make run can do without one.
redis:
	@command -v redis-server >/dev/null || sh tests/install-redis.sh

clean: ## remove what was built
	rm -rf bin
