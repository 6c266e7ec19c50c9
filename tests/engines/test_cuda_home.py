"""A toolkit from the locked packages alone: kernels compile and link for an H200 where no CUDA is installed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.engines import cuda_toolkit
from tests.conftest import ROOT, tells

NEEDED = r"^nvidia-(?:cuda-nvcc|cuda-runtime|cuda-crt|nvvm|cuda-cccl)==.*$"
FLASHINFER = {"attention_backend": "FLASHINFER"}
KERNEL = """
#include <cuda.h>
#include <cuda_runtime.h>
__global__ void twice(float *values) { values[threadIdx.x] *= 2; }
extern "C" int run(float *values) {
  twice<<<1, 32>>>(values);
  CUdevice device;
  return cuDeviceGet(&device, 0) + cudaGetLastError();
}
"""


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of packages of an environment, as NVIDIA's leave it, where no toolkit is installed."""
    site = tmp_path / "venv" / "lib" / "python3.12" / "site-packages"
    for name in ("bin/nvcc", "include/cuda.h", "lib/libcudart.so.13", "nvvm/bin/cicc"):
        path = site / "nvidia" / "cu13" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    monkeypatch.setattr(cuda_toolkit, "TOOLKIT", tmp_path / "none")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(cuda_toolkit, "get_path", lambda name: str(site))
    return site


def link(venv: Path) -> None:
    subprocess.run(["sh", "deploy/cuda_links.sh", str(venv)], cwd=ROOT, check=True)


def test_a_toolkit_that_is_there_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    link(tmp_path / "venv")
    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
    assert cuda_toolkit.set_cuda_home(FLASHINFER) == "" and os.environ["CUDA_HOME"] == "/opt/cuda"


def test_what_compiles_nothing_needs_no_toolkit(packages: Path) -> None:
    assert cuda_toolkit.set_cuda_home({"attention_backend": "TRITON_ATTN"}) == cuda_toolkit.set_cuda_home({}) == ""
    shutil.rmtree(packages / "nvidia")
    assert tells(cuda_toolkit.set_cuda_home(FLASHINFER), "no nvcc ", "make setup")
    assert "CUDA_HOME" not in os.environ


def test_an_environment_that_pip_alone_filled_gets_its_links_at_the_first_run(packages: Path) -> None:
    assert cuda_toolkit.set_cuda_home(FLASHINFER) == ""
    assert Path(os.environ["CUDA_HOME"]) == packages / "nvidia" / "cu13"
    assert (packages / "nvidia" / "cu13" / "lib64" / "libcudart.so").exists()


def test_links_that_cannot_be_made_are_one_command(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = packages / "fails.sh"
    script.write_text("echo 'ln: read-only file system' >&2; exit 1")
    monkeypatch.setattr(cuda_toolkit, "LINKS_SCRIPT", script)
    warning = cuda_toolkit.set_cuda_home(FLASHINFER)
    assert warning.endswith(f"(ln: read-only file system): sh {script} {packages.parents[2]}")
    assert "CUDA_HOME" not in os.environ and "\n" not in warning


def test_links_have_the_names_that_a_linker_looks_for(tmp_path: Path, packages: Path) -> None:
    link(tmp_path)  # without packages there is nothing to link
    for _ in range(2):  # the second time the links are there
        link(tmp_path / "venv")
        os.environ.pop("CUDA_HOME", None)
        assert cuda_toolkit.set_cuda_home(FLASHINFER) == ""
        home = Path(os.environ["CUDA_HOME"])
        assert home == packages / "nvidia" / "cu13"
        assert (home / "bin" / "nvcc").is_file() and (home / "include" / "cuda.h").is_file()
        assert (home / "lib64" / "libcudart.so").resolve().name == "libcudart.so.13"
        assert (home / "lib64" / "libcuda.so").is_symlink()  # a driver's, also where it comes later
    os.environ.pop("CUDA_HOME")


def test_the_set_up_makes_them_in_an_environment_and_in_the_image() -> None:
    assert "sh deploy/cuda_links.sh $(VENV)" in (ROOT / "Makefile").read_text()
    assert "sh cuda_links.sh /opt/venv" in (ROOT / "Dockerfile").read_text()


@pytest.mark.slow
def test_kernels_compile_and_link_from_the_locked_packages_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    site = tmp_path / "real" / "lib" / "python3.12" / "site-packages"
    locked = re.findall(NEEDED, (ROOT / "requirements/constraints-gpu.txt").read_text(), re.M)
    assert len(locked) == 5
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), *locked]
    if (done := subprocess.run(install, capture_output=True, text=True)).returncode:
        pytest.skip(f"the packages cannot be had here: {done.stderr.strip().splitlines()[-1:]}")
    link(tmp_path / "real")
    home = site / "nvidia" / "cu13"
    if not (stub := home / "lib64" / "libcuda.so").exists():  # a machine without a driver
        stub.unlink()
        source = tmp_path / "stub.c"
        source.write_text("int cuDeviceGet(int *device, int number) { return 0; }\n")
        subprocess.run(["gcc", "-shared", "-o", str(stub), str(source)], check=True)
    (tmp_path / "kernel.cu").write_text(KERNEL)
    library = str(tmp_path / "kernel.so")
    command = [f"{home}/bin/nvcc", "-arch=sm_90a", "-shared", "-Xcompiler", "-fPIC", "-o", library]
    command += ["-cudart", "shared", f"-L{home}/lib64", "-lcudart", "-lcuda", str(tmp_path / "kernel.cu")]
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(command, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert "libcudart.so.13" in needed
