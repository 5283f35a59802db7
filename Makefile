# Every target sets up what it needs: a fresh machine with Python 3.11 or newer and make is enough.

.DEFAULT_GOAL := help

BIN     := .venv/bin
STAMP   := .venv/.installed
PIP     := $(BIN)/python -m pip install -qq --disable-pip-version-check
# `make setup PYTHON=/path/to/python` overrides the search.
PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)
RECENT  := import sys, venv; sys.exit(sys.version_info < (3, 11))

# One thread in each of two test processes: no oversubscription, and the same sums on every machine.
# No test may fetch anything, so transformers is told not to try.
PYTEST := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/pytest -n 2

.PHONY: help setup demo test test-slow test-all lint format bench clean

help:  ## Print this list
	@echo "usage: make TARGET"
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## Create .venv and install everything into it; again when the pins change

$(STAMP): pyproject.toml constraints.txt peers.txt
	@if ! $(BIN)/python -c '$(RECENT)' 2>/dev/null; then \
	    found=; \
	    for python in $(PYTHONS); do \
	        if $$python -c '$(RECENT)' 2>/dev/null; then found=$$python; break; fi; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo "spiritlevel needs Python 3.11 or newer with its venv module; tried: $(PYTHONS)" >&2; \
	        echo "  python3 here is: $$(python3 --version 2>&1 || true)" >&2; \
	        echo "  Install a newer one, or name it: make setup PYTHON=/path/to/python3" >&2; \
	        exit 1; \
	    fi; \
	    $$found -m venv --clear .venv; \
	fi
	@echo "Installing into .venv (once, a minute or two) ..."
	@$(PIP) -c constraints.txt torch
	@$(PIP) -c constraints.txt -e '.[all]'
	@$(PIP) --no-deps -r peers.txt
	@touch $@

demo: setup  ## Train a zoo of small networks, measure it, and see what flatness tells (kept for the next time)
	@$(BIN)/spiritlevel demo

test: setup  ## Run the fast tests and the doctests
	@$(PYTEST) -m "not slow"

test-slow: setup  ## Run only the slow tests
	@$(PYTEST) -m slow || [ $$? -eq 5 ]  # 5 is pytest's word for "there are none"

test-all: setup  ## Run every test
	@$(PYTEST)

lint: setup  ## Check style, format, types and layers
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: setup  ## Put the code in format and mend what ruff can mend
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: setup  ## Run the benchmarks and write bench/results.json
	@KINETO_LOG_LEVEL=99 OMP_NUM_THREADS=1 $(BIN)/python -m bench --json bench/results.json

clean:  ## Remove .venv, caches and build products
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist build
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
