# `make help` lists everything. Needs Python 3.11 or newer; `.venv` is made from requirements.lock on first use.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
PYTEST_ARGS ?=
# More than two cores need: some tests wait, for a lease's end or a scheduler.
TEST_WORKERS ?= 6
LOCK_COMMAND := $(BIN)/uv --quiet pip compile pyproject.toml .ci/tools.in --extra airflow --extra spark --extra demo --extra service --extra avro --extra delta --extra files --extra kafka --extra mariadb \
	--group dev --group docs --universal --python-version 3.11 --fork-strategy fewest --generate-hashes --no-annotate --no-header

# Tests and the demo start hundreds of processes; each would compile all of the package anew.
unexport PYTHONDONTWRITEBYTECODE

export DEMO_TRANSACTIONS ?= 50000
export DEMO_CHANNELS ?= 4
export DEMO_SCALE ?= 1
export DEMO_TARGET ?= postgres
export DEMO_CONSISTENCY ?= channel
export DEMO_EPOCH_PROTOCOL ?= auto
export DEMO_KEEP ?= 0

.PHONY: help
help: ## List the targets
	@if [ -t 1 ]; then bold='\033[1m' plain='\033[0m'; else bold= plain=; fi; \
	awk -F ':.*## ' -v bold="$$bold" -v plain="$$plain" \
		'/^[a-z-]+:.*## / { printf "  %s%-10s%s %s\n", bold, $$1, plain, $$2 }' $(MAKEFILE_LIST)

.PHONY: install
install: $(INSTALLED) ## Make .venv with everything pinned (the other targets do it by themselves)

$(INSTALLED): requirements.lock pyproject.toml .ci/install.py
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.11 or newer, or make PYTHON=…" >&2; exit 1; }
	@$(PYTHON) .ci/install.py

.PHONY: demo
demo: java $(INSTALLED) ## A pgbench history from one PostgreSQL to another, in parallel, compared (DEMO_TARGET, _TRANSACTIONS, _CHANNELS, _SCALE, _KEEP=1)
	@exec $(BIN)/python -m airflow_parallel_apply.demo

.PHONY: demo-stop
demo-stop: ## Stop what `make demo DEMO_KEEP=1` left running
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m airflow_parallel_apply.demo stop; else echo "There is no .venv, so no demo runs."; fi

.PHONY: test
test: java mariadb $(INSTALLED) ## The test suite, as continuous integration runs it (PYTEST_ARGS="-k …", TEST_WORKERS)
	@$(BIN)/python -m pytest tests -m "not long" --numprocesses $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

.PHONY: test-long
test-long: java mariadb $(INSTALLED) ## What `make test` leaves out: what takes a minute, further variants, properties with all their examples
	@HYPOTHESIS_THOROUGH=1 $(BIN)/python -m pytest tests -m "long or hypothesis" --numprocesses 4 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

.PHONY: hunt
hunt: $(INSTALLED) ## Random histories, each run judged by one rule: green means equal (HUNT_SECONDS, HUNT_SEED, HUNT_TRIAL, HUNT_STEPS)
	@exec $(BIN)/python -m tests.hunt

.PHONY: bench
bench: java $(INSTALLED) ## Ratios against PostgreSQL's own replication, from one run on one history
	@$(BIN)/python -m benchmarks

.PHONY: docs
docs: $(INSTALLED) ## Build the documentation site into site/, strictly: a link that leads nowhere is an error
	@$(BIN)/zensical build --clean

.PHONY: check
check: $(INSTALLED) ## Lint, format, types, import layers, the lock, the documentation's links
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/hadolint docker/Dockerfile
	@$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker/compose.yaml
	@$(MAKE) lock-check
	@$(MAKE) docs

.PHONY: proto
proto: $(INSTALLED) ## Generate the queue service's messages from queue.proto
	@$(BIN)/python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. airflow_parallel_apply/queue/service/queue.proto

.PHONY: lock
lock: $(INSTALLED) ## Resolve requirements.lock anew from pyproject.toml (UPGRADE=1: to the newest versions)
	@$(LOCK_COMMAND) $(if $(UPGRADE),--upgrade) --output-file requirements.lock
	@$(MAKE) lock-check

# Without the network: every pin has a hash, no address is named, and pyproject's own pins are the lock's.
.PHONY: lock-check
lock-check: $(INSTALLED)
	@$(BIN)/python -m pytest --quiet --no-header tests/unit/test_pins.py

.PHONY: clean
clean: ## Remove .venv, caches and what the demo left
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m airflow_parallel_apply.demo stop || true; fi
	@rm -rf .venv .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .hunt .import_linter_cache .cache build dist site spark-warehouse artifacts
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: java
java:
	@.ci/java

.PHONY: mariadb
mariadb:
	@.ci/mariadb
