PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

MIN    := .venv-min
CORE   := tests/hooks tests/statistics tests/clipping tests/alerts \
	$(patsubst %,tests/callbacks/test_%.py,base feature_stats gradient_flow gradient_clip) \
	$(patsubst %,tests/callbacks/trainer/test_%.py,either_package environment exits lightning_cli other_callbacks) \
	tests/callbacks/loggers/test_loggers.py tests/callbacks/optimizers/test_precision.py
# These two compare with transformers, which wants newer versions.
CORE   += --ignore tests/hooks/test_tensors.py --ignore tests/statistics/test_units.py

.PHONY: demo check test test-min gpu lint dist docs docs-serve bench bench-tables bench-check faults exam population browser clean

$(READY): pyproject.toml constraints.txt hatch_build.py lightning_hooks/statistics/kernels/native.c
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all,examples,test,docs,dev]'
	touch $@

demo: $(READY)  ## train a CNN on real data with the monitors on, then plant four faults and let them be found
	$(BIN)/python examples/digits.py
	set -e; for fault in vanishing dying-relu exploding nan; do $(BIN)/python examples/digits.py --fault $$fault; done

check: $(READY)  ## before each commit, within a minute: the engine, the diagnostics, hooks and kernels
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(addprefix tests/,alerts clipping declare diagnostics hooks session statistics \
		test_floors.py test_words.py)

test: $(READY)  ## run the suite
	$(BIN)/python -m pytest -n 2 --dist worksteal

$(MIN)/.ready: pyproject.toml constraints-min.txt hatch_build.py lightning_hooks/statistics/kernels/native.c
	$(PYTHON) -m venv $(MIN)
	$(MIN)/bin/python -m pip install --quiet --constraint constraints-min.txt --editable '.[plots,files]' 'pytest>=8' pytest-xdist \
		hypothesis pytorch-lightning 'jsonargparse[signatures]'
	touch $@

test-min: $(MIN)/.ready  ## before a release: the suite's core on the lowest versions declared (an old torch is gigabytes)
	$(MIN)/bin/python -m pytest -n 2 --dist worksteal -o filterwarnings=default $(CORE)

gpu:  ## what only a CUDA device can show, within 8 minutes, by the machine's own Python; results in runs/gpu
	PYTHON=$(PYTHON) bash tests/gpu/run.sh

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

dist: $(READY)  ## what is uploaded, in dist/: sdist and wheels, with the C library and without, each installed in an empty environment and run
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[release]'
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	CC=/nonexistent $(BIN)/python -m build --no-isolation --wheel
	$(BIN)/twine check --strict dist/*
	DIST=dist $(BIN)/python -m pytest tests/system/test_installation.py

docs: $(READY)  ## build the documentation site into site/, offline; a broken link or reference is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(READY)  ## the same, shown at http://127.0.0.1:8000 while you write
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

bench: $(READY)  ## what the monitors cost, 25 minutes on a machine without other work; then `make bench-tables` puts it into README and docs
	mkdir -p tests/benchmarks/results
	$(BIN)/python -m tests.benchmarks.calls
	$(BIN)/python -m tests.benchmarks.overhead --json tests/benchmarks/results/cpu.json

bench-tables: $(READY)
	$(BIN)/python -m tests.benchmarks.tables

bench-check: $(READY)  ## before a release: the tables are of the code as it is
	$(BIN)/python -m tests.benchmarks.tables --check

faults: $(READY)  ## the proof, in one table: zoo, bugs of others, real trainings, lead times, and the peers' rules beside them
	$(BIN)/python -m tests.evidence.proof

exam: $(READY)  ## models and recipes of libraries, healthy and with faults; torchvision alone: what it depends on is a torch for GPUs
	$(BIN)/python -m pip install --quiet --no-deps torchvision==0.28.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[exam]'
	$(BIN)/python -m tests.evidence.exam.run

SEEDS ?= 0:1000

population: $(READY)  ## trains the draws of SEEDS (0:1000, two hours) and their mutants where that is not done, and writes the report of all
	$(BIN)/python -m tests.evidence.population.run --seeds $(SEEDS)
	$(BIN)/python -m tests.evidence.population.report

browser:  ## a browser for the tests that look at pages, where one can be installed (apt-get, as root or with sudo)
	.ci/browser

clean:
	rm -rf $(VENV) $(MIN) runs site dist .pytest_cache .mypy_cache .ruff_cache
