"""A CUDA toolkit for kernels that are compiled at the first start, made of links to the packages of vLLM's lock.

FlashInfer 0.7 looks for nvcc in CUDA_HOME, PATH and /usr/local/cuda, and links with -lcudart and -lcuda from
CUDA_HOME/lib64 (flashinfer/jit/cpp_ext.py). The packages have nvcc, but neither lib64 nor the names that a linker looks
for.
"""

import ctypes
import os
import re
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

COMPILED = "FLASHINFER"  # attention backends of this name compile kernels
TOOLKIT = Path("/usr/local/cuda")
NO_NVCC = (
    "attention_backend=FLASHINFER compiles its kernels, and no nvcc is in CUDA_HOME, PATH, /usr/local/cuda or the "
    "installed packages: pip install -r requirements.txt -c constraints-gpu.txt"
)


def provide(engine_args: Mapping[str, object]) -> str:
    """Sets CUDA_HOME to a toolkit of links where kernels will be compiled and no toolkit is there; a warning in one
    line where there is no nvcc at all, else nothing."""
    if not str(engine_args.get("attention_backend", "")).upper().startswith(COMPILED):
        return ""
    if os.environ.get("CUDA_HOME") or shutil.which("nvcc") or (TOOLKIT / "bin" / "nvcc").exists():
        return ""
    if (packages := packaged_toolkit()) is None:
        return NO_NVCC
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ["CUDA_HOME"] = str(link_toolkit(packages, cache / "llama31-mlperf" / packages.name))
    return ""


def packaged_toolkit() -> Path | None:
    """The folder of NVIDIA's packages that has nvcc; None where none has."""
    spec = find_spec("nvidia")
    roots = [Path(place) for place in spec.submodule_search_locations or ()] if spec else []
    return next((path.parent.parent for root in roots for path in sorted(root.glob("cu*/bin/nvcc"))), None)


def link_toolkit(packages: Path, home: Path) -> Path:
    """A toolkit in `home`, of links to the packages' files, with the names that a linker looks for. Raises OSError."""
    (home / "lib64").mkdir(parents=True, exist_ok=True)
    links = {home / path.name: path for path in packages.iterdir() if path.is_dir()}
    for path in (packages / "lib").glob("*.so*"):
        links |= {home / "lib64" / path.name: path, home / "lib64" / f"{path.name.partition('.so')[0]}.so": path}
    if driver := driver_library():
        links[home / "lib64" / "libcuda.so"] = driver
    for link, target in links.items():
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    return home


def driver_library() -> Path | None:
    """The driver's libcuda, as the loader finds it; None without a driver."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    found = re.search(r"(/\S*libcuda\.so\S*)$", Path("/proc/self/maps").read_text(), re.M)
    return Path(found[1]) if found else None
