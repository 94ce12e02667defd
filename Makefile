# Everything installs into .venv by itself. Arguments for the experiment: make train ARGS="--minutes 1"

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# The theme's makers announce its successor at every build.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs

# Two installations at the same time would damage each other, so ignore `make -j`.
.NOTPARALLEL:
# If a command fails, delete its file, so that the next `make` runs the command again.
.DELETE_ON_ERROR:
.PHONY: train classifier peers speed gpu live test test-fast test-long test-properties trials faults mutation coverage site serve test-site records readme claims lint format clean fuzz

train: $(VENV)/.run
	$(BIN)/python experiments/mlm_tiny.py $(ARGS)

# From a file of labels to the folder `classifier`. It starts from the BERT in the folder FROM, or else from one
# that it pretrains for two minutes, once. For a second classifier: make classifier ARGS="--output another"
LABELS ?= labels.csv
# The shell reads these names itself. If `make` put them into its commands, the shell could run what's in them.
export LABELS FROM
classifier: $(VENV)/.baselines
	@$(BIN)/python -m labml_bert.classify train "$$LABELS" --output classifier --check-only $(ARGS)
ifeq (,$(filter --check-only --help -h,$(ARGS)))
	@test -n "$$FROM" || ls logs/bert_tiny/*/model/config.json >/dev/null 2>&1 || $(BIN)/python experiments/bert_tiny.py --minutes 2
	@$(BIN)/python -m labml_bert.classify train "$$LABELS" --output classifier \
		--from "$${FROM:-$$(dirname "$$(dirname "$$(ls -t logs/bert_tiny/*/model/config.json | head -n 1)")")}" $(ARGS)
endif

# Ours beside those of others. `make peers` installs them; without, ours is measured alone.
speed: $(VENV)/.run
	$(BIN)/python experiments/speed/speed.py $(ARGS)

peers: $(VENV)/.peers

# Everything that we want to know about a CUDA GPU: tests, speed, and two runs of three minutes. Takes a quarter of an hour.
gpu: $(VENV)/.peers $(VENV)/.test
	$(BIN)/python experiments/speed/gpu.py $(ARGS)

# The weights that the site's page runs, at several moments of three runs of three minutes.
live: $(VENV)/.run
	$(BIN)/python experiments/live/live.py --output docs/live/model --record docs/runs/live.json $(ARGS)

# Two tests at a time, each on one core: most of the work is in processes that the tests start.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal

test: $(VENV)/.test
	$(PYTEST) --ignore tests/docs -m "not long" $(ARGS)

# The fast tests that start no process, in about a minute. Property tests get 10 examples each instead of 100.
test-fast: $(VENV)/.test
	$(PYTEST) --ignore tests/docs -m "not processes and not slow" --hypothesis-profile=fast $(ARGS)

# What takes too long for `make test` and `make test-site`: whole experiments, kills, every notebook, every record.
test-long: $(VENV)/.site-test $(VENV)/.test
	$(PYTEST) -m long $(ARGS)

# The property tests with 10,000 new examples each, instead of the same 100. Hypothesis itself marks its tests.
test-properties: $(VENV)/.test
	$(PYTEST) --ignore tests/docs -m hypothesis --hypothesis-profile=long $(ARGS)

# Damages every kind of file that we read, each in up to 10,000 new ways. Takes an hour.
fuzz: $(VENV)/.site-test $(VENV)/.test
	$(PYTEST) tests/test_fuzz.py tests/docs/test_card.py --hypothesis-profile=long $(ARGS)

# Kills most of the experiments at random moments, each of them twenty times.
trials: $(VENV)/.test
	$(BIN)/python -m tests.tools.kill_trials $(ARGS)

# Every command with a fault at each of its system calls, and 200 power failures of each command with
# checkpoints. It takes hours; ARGS chooses the commands: make faults ARGS="mlm_tiny prepare"
faults: $(VENV)/.test
	$(BIN)/python -m tests.tools.faults $(ARGS)
	$(BIN)/python -m tests.tools.power_loss $(ARGS)

# Changes the models, the training loop and the code that saves files in many ways, and checks that a test notices each
# change. Takes hours, and goes on where it was stopped. For a single file: make mutation ARGS="labml_bert.nsp*"
mutation: $(VENV)/.test
	$(INSTALL) --editable '.[mutation]'
	OMP_NUM_THREADS=1 $(BIN)/mutmut run --max-children 2 $(ARGS)
	$(BIN)/mutmut results

# Lines and branches of the package that the tests run, in processes that they start too.
coverage: $(VENV)/.test
	$(BIN)/coverage erase
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest --numprocesses 2 --dist worksteal --ignore tests/docs -m "not long" $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --fail-under=98

site: $(VENV)/.site
	$(MKDOCS) build --strict $(ARGS)
	@echo "built: site/index.html"

serve: $(VENV)/.site
	$(MKDOCS) serve --dirty $(ARGS)

# Checks that today's code reproduces each recorded run, in ten minutes or so.
records: $(VENV)/.test
	$(PYTEST) tests/run/test_fingerprint.py $(ARGS)

# Runs the claims and studies that are not recorded yet and goes on where it was stopped. All of them take hours.
claims: $(VENV)/.run
	$(BIN)/python experiments/claims/claims.py --all $(ARGS)

# The table of modules in README.md, from the first sentences of the files.
readme: $(VENV)/.site
	$(BIN)/python -m docs readme

# In a browser too, where there is a Chromium.
test-site: $(VENV)/.site-test
	$(PYTEST) tests/docs -m "not long" $(ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build site mutants docs/written/* docs/node_modules *.egg-info .mypy_cache .ruff_cache .pytest_cache

# `venv` installs pip last. If it was interrupted before, start again with an empty folder.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: Python 3.11 or newer is needed; name one with: make PYTHON=python3.11" >&2; exit 2; }
	$(PYTHON) -m venv --clear $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing into $(VENV) (once, a minute or so)"
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.run
	$(INSTALL) --editable '.[test,lint]'
	@touch $@

$(VENV)/.baselines: $(VENV)/.run
	$(INSTALL) --editable '.[baselines]'
	@touch $@

# What labml-nn depends on is for its experiments, which no longer run; its modules need none of it.
$(VENV)/.peers: $(VENV)/.run
	$(INSTALL) --editable '.[peers]'
	$(INSTALL) --no-deps labml-nn
	@touch $@

# KaTeX comes from npm, and npm from PyPI.
$(VENV)/.site: $(VENV)/.run docs/package-lock.json
	$(INSTALL) --editable '.[site]'
	cd docs && ../$(BIN)/npm ci --silent --no-audit --no-fund
	@touch $@

$(VENV)/.site-test: $(VENV)/.site
	$(INSTALL) --editable '.[site-test]'
	@touch $@
