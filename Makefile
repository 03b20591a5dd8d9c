PYTHON ?= python3
PORT ?= 8000
# Each Python that is asked for has an environment of its own: make test PYTHON=python3.13 uses .venv-3.13.
VENV := .venv$(if $(filter command% environment%,$(origin PYTHON)),-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
BIN := $(VENV)/bin
# Processes among which the tests are divided. Tests also wait, so there are more of them than processors.
WORKERS ?= 4
# The tests of type checkers. mypy reads plait's own types once, for these and for `make check`.
CHECKERS := tests/typing/test_checkers.py
# How many times as many random schedules `make soak` plays.
SOAK ?= 40
# Tests keep their files in memory where it has room: on a disk, a commit takes ten times the processor time. `make soak`
# uses the disk.
MEMORY := $(shell df --output=avail --block-size=G /dev/shm 2>/dev/null | awk 'NR == 2 && $$1 + 0 >= 8 {print "/dev/shm"}')
# Runs pytest with a folder for temporary files, which is removed at the end; its path is short, for sockets.
PYTEST_IN_MEMORY = $(if $(MEMORY),folder=`mktemp -d $(MEMORY)/plait.XXX` && trap "rm -rf $$folder" EXIT INT TERM && \
	chmod 711 $$folder && TMPDIR=$$folder) $(BIN)/python -m pytest $(if $(MEMORY),--basetemp=$$folder/t)
# Without .pyc files, each of the hundreds of servers that tests start would compile all its modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all soak fuzz check pyright client pytest adapters fixtures bench docs clean system

# In a fresh clone, tests are compiled once before many workers do it at the same time.
COMPILE_TESTS = find tests -name "*.$$($(BIN)/python -c 'import sys; print(sys.implementation.cache_tag)')-pytest-*.pyc" \
	| grep -q . || $(BIN)/python -m pytest --collect-only -q > /dev/null

# What there is to make.
help:
	@awk '/^# /{if (text == "") text = substr($$0, 3); next} \
		/^[a-z-]+:/ && text != "" {split($$0, part, ":"); printf "make %-10s%s\n", part[1], text} {text = ""}' Makefile

# The examples on one index page, kept in plait-demo.db.
demo: $(VENV)/.installed
	$(BIN)/plait demo --port $(PORT)

# The tests, checks and docs. Installs and builds first, then all at the same time; each one's output comes at its end.
test: system
	@$(MAKE) --no-print-directory --jobs=2 $(VENV)/.installed-dev client/js/dist/index.js
	@$(MAKE) --no-print-directory $(VENV)/.installed-docs
	@echo "testing with `$(BIN)/python -V` ($(BIN)/python)"
	@$(MAKE) --no-print-directory --jobs=3 --keep-going --output-sync=target pytest adapters check client docs
	@echo "tested with `$(BIN)/python -V`: pytest, the adapters, checks, the TypeScript client and the docs passed"

# Everything, pyright, and pytest with each newer Python that is there: before a submission.
test-all: test pyright
	@for version in 3.12 3.13; do \
		python=`command -v ~/.pyenv/versions/$$version*/bin/python python$$version | head -1`; \
		if [ -z "$$python" ]; then echo "Python $$version is not there"; continue; fi; \
		$(MAKE) --no-print-directory pytest PYTHON=$$python || exit 1; \
		echo "tested with Python $$version"; \
	done

# The tests of the server, the Python client and the schemas, but for those of type checkers, which `make check` runs.
pytest: system $(VENV)/.installed-dev
	-@$(COMPILE_TESTS)
	$(PYTEST_IN_MEMORY) -n $(WORKERS) --dist worksteal -m "not release" --durations=20 --ignore $(CHECKERS)

# The tests of a release, and those that play random schedules or search for examples, with others than before; then
# what each of them counted.
soak: export PLAIT_SOAK := $(SOAK)
soak: export PLAIT_SEED ?= $(shell date +%s)
soak: system $(VENV)/.installed-dev
	-@$(COMPILE_TESTS)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "soak or hypothesis or release" -rP --durations=20

# How many seconds each fuzzer runs.
FUZZ ?= 60

# The fuzzers of frames and JSON, with inputs that are new each time.
fuzz: $(VENV)/.installed-dev
	$(BIN)/python -m fuzz --seconds $(FUZZ)

# The tests of adapters whose packages are large, or want older versions of others, in an environment of their own.
adapters: $(VENV)-adapters/.installed
	$(VENV)-adapters/bin/python -m pytest tests/server/adapters/apart

# The format, the style, the types and whether the generated schemas are those of the code.
check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --quiet $(CHECKERS)
	$(BIN)/python -m plait_schemas.export --check

# What mypy checks, by other rules. It takes two minutes of processor time.
pyright: $(VENV)/.installed-dev
	$(BIN)/pyright --pythonpath $(BIN)/python

# The TypeScript client: types, format, tests, and whether the bundle that servers hand out is the one that it makes.
client: system $(VENV)/.installed-dev client/js/node_modules/.installed
	cd client/js && PLAIT_PYTHON=$(abspath $(BIN)/python) npm run --silent check

# A store of each engine with every part filled, in the next folder of tests/fixtures/stores: after a stored row changed.
fixtures: system $(VENV)/.installed-dev
	$(BIN)/python -m tests.fixtures.make_stores

# How fast plait is, compared with others.
bench: system $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks

# The site, in site/, and the tests of its search and its links.
docs: $(VENV)/.installed-dev $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	PLAIT_SITE=site $(BIN)/python -m pytest --quiet tests/site
	@echo '*' > site/.gitignore

# What the tests need from outside Python: Chromium, Node with npm, openssl, PostgreSQL.
system:
	@bash tests/system.sh

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "plait needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

# The desk of the demo needs the extra.
$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[execution]"
	@touch $@

$(VENV)/.installed-dev: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $(VENV)/.installed $@

$(VENV)-adapters/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-adapters
	$(VENV)-adapters/bin/python -m pip install --quiet --upgrade pip
	$(VENV)-adapters/bin/python -m pip install --quiet --editable . --group adapters
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed pyproject.toml
	$(BIN)/python -m pip install --quiet --editable . --group docs
	@touch $@

client/js/node_modules/.installed: client/js/package.json
	cd client/js && npm install --no-audit --no-fund --loglevel=error
	@touch $@

client/js/dist/index.js: client/js/node_modules/.installed client/js/tsconfig.json client/js/tsconfig.build.json $(wildcard client/js/src/*)
	cd client/js && node_modules/.bin/tsc -p tsconfig.build.json
	@touch $@

# Removes what was installed and built.
clean:
	rm -rf .venv .venv-* client/js/node_modules client/js/dist dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
