GO = go
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2

# The product, and the benchmarks against its peers.
MODULES = . cmd/bench

# How long to run each fuzz target: a number of inputs, since go test may report
# the end of a time as a failure.
FUZZTIME = 200000x

# More flags for go test, like -count=1.
TESTFLAGS =

.PHONY: build run test race lint fuzz bench crash mutants check clean

# The binary, as bin/gabion.
build:
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/gabion ./cmd/gabion

# A server on ./gabion-data at 127.0.0.1:6380.
run:
	$(GO) run ./cmd/gabion serve

# All tests. Those that need redis-cli, or Node.js and npm, skip without them,
# unless CI is set.
test:
	for m in $(MODULES); do $(GO) test -C $$m $(TESTFLAGS) ./... || exit; done

# The tests under the race detector, without the long ones. Needs a C compiler.
race:
	$(GO) test -race -short -timeout 45m $(TESTFLAGS) ./...

# Formatting, go.mod, vet and staticcheck.
lint:
	test -z "$$(gofmt -l . | tee /dev/stderr)"
	for m in $(MODULES); do (cd $$m && $(GO) mod tidy -diff && $(GO) vet ./... && $(GO) run $(STATICCHECK) ./...) || exit; done

# Every fuzz target for FUZZTIME.
fuzz:
	@set -e; for p in $$($(GO) list ./...); do for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz'); do echo "$$f in $$p"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$p; done; done

# Gabion and its peers side by side, into ./bench-results. BENCHFLAGS=--help tells
# how to measure a part.
bench:
	CGO_ENABLED=0 $(GO) build -C cmd/bench -o ../../bin/bench . && bin/bench $(BENCHFLAGS)

# How long each test of crash goes on that could do so for ever.
CRASHTIME = 10m

# The tests that cut the power, kill the server or fill the store, at length.
crash:
	$(GO) test -count=1 -v -timeout 24h -run 'PowerCut|Kill|OneShotKeysLeave' ./engine ./cmd/gabion -crash.for $(CRASHTIME)

# Bugs put in on purpose, each of which a test has to catch.
mutants:
	$(GO) test -count=1 -timeout 30m -v -run '^TestMutants$$' ./engine -mutants

# What has to pass before a commit is published.
check: lint build test race

clean:
	rm -rf bin
