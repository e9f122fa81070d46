# Two commands, each from a bare Python 3.11 and make: `make run` does the main job, `make test` passes every check.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: run test quick lint unit federation clean
.DELETE_ON_ERROR:

run: $(VENV)/installed  ## The main job: 4 SuperNodes, 10 rounds, report.html. ARGS="-c rounds=3" passes options on.
	$(BIN)/prunella run $(ARGS)

test: lint unit federation  ## Everything .ci/run runs.

quick: lint  ## Style, types and the unit tests of what changed since main (tests/changed.py): under a minute.
	tests=$$($(BIN)/python tests/changed.py) && $(BIN)/pytest -n 2 -m "not federation and not slow" $$tests

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p .types && ln -sfn .. .types/prunella
	$(BIN)/mypy

unit: $(VENV)/dev  ## Fast tests, the examples in docstrings among them; no Flower process.
	$(BIN)/pytest -n 2 -m "not federation and not slow" tests

federation: $(VENV)/dev  ## Real SuperLinks and SuperNodes over gRPC; two files at a time. And the slow tests.
	$(BIN)/pytest -n 2 --dist loadfile -m "federation or slow" tests

$(VENV)/installed: pyproject.toml $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[server,vision]"
	touch $@

$(VENV)/dev: pyproject.toml $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Prunella needs Python 3.11 or newer: set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .types
