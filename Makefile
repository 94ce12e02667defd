# Everything installs into .venv by itself. Arguments for the experiment: make train ARGS="--minutes 1"

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: train test lint format clean

train: $(VENV)/.run
	$(BIN)/python experiments/mlm_tiny.py $(ARGS)

test: $(VENV)/.test
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: Python 3.11 or newer is needed; name one with: make PYTHON=python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) (once, a minute or so)"
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.run
	$(INSTALL) --editable '.[test]'
	@touch $@
