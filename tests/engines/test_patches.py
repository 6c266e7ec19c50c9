"""Patches of vLLM, without a GPU: on vLLM's own objects, and with the demo's compiled graphs."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from zipfile import ZipFile

import pytest

from harness.config.comparability import Comparable, differences, reason
from harness.config.config_command import config_command
from harness.config.engine import EngineConfig
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core.errors import UsageError
from harness.engines import patches, vllm_arguments
from tests.conftest import ROOT, run

TORCH = "linear_backend=torch"
BOTH = ("fast-accumulation", "inductor-activation")


def config(*names: str, args: Sequence[str] = (TORCH,)) -> EngineConfig:
    return EngineConfig(engine_patch=names, engine_arg=tuple(args))


def said_by(code: str, *names: str) -> object:
    """What a program prints, as JSON, in which vLLM is patched as in a worker."""
    lines = ["import json", "import torch", "from harness.engines import worker", dedent(code)]
    env = os.environ | {patches.VARIABLE: ",".join(names), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], env=env, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


PRODUCT = """
    from unittest.mock import patch
    from vllm.model_executor.kernels.linear.scaled_mm.pytorch import PerTensorTorchFP8ScaledMMLinearKernel as Kernel

    a = torch.randn(32, 64).to(torch.float8_e4m3fn)
    b = torch.randn(16, 64).to(torch.float8_e4m3fn).t()
    scale = torch.tensor(0.5)
    kernel = object.__new__(Kernel)
    kwargs = dict(A=a, B=b, out_dtype=torch.bfloat16, As=scale, Bs=scale, bias=None, output_shape=[4, 8, 16])
    with patch.object(torch, "_scaled_mm", wraps=torch._scaled_mm) as mm:
        product = kernel.apply_scaled_mm(**kwargs)
    given = dict(mm.call_args.kwargs)
    scales = [given.pop(name) for name in ("scale_a", "scale_b")]
    texts = {name: str(value) for name, value in given.items()}
    shapes = [list(scale.shape) for scale in scales]
    print(json.dumps([shapes, texts, list(product.shape), product.float().sum().item()]))
"""


def test_fast_accumulation_is_asked_for_and_nothing_else() -> None:
    seeded = "torch.manual_seed(0)\n" + dedent(PRODUCT)
    plain, fast = said_by(seeded), said_by(seeded, "fast-accumulation")
    assert isinstance(plain, list) and isinstance(fast, list)
    assert plain.pop(0) == [[1], [1]] and fast.pop(0) == [[1, 1], [1, 1]]  # Inductor's templates want two dimensions
    assert fast[0].pop("use_fast_accum") == "True"
    assert fast == plain  # a CPU accumulates in one way


SINGLE_ROW = """
    from functools import partial
    from harness.engines import single_row
    from vllm.model_executor.kernels.linear.scaled_mm.pytorch import PerTensorTorchFP8ScaledMMLinearKernel as Kernel

    rows = []
    multiply = single_row.multiply
    def counted(*operands):
        rows.append(operands[0].shape[0])
        return multiply(*operands, pdl=False)  # a CPU interprets the kernel, without dependent launch

    single_row.multiply = counted
    torch.manual_seed(0)
    scale, kernel = torch.tensor(0.5), object.__new__(Kernel)
    given = dict(As=scale, Bs=scale, out_dtype=torch.bfloat16, bias=None)
    def step(a, b):
        return kernel.apply_scaled_mm(A=a, B=b, output_shape=[a.shape[0], b.shape[1]], **given)

    errors = []
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="eager")
    for count in (3, 1):
        a, b = torch.randn(count, 4096), torch.randn(48, 4096)
        a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
        wanted = 0.25 * (a.float() @ b.float())
        for product in (step(a, b), compiled(a, b)):
            errors.append(float((product.float() - wanted).norm() / wanted.norm()))
    narrow = step(torch.ones(1, 64).to(torch.float8_e4m3fn), torch.ones(16, 64).to(torch.float8_e4m3fn).t())
    print(json.dumps([rows, errors, narrow.tolist(), torch._inductor.config.triton.enable_pdl]))
"""


@pytest.mark.parametrize("names", [("single-row",), ("fast-accumulation", "single-row")])
def test_a_single_row_is_multiplied_by_its_own_kernel(names: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    rows, errors, narrow, overlaps = said_by(SINGLE_ROW, *names)  # type: ignore[misc]
    assert rows == [1, 1]  # once as it is, once compiled; neither the three rows nor what has no whole tiles
    assert len(errors) == 4 and max(errors) < 0.01
    assert narrow == [[16.0] * 16] and overlaps


CALLED = """
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.activation import SiluAndMul
    from vllm.model_executor.layers.fusion import fused_act_quant as fusion

    for key, producer in [*fusion._FUSED_ACT_QUANT.items()]:
        fusion._FUSED_ACT_QUANT[key] = lambda x, linear, name=producer.__name__: name
    layer = torch.nn.Module()
    layer._input_quant_key = fusion.kFp8StaticTensorSym
    with set_current_vllm_config(VllmConfig()):
        found = fusion.maybe_fused_act_quant(SiluAndMul(), torch.ones(2, 8), layer)
    print(json.dumps(found if isinstance(found, str) else list(found.shape)))
"""


def test_the_activation_is_left_to_inductor() -> None:
    assert said_by(CALLED) == "_silu_and_mul_fp8_static"
    assert said_by(CALLED, "fast-accumulation") == "_silu_and_mul_fp8_static"
    assert said_by(CALLED, "inductor-activation") == [2, 4]  # a plain activation, which the linear layer quantizes


KERNELS = """
    from torch._inductor import metrics
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.activation import SiluAndMul
    from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8
    from vllm.model_executor.layers.quantization.utils.quant_utils import GroupShape

    with set_current_vllm_config(VllmConfig()):
        activate, quantize = SiluAndMul(), QuantFP8(static=True, group_shape=GroupShape.PER_TENSOR)
    step = lambda x, scale: quantize.forward_native(activate.forward_native(x), scale)[0]
    x, scale = torch.randn(8, 64, dtype=torch.bfloat16), torch.tensor(0.5)
    made = torch.compile(step, fullgraph=True)(x, scale)
    print(json.dumps([metrics.generated_kernel_count, str(made.dtype), list(made.shape)]))
"""


def test_inductor_makes_one_kernel_of_activation_and_quantization() -> None:
    assert said_by(KERNELS) == [1, "torch.float8_e4m3fn", [8, 32]]


def test_names_enter_what_vllm_hashes() -> None:
    code = """
        from vllm.config import VllmConfig

        print(json.dumps([VllmConfig(additional_config=each).compute_hash() for each in ({}, {"engine_patch": ["a"]})]))
    """
    plain, patched = said_by(code)  # type: ignore[misc]
    assert plain != patched
    given = vllm_arguments.extra_args(config(*BOTH, args=(TORCH, 'additional_config={"mine": 1}')))
    assert given == {"linear_backend": "torch", "additional_config": {"mine": 1, "engine_patch": BOTH}}
    assert vllm_arguments.extra_args(config()) == {"linear_backend": "torch"}


@pytest.mark.parametrize(
    ("name", "args", "version", "words"),
    [
        ("fast-acumulation", (TORCH,), "0.32", "there is no such patch; did you mean fast-accumulation?"),
        ("fast-accumulation", (), "0.32", "changes nothing without --engine-arg linear_backend=torch."),
        (
            "inductor-activation",
            (),
            "0.31",
            "fits vLLM 0.32, 0.33, not 0.31: remove it, or read vllm.model_executor.layers.",
        ),
        ("inductor-activation", (), "", "fits vLLM 0.32, 0.33, not none: remove it"),
    ],
)
def test_what_does_not_fit_ends_in_one_line(name: str, args: Sequence[str], version: str, words: str) -> None:
    with pytest.raises(UsageError) as error:
        patches.patch_names(config(name, args=args), version)
    assert str(error.value).startswith(f"--engine-patch {name}") and words in str(error.value)
    assert "\n" not in str(error.value)


def changed_file(place: str, names: set[str]) -> str:
    """The file among these that a patch's place is in."""
    parts = place.split(".")
    paths = ("/".join(("vllm", "model_executor", *parts[:count])) + ".py" for count in range(len(parts), 0, -1))
    return next(path for path in paths if path in names)


@pytest.mark.parametrize("name", patches.PATCHES)
def test_each_version_of_vllm_has_the_place_as_it_was_read(name: str) -> None:
    """Compares wheels with the installed vLLM: pip download --no-deps vllm==0.33.0 -d FOLDER; VLLM_WHEELS=FOLDER."""
    patch = patches.PATCHES[name]
    found = [*Path(os.environ.get("VLLM_WHEELS", "none")).glob("vllm-*.whl")]
    wheels = {wheel: ".".join(wheel.name.split("-")[1].split(".")[:2]) for wheel in found}
    compared = [wheel for wheel, version in wheels.items() if version in patch.versions]
    if not compared:
        pytest.skip("no wheels of vLLM in VLLM_WHEELS")
    package = Path(str(find_spec("vllm").origin)).parent  # type: ignore[union-attr]
    for wheel in compared:
        with ZipFile(wheel) as archive:
            path = changed_file(patch.place, set(archive.namelist()))
            assert archive.read(path) == (package.parent / path).read_bytes(), f"{wheel.name}: {path}"


def test_a_list_with_commas_and_a_repeated_flag_are_the_same() -> None:
    wanted = tuple(sorted(BOTH))
    for words in (["--engine-patch", ",".join(BOTH)], ["--engine-patch", BOTH[1], "--engine-patch", BOTH[0]]):
        made = config_command(RunConfig, lambda config: config, "").main(words, standalone_mode=False)
        assert made.engine_patch == wanted


def test_the_kernels_say_what_is_patched() -> None:
    linear, other = object(), object()
    kernels = {linear: patches.TORCH_FP8, other: "none"}
    assert patches.applied_kernels(["fast-accumulation"], kernels) == {"linear": "fast accumulation"}
    assert patches.applied_kernels(["fast-accumulation"], {other: "CutlassFP8ScaledMMLinearKernel"}) == {}
    assert patches.applied_kernels([], kernels) == {}
    patches.check(["fast-accumulation"], {"linear": f"{patches.TORCH_FP8}, fast accumulation"})
    two = patches.applied_kernels(["fast-accumulation", "single-row"], kernels)
    assert two == {"linear": "fast accumulation, a single row by Triton"}
    patches.check(["fast-accumulation", "single-row"], two)
    with pytest.raises(UsageError, match="--engine-patch fast-accumulation changes nothing: no layer of this model"):
        patches.check(["fast-accumulation"], {"linear": "CutlassFP8ScaledMMLinearKernel"})


def test_a_run_with_a_patch_is_compared_with_none_without() -> None:
    plain, patched = (resolve(RunConfig(engine_patch=names), [], 0) for names in ((), BOTH))
    assert "engine_patch" not in plain.setup  # as in the records of older versions
    assert patched.setup["engine_patch"] == [*BOTH]  # as JSON has it
    found = differences(Comparable(settings=plain.setup), Comparable(settings=patched.setup))
    assert reason(found, ("A", "B")) == "different settings (engine_patch)"


@pytest.mark.engine
def test_a_patch_has_graphs_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "cache"))
    few = ("--mode", "performance", "--total-sample-count", "16", "--min-duration", "1", "--offline-expected-qps", "4")
    eager = ("--engine-arg", "enforce_eager=false")
    folders, patched = [], ("--engine-patch", "inductor-activation")
    for place, flags, code in (("off", (), 0), ("on", patched, 2), ("again", (), 0)):
        done = run(tmp_path / place, *few, *eager, *flags)
        assert done.code == code, done.output
        assert ("inductor-activation changes nothing: no layer of this model" in done.output) == (code == 2)
        folders.append({path.name for path in (tmp_path / "cache" / "torch_compile_cache").glob("torch_aot_compile/*")})
    assert [len(names) for names in folders] == [1, 2, 2]
