# `make test` and `make calibrate` set up everything themselves: Python >= 3.11 and make suffice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUN ?= reports/quickstart

.DEFAULT_GOAL := test
.PHONY: test calibrate bench numbers format clean

# One command: format, lint, types, import contracts, tests. Stops at the first that fails.
test: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n auto --dist worksteal

# The main job on the demo model and the sample trace, in minutes on a laptop CPU: a plan, a report.
calibrate: $(READY)
	$(BIN)/selfspec demo-model
	$(BIN)/selfspec calibrate -m demo -t sample -c quickstart -o $(RUN)

# Costs alone: draft step, verification, overhead, bandwidth floor.
bench: $(READY)
	$(BIN)/selfspec demo-model
	$(BIN)/selfspec bench -m demo --only cost

# The tables of measured numbers in README.md, from the committed result files.
numbers: $(READY)
	$(BIN)/python tests/benchmarks/readme_numbers.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Built things only; runs under reports/ stay.
clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so an interrupted installation is done again.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "selfspec needs Python 3.11 or newer, this is %d.%d; run: make PYTHON=python3.11" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,demo]'
	@touch $@
