# `make qualify` and `make test` need Linux, Python >= 3.10 and make; everything else they install themselves.
PYTHON ?= python3
VENV ?= .venv
NODES ?= 2
ARGS ?=
BIN := $(VENV)/bin

.PHONY: qualify test lint clean

qualify: $(VENV)/.installed
	$(BIN)/python -m pytest qualification/ --nodes $(NODES) $(ARGS)

test: $(VENV)/.installed lint
	$(BIN)/python -m pytest tests/ $(ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/mypy

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[test]"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info clusterqual-runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
