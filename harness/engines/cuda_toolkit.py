"""A CUDA toolkit for kernels that are compiled at the first start."""

import shutil
import subprocess
from collections.abc import Mapping
from os import environ
from pathlib import Path
from sysconfig import get_path

from harness.core.locations import ROOT
from harness.core.remedies import install_command

COMPILED_BACKEND = "FLASHINFER"  # attention backends of this name compile kernels
TOOLKIT = Path("/usr/local/cuda")
LINKS_SCRIPT = ROOT / "deploy" / "cuda_links.sh"
NO_NVCC = (
    "attention_backend=FLASHINFER compiles its kernels, and no nvcc is in CUDA_HOME, PATH, /usr/local/cuda or the "
    f"environment: install a CUDA toolkit, or its packages: `{install_command('gpu')}`"
)


def set_cuda_home(engine_args: Mapping[str, object]) -> str:
    """Set CUDA_HOME to the CUDA toolkit among this environment's Python packages, if one is needed.

    Return a warning in one line if there is no compiler (nvcc), or if the toolkit cannot be completed. Empty otherwise.
    """
    # Only FlashInfer, a backend of attention, compiles kernels at run time, and so needs a toolkit.
    compiles_kernels = str(engine_args.get("attention_backend", "")).upper().startswith(COMPILED_BACKEND)
    has_other_toolkit = environ.get("CUDA_HOME") or shutil.which("nvcc") or (TOOLKIT / "bin" / "nvcc").exists()
    if not compiles_kernels or has_other_toolkit:
        return ""
    packages = Path(get_path("purelib"))
    if links_of(packages) is None:
        # The toolkit works only with links to NVIDIA's libraries. The set-up makes them, but pip alone does not.
        if next(packages.glob("nvidia/cu*/bin/nvcc"), None) is None:
            return NO_NVCC
        failure = make_links(packages)
        if failure:
            return failure
    links = links_of(packages)
    if links:  # The links stand in the toolkit's folder.
        environ["CUDA_HOME"] = str(links.parent)
    return ""


def links_of(packages: Path) -> Path | None:
    """Return the folder (lib64) in which symbolic links lead to NVIDIA's libraries. None if nobody made the links.

    `packages` is the folder of an environment's packages.
    """
    return next(packages.glob("nvidia/cu*/lib64"), None)


def make_links(packages: Path) -> str:
    """Make the links to NVIDIA's libraries in the environment whose folder of packages is `packages`.

    Return a warning with the reason and the command if this failed. Empty if it worked.
    """
    environment = packages.parents[2]  # the packages lie in environment/lib/python3.N/site-packages
    command = f"sh {LINKS_SCRIPT} {environment}"
    completed = subprocess.run(
        ["sh", str(LINKS_SCRIPT), str(environment)], capture_output=True, text=True, timeout=60, check=False
    )
    if completed.returncode == 0 and links_of(packages):
        return ""
    last_line = completed.stderr.strip().rpartition("\n")[2]
    reason = last_line or f"exit code {completed.returncode}"
    return (
        f"attention_backend=FLASHINFER compiles its kernels, and its links to CUDA cannot be made ({reason}): {command}"
    )
