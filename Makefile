PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test lint bench faults browser clean

$(READY): pyproject.toml constraints.txt hatch_build.py lightning_hooks/statistics/native.c
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[plots,trackers,files,examples,test,dev]'
	touch $@

demo: $(READY)  ## train a CNN on real data with the trio on, then plant four faults and let them be found
	$(BIN)/python examples/digits.py
	set -e; for fault in vanishing dying-relu exploding nan; do $(BIN)/python examples/digits.py --fault $$fault; done

test: $(READY)  ## run the suite
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m tests.benchmarks.overhead
	$(BIN)/python -m tests.benchmarks.epoch_end

faults: $(READY)  ## the proof: trainings with planted faults and healthy ones, what is found, and the peers' rules beside it
	$(BIN)/python -m tests.faults.run

browser:  ## a browser for the tests that look at pages, where one can be installed (apt-get, as root or with sudo)
	.ci/browser

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache
