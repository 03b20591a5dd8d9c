PYTHON ?= python3
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check bench clean system

# The examples on one index page, kept in plait-demo.db.
demo: $(VENV)/.installed
	$(BIN)/plait demo --port $(PORT)

test: system check
	$(BIN)/python -m pytest

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright

bench: system $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks

# What the tests need from outside Python: Chromium, Node with npm, openssl.
system:
	@bash tests/system.sh

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "plait needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed pyproject.toml
	$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
