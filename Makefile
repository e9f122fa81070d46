# Two commands, each from a bare Python 3.11 and make: `make run` does the main job, `make test` passes every check.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
NEWEST := $(VENV)/newest
# Tests start hundreds of processes, none of which is to compile what another one has, whatever a container's image says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test quick lint unit federation newest clean
.DELETE_ON_ERROR:

run: $(VENV)/installed  ## The main job: 4 SuperNodes, 10 rounds, report.html. ARGS="-c rounds=3" passes options on.
	$(BIN)/prunella run $(ARGS)

test: lint unit federation newest  ## Every check, with the Flower that `make run` starts and with the newest one.

quick: lint  ## Style, types and the unit tests of what changed since main (tests/changed.py): under a minute.
	tests=$$($(BIN)/python tests/changed.py) && $(BIN)/pytest -n 2 -m "not federation and not slow" $$tests

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p .types && ln -sfn .. .types/prunella
	$(BIN)/mypy

unit: $(VENV)/dev  ## Fast tests, the examples in docstrings among them; no Flower process.
	$(BIN)/pytest -n 2 --durations 25 -m "not federation and not slow" tests

federation: $(VENV)/dev  ## Real SuperLinks and SuperNodes over gRPC; some at a time. Then the slow tests.
	$(BIN)/pytest -n $(AT_ONCE) --durations 25 $(TOGETHER) -m "federation or slow" tests || \
	  { $(AGAIN) && $(BIN)/pytest $(FAILED) -m "federation or slow" tests; }

newest: $(NEWEST)/installed  ## What touches Flower, with the newest release that is started: over HTTP, not gRPC.
	tests=$$($(BIN)/python -m tests.of_flower $(FLOWER_ROOMS)) && \
	  { $(NEWEST)/bin/python -m pytest -n 2 $(TOGETHER) -m $(OF_NEWEST) $$tests || \
	  { $(AGAIN) && $(NEWEST)/bin/python -m pytest $(FAILED) -m $(OF_NEWEST) $$tests; }; }

# A federation waits for longer than it computes, and takes up to 3 GB with its tests: four at a time, where they fit.
# A container may have less memory than its host tells; where nothing tells it, as on macOS, two. Asked where it is used.
MEMORY := /proc/meminfo /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes
AT_ONCE = $(shell cat $(MEMORY) 2>/dev/null | awk '/^MemTotal/ {kb = $$2} /^[0-9]+$$/ && $$1 / 1024 < kb {kb = $$1 / 1024} \
  END {n = int(kb / 3500000); print (n < 2 ? 2 : n > 4 ? 4 : n)}')
# Tests that share a federation on one worker, all other tests on whichever is free (tests/conftest.py).
TOGETHER := --dist loadfile --no-loadscope-reorder
# Hundreds of real processes on shared cores: tests that failed are asked once more, alone, and both outcomes are printed.
# pytest's exit code 1 says that tests failed, and no other one that all tests were there.
AGAIN := [ $$? -eq 1 ] && echo "once more, one at a time: what failed"
FAILED := --last-failed --last-failed-no-failures none
OF_NEWEST := "not slow and (not federation or newest)"
# Of deploy/tools, what asks Flower; the rest names it and works on files that a run left.
FLOWER_ROOMS := tests/flower tests/client $(addprefix tests/deploy/,cli console local machines runtime) \
  $(wildcard tests/deploy/test_*.py) $(foreach tool,doctor other_app settings_page,tests/deploy/tools/test_$(tool).py) \
  $(foreach part,app envelopes grid rounds,tests/server/test_$(part).py) tests/strategies/round tests/federation

# The packages are those of $(VENV); only what the newest Flower demands otherwise comes before them on the path.
$(NEWEST)/installed: pyproject.toml $(VENV)/dev
	$(BIN)/python -m venv $(NEWEST)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > \
	  $$($(NEWEST)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/shared.pth
	$(NEWEST)/bin/pip install --quiet --disable-pip-version-check --no-deps "cryptography>=50,<51" \
	  "flwr==$$($(BIN)/python -c 'from prunella.deploy.runtime.flower_release import STARTED; print(STARTED[-1])').*"
	touch $@

$(VENV)/installed: pyproject.toml $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[server,vision]"
	touch $@

# Of 29 000 modules few are ever imported, and those are compiled then: compiling all takes pip a third of its time.
$(VENV)/dev: pyproject.toml $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --editable ".[dev]"
	touch $@

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Prunella needs Python 3.11 or newer: set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .types
	find . -name __pycache__ -prune -exec rm -rf {} +
