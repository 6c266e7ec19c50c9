# The set-up is part of every target: the virtual environment is made once, for a GPU or for the CPU.
VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY := $(VENV)/bin/python
REQUIREMENTS ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo requirements.txt || echo requirements-cpu.txt)
READY := $(VENV)/.ready-$(REQUIREMENTS)

.PHONY: demo test lint types bench check-submission clean

demo: $(READY)            ## run the embedded demo: datacenter, offline, accuracy then performance
	$(PY) run.py --model demo --category datacenter --scenario offline --mode both

test: $(VENV)/.ready-dev lint types  ## everything that must hold
	$(PY) -m pytest

lint: $(VENV)/.ready-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(VENV)/.ready-dev
	$(PY) -m mypy run.py mmlu.py report.py util_logs.py harness

bench: $(READY)           ## what the harness itself costs
	$(PY) -m benchmarks.overhead

SUBMISSION ?= submission
check-submission: $(READY)  ## MLPerf's submission checker on SUBMISSION=DIR, built first if RUNS, SUBMITTER, SYSTEM are given
ifdef RUNS
	$(PY) -m harness.submission build --runs $(RUNS) --submitter $(SUBMITTER) --system $(SYSTEM) \
	  --division $(or $(DIVISION),open) --out $(SUBMISSION)
endif
	$(PY) -m harness.submission check $(SUBMISSION)

$(PY):
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-requirements.txt: requirements.txt | $(PY)
	$(PY) -m pip install -q --disable-pip-version-check -r $<
	@$(MAKE) --no-print-directory punkt
	@touch $@

$(VENV)/.ready-requirements-cpu.txt: requirements-cpu.txt | $(PY)
	$(PY) -m pip install -q --disable-pip-version-check --no-deps -r $<
	@$(MAKE) --no-print-directory punkt
	@touch $@

$(VENV)/.ready-dev: requirements-dev.txt | $(READY)
	$(PY) -m pip install -q --disable-pip-version-check --no-deps -r $<
	@touch $@

.PHONY: punkt
punkt:                    # NLTK's sentence splitter, for the exact ROUGE-Lsum; without a network it is done without
	@timeout 60 $(PY) -m nltk.downloader -q -d $(VENV)/nltk_data punkt_tab >/dev/null 2>&1 \
	  && test -d $(VENV)/nltk_data/tokenizers/punkt_tab \
	  || echo "NLTK's punkt_tab could not be fetched: ROUGE-Lsum will be marked approximate"

clean:
	rm -rf $(VENV)
