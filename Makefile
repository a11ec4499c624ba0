# The front door; meson.build has the build itself. scripts/setup installs what a target needs.
PREFIX ?= /usr/local
DESTDIR ?=
SIM_SECONDS ?= 30
FUZZ_RUNS ?=
BENCH_ARGS ?=
CHAOS_ARGS ?= --rounds 40
RUN_BENCH_ARGS ?=

SUBPROJECTS ?=
TORCHRUN ?=
NEWEST ?=
TORCH ?= $(if $(NEWEST),newest)

export FUZZ_RUNS SUBPROJECTS TORCHRUN TORCH

all: ## build/muster and build/libmuster.so
	@scripts/setup build
	@scripts/build build product

demo: all ## an elastic job that loses a worker and a node, and goes on
	@scripts/demo build/muster

test: ## unit, simulator, corpus and command-line tests, plain and under ASan + UBSan
	@scripts/setup test
	@scripts/run-tests

interop: ## our programs and library with real PyTorch, 1.13 and 2.13, and real etcd; TORCH=2.9.1 or NEWEST=1: only with that PyTorch
	@scripts/setup interop
	@scripts/run-tests interop

sim: ## the simulators, each with fresh seeds for SIM_SECONDS
	@scripts/setup test
	@scripts/build build
	@build/muster-sim-store --seconds $(SIM_SECONDS)
	@build/muster-sim --time $(SIM_SECONDS)
	@build/muster-sim-job --time $(SIM_SECONDS)
	@build/muster-sim-etcd --time $(SIM_SECONDS)
	@build/muster-sim-fold --time $(SIM_SECONDS)
	@build/muster-sim-fold-job --time $(SIM_SECONDS)

sim-mutants: ## bugs put in on purpose, each found by a simulator or a unit test
	@scripts/setup test
	@scripts/sim-mutants
	@scripts/sim-mutants-fold
	@scripts/sim-mutants-etcd
	@scripts/sim-mutants-handler
	@scripts/sim-mutants-engine

chaos: ## real jobs that lose workers, agents and keepers at random; CHAOS_ARGS='--rounds N --seed N'
	@scripts/setup test
	@scripts/build build
	@tests/chaos/chaos $(CHAOS_ARGS)

fuzz: ## libFuzzer over every reader of outside bytes, FUZZ_RUNS inputs each
	@scripts/setup fuzz
	@scripts/fuzz

bench: ## muster, the stock servers and launcher that are installed and the floor, side by side
	@scripts/setup bench
	@scripts/build build
	@bench/report $(BENCH_ARGS)
	@bench/run-report $(RUN_BENCH_ARGS)
	@bench/engine-report $(ENGINE_BENCH_ARGS)
	@bench/etcd-report $(ETCD_BENCH_ARGS)

lint: ## format, include rules, clang's warnings, cppcheck, clang-tidy
	@scripts/setup lint
	@scripts/lint

format: ## let clang-format rewrite the sources
	@scripts/setup lint
	@scripts/lint --fix

valgrind: ## the unit tests under valgrind
	@scripts/setup valgrind
	@scripts/build build
	@meson test -C build --no-rebuild --suite unit --timeout-multiplier 10 \
	    --wrap 'valgrind -q --leak-check=full --error-exitcode=99'

install: all ## into $(DESTDIR)$(PREFIX); TORCHRUN=1: with a link named torchrun
	@meson configure build -Dprefix=$(abspath $(PREFIX))
	@scripts/build build product
	@DESTDIR=$(DESTDIR) scripts/install add $(abspath $(PREFIX))

uninstall: ## takes away what install put there
	@[ -e build/build.ninja ] || { echo 'uninstall: build/ is not configured; run make first' >&2; exit 1; }
	@meson configure build -Dprefix=$(abspath $(PREFIX))
	@DESTDIR=$(DESTDIR) scripts/install remove $(abspath $(PREFIX))

clean: ## all builds; the PyTorch that interop installed stays
	@rm -rf build-asan build-clang build-fuzz
	@[ ! -d build ] || find build -mindepth 1 -maxdepth 1 ! -name 'venv-*' -exec rm -rf {} +

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1:\t/p' Makefile | expand -t 14

.PHONY: all demo test interop sim sim-mutants chaos fuzz bench lint format valgrind install uninstall clean help
