# Everything runs in a virtual environment in .venv, which the first target makes; nothing needs activating.
#
#   make demo                          Python 3.11 or newer as python3
#   make demo PYTHON=python3.12        another Python
#   make demo TORCH="torch==2.13.0 --index-url URL"    another build of PyTorch, such as one for the CPU only

PYTHON ?= python3
TORCH ?= torch==2.13.0
ARGS ?=
# Where `make bench` writes; OUT=benchmarks/results renews what is committed.
OUT ?= build/bench
# Where other engines are, and what a race against them renews.
PEERS ?= peers
RACE ?= benchmarks/results/peers/race.json
AGENT := --scale 0.1 --turns 6 --repeats 2
BRANCH := --scale 0.125 --branches 4 --depth 2 --repeats 2
COUNTS := --cache-only --scale 1
CHAT := --cache-only --scale 1 --sessions 300

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/installed

.DEFAULT_GOAL := help
.PHONY: help demo serve test clients check bench bench-peers format docs clean

help:  ## what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  ARGS="..." is passed on, as in: make demo ARGS="--tokens 6000"'

demo: $(STAMP)  ## watch a ten-turn agent session, with the prefix cache and without
	@$(BIN)/mainstem demo $(ARGS)

serve: $(STAMP)  ## serve the embedded model on http://127.0.0.1:8000/v1
	@$(BIN)/mainstem serve $(ARGS)

test: $(STAMP)  ## run the tests
	@$(BIN)/python -m pytest $(ARGS)

clients: $(STAMP)  ## run the examples of docs/agents.md, one environment each; takes several minutes
	@$(BIN)/python -m tests.clients.run $(ARGS)

check: $(STAMP)  ## formatting, lint, types, layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(STAMP)  ## run every benchmark of the README, in under ten minutes, and hold its table against the results
	@mkdir -p $(OUT)
	@echo "== tree"; $(BIN)/python -m benchmarks.bench_tree --out $(OUT)/tree.json
	@echo "== session"; $(BIN)/python -m benchmarks.bench_session --repeats 2 --out $(OUT)/session.json
	@echo "== latency"; $(BIN)/python -m benchmarks.bench_latency --out $(OUT)/latency.json
	@echo "== cascade"; $(BIN)/python -m benchmarks.bench_cascade --pairs 6 --branches 8,32 --out $(OUT)/cascade.json
	@echo "== agent"; $(BIN)/mainstem bench agent $(AGENT) --out $(OUT)/agent
	@echo "== agent, full length, counts"; $(BIN)/mainstem bench agent $(COUNTS) --out $(OUT)/counts
	@echo "== branch"; $(BIN)/mainstem bench branch $(BRANCH) --out $(OUT)/branch
	@echo "== chat"; $(BIN)/mainstem bench chat $(CHAT) --out $(OUT)/chat
	@$(BIN)/python -m benchmarks.readme_check --new $(OUT)

bench-peers: $(STAMP)  ## race mainstem against the peers in the folder PEERS (docs/peers.md), and write its table and picture
	@PEERS=$(PEERS) $(BIN)/python -m benchmarks.bench_peers --out $(RACE) $(ARGS)
	@$(BIN)/python -m benchmarks.peers.race --write --result $(RACE)

format: $(STAMP)  ## rewrite the code in the house style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(STAMP)  ## write docs/settings.md from the settings
	@$(BIN)/python -m mainstem.cli.settings_page > docs/settings.md

clean:  ## remove the environment and every cache
	rm -rf $(VENV) .clients src/mainstem/native/native.so dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment is made once, and brought up to date when pyproject.toml, the native source or TORCH changes.
NATIVE := hatch_build.py $(wildcard src/mainstem/native/*.[ch])
$(STAMP): pyproject.toml $(NATIVE) $(VENV)/torch
	@echo "Installing mainstem into $(VENV)"
	@$(PIP) install --quiet --editable '.[serve,bench,dev]'
	@touch $@

$(VENV)/torch: $(VENV)/torch-wanted
	@echo "Installing $(TORCH)"
	@$(PIP) install $(TORCH)
	@touch $@

# Holds the wanted TORCH, and is only newer when that has changed.
$(VENV)/torch-wanted: $(BIN)/pip FORCE
	@echo '$(TORCH)' | cmp -s - $@ || echo '$(TORCH)' > $@

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "mainstem needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo not found)."; \
	    echo "Name one that is, as in: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "Making an environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "Python's venv module could not make it."; \
	    echo "On Debian and Ubuntu: apt install python3-venv, then try again."; exit 1; }

FORCE:
