"""A CUDA toolkit for kernels that are compiled at the first start."""

import shutil
from collections.abc import Mapping
from os import environ
from pathlib import Path
from sysconfig import get_path

# A CUDA toolkit for kernels that are compiled at the first start: one that is there, else the links to the packages of
# vLLM's lock that the set-up made (deploy/cuda_links.sh).
COMPILED = "FLASHINFER"  # attention backends of this name compile kernels
TOOLKIT = Path("/usr/local/cuda")
NO_NVCC = (
    "attention_backend=FLASHINFER compiles its kernels, and no nvcc is in CUDA_HOME, PATH, /usr/local/cuda or the "
    "environment: make setup, or sh deploy/cuda_links.sh with the environment's folder"
)


def provide(engine_args: Mapping[str, object]) -> str:
    """Sets CUDA_HOME to the set-up's links where kernels will be compiled and no toolkit is there; a warning in one
    line where there is no nvcc at all, else nothing.
    """
    is_compiled = str(engine_args.get("attention_backend", "")).upper().startswith(COMPILED)
    if not is_compiled or environ.get("CUDA_HOME") or shutil.which("nvcc") or (TOOLKIT / "bin" / "nvcc").exists():
        return ""
    if not (links := next(Path(get_path("purelib")).glob("nvidia/cu*/lib64"), None)):
        return NO_NVCC
    environ["CUDA_HOME"] = str(links.parent)
    return ""
