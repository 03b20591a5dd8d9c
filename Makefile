PYTHON ?= python3
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check client bench docs clean system

# The examples on one index page, kept in plait-demo.db.
demo: $(VENV)/.installed
	$(BIN)/plait demo --port $(PORT)

test: system check client
	$(BIN)/python -m pytest

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/python -m plait_schemas.export --check

# The TypeScript client: types, format, tests, and whether the bundle that servers hand out is the one that it makes.
client: system $(VENV)/.installed-dev client/js/node_modules/.installed
	cd client/js && npm run --silent check

bench: system $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks

# The site, in site/.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo '*' > site/.gitignore

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

$(VENV)/.installed-docs: $(VENV)/.installed pyproject.toml
	$(BIN)/python -m pip install --quiet --editable . --group docs
	@touch $@

client/js/node_modules/.installed: client/js/package.json
	cd client/js && npm install --no-audit --no-fund --loglevel=error
	@touch $@

clean:
	rm -rf $(VENV) client/js/node_modules client/js/dist dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
