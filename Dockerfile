# GPU image: docker build -t mlperf-llama31 .
# CPU image: docker build --build-arg REQUIREMENTS=requirements/cpu.txt -t mlperf-llama31:cpu .
# For servers behind an endpoint, without vLLM: docker build --target client -t mlperf-llama31:client .
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE} AS base

# Debian keeps only the newest version of a package: a pinned one would soon be gone.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends tini \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /app
# Models, data sets, compiled graphs and kernels lie under /cache: one volume keeps all of them.
ENV PATH=/opt/venv/bin:$PATH HOME=/tmp USER=bench \
    XDG_CACHE_HOME=/cache FLASHINFER_WORKSPACE_BASE=/cache TRITON_CACHE_DIR=/cache/triton
LABEL org.opencontainers.image.title="llama31-mlperf" \
      org.opencontainers.image.description="Benchmarks Llama-3.1-8B with MLPerf's LoadGen" \
      org.opencontainers.image.version="0.3.0"
ENTRYPOINT ["tini", "--"]
CMD ["python", "run.py", "--help"]

FROM base AS client

COPY requirements/client.txt requirements/
RUN python3 -m venv /opt/venv \
 && pip install --no-cache-dir --no-deps -r requirements/client.txt \
 && find /opt/venv -type d -name tests -prune -exec rm -rf {} + \
 && { timeout 60 python -m nltk.downloader -q -d /opt/venv/nltk_data punkt_tab \
      && test -d /opt/venv/nltk_data/tokenizers/punkt_tab \
      || echo "NLTK's punkt_tab could not be fetched: ROUGE-Lsum will be marked approximate"; }

COPY . .
# With a read-only root: results, /tmp and /cache are volumes.
RUN chmod -R a+rX . && mkdir -m 1777 results /cache
ARG REVISION=
LABEL org.opencontainers.image.revision=${REVISION}
ENV GIT_REVISION=${REVISION} PYTHONDONTWRITEBYTECODE=1 MPLCONFIGDIR=/tmp
VOLUME /app/results
USER 1000:1000

FROM base AS engine

# Triton and torch.compile build small C and C++ modules at run time; vLLM on the CPU is linked with libnuma.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ libnuma1 \
 && rm -rf /var/lib/apt/lists/*
ARG REQUIREMENTS=requirements.txt
ARG TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
COPY requirements.txt deploy/cuda_links.sh ./
COPY requirements/cpu.txt requirements/constraints-gpu.txt requirements/
# PyPI's torch is built for CUDA and does not load without its libraries, which requirements/cpu.txt leaves out.
RUN python3 -m venv /opt/venv \
 && if [ "$REQUIREMENTS" = requirements/cpu.txt ]; then \
      grep ^torch== "$REQUIREMENTS" >torch.txt \
      && pip install --no-cache-dir --no-deps --retries 1 --extra-index-url "$TORCH_CPU_INDEX" -r torch.txt \
      && pip install --no-cache-dir --no-deps -r "$REQUIREMENTS" \
      && { python -c 'import torch' 2>/dev/null \
           || { echo "error: torch does not load; pip found no CPU build of it: --build-arg TORCH_CPU_INDEX=... (now" \
                     "$TORCH_CPU_INDEX)" >&2; exit 1; }; }; \
    else \
      pip install --no-cache-dir -r "$REQUIREMENTS" -c requirements/constraints-gpu.txt \
      && sh cuda_links.sh /opt/venv; \
    fi \
 && { timeout 60 python -m nltk.downloader -q -d /opt/venv/nltk_data punkt_tab \
      && test -d /opt/venv/nltk_data/tokenizers/punkt_tab \
      || echo "NLTK's punkt_tab could not be fetched: ROUGE-Lsum will be marked approximate"; }

COPY . .
# Any user may run this image (docker run --user): what is written lies where everyone may write.
RUN chmod -R a+rX . && mkdir -m 1777 results /cache
# torch is built for CUDA 13, which needs a driver of the branch R580 or newer: an older one is refused at the start.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility NVIDIA_REQUIRE_CUDA="cuda>=13.0"
ARG REVISION=
LABEL org.opencontainers.image.revision=${REVISION}
ENV GIT_REVISION=${REVISION}
VOLUME /app/results
USER 1000:1000
