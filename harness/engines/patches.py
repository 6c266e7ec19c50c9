"""Changes to vLLM that `--engine-patch` names, a row each: what is measured is then not vLLM as it is installed.

Every worker of vLLM applies them as it imports `worker`, before it makes the model. vLLM loads compiled graphs by a
hash of its configuration, so the patches' names are put into that configuration, too (`additional_config`). Otherwise a
patch would change nothing if the graphs of a run without it are loaded.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from harness.config.engine import EngineConfig
from harness.core.errors import UsageError
from harness.core.given_values import spelling_hint

VARIABLE = "LLAMA31_ENGINE_PATCH"  # the environment variable from which the workers read the names
TORCH_FP8 = "PerTensorTorchFP8ScaledMMLinearKernel"
VERSIONS = ("0.32", "0.33")  # versions of vLLM whose sources were read: the files that are changed are equal in both


class Patch(NamedTuple):
    """A change to one place of vLLM."""

    place: str  # the place that it changes, below `vllm.model_executor`
    versions: tuple[str, ...]  # versions of vLLM in which this place is as it was when the patch was written
    apply: Callable[[], None]
    changes: Callable[[object, str], bool]  # whether a layer of the model, with its kernel's name, runs that place
    part: str  # the part of the model under which the engine's kernels name the patch
    kernel: str  # the words that stand there for the patch
    effect: str  # on answers, and on the speed
    argument: tuple[str, str] | None = None  # an engine argument without which the place is never run


def accumulate_fast() -> None:
    """Replace vLLM's fp8 product of matrices by one that asks cuBLASLt for fast accumulation.

    The new method differs from vLLM's own in one more point: the scales get the two dimensions that Inductor's
    templates need.
    """
    import torch
    from vllm.model_executor.kernels.linear.scaled_mm import pytorch

    def apply_scaled_mm(
        self: object,
        *,
        out_dtype: torch.dtype,
        bias: torch.Tensor | None,
        output_shape: list[int],
        **factors: torch.Tensor,
    ) -> torch.Tensor:
        """Return what vLLM's own method returns, computed with fast accumulation.

        `factors` has vLLM's names for two matrices and their scales: A, B, As and Bs.
        """
        scales = {"scale_a": factors["As"].view(1, 1), "scale_b": factors["Bs"].view(1, 1)}
        rows, weight = factors["A"], factors["B"]
        output = torch._scaled_mm(rows, weight, out_dtype=out_dtype, bias=bias, use_fast_accum=True, **scales)
        row_count = math.prod(output_shape[:-1])  # The rows may be padded.
        return torch.narrow(output, 0, 0, row_count).view(*output_shape)

    pytorch.PerTensorTorchFP8ScaledMMLinearKernel.apply_scaled_mm = apply_scaled_mm


def multiply_single_rows() -> None:
    """Let vLLM's fp8 product compute a single row by a Triton kernel that reads each weight once.

    Programmatic dependent launch is turned on, so that Inductor's kernels may overlap with this kernel.
    """
    from torch._inductor import config
    from vllm.model_executor.kernels.linear.scaled_mm import pytorch

    from harness.engines.single_row import single_row_variant

    kernel = pytorch.PerTensorTorchFP8ScaledMMLinearKernel
    kernel.apply_scaled_mm = single_row_variant(kernel.apply_scaled_mm)
    config.triton.enable_pdl = True


def leave_activation() -> None:
    """Leave the activation (SiluAndMul) with static fp8 quantization to Inductor, by removing vLLM's fused kernel."""
    from vllm.model_executor.layers.activation import SiluAndMul
    from vllm.model_executor.layers.fusion import fused_act_quant

    del fused_act_quant._FUSED_ACT_QUANT[SiluAndMul, fused_act_quant.kFp8StaticTensorSym]


def is_torch_fp8(layer: object, kernel: str) -> bool:
    """Tell whether a layer's kernel is torch's fp8 product, which two of the patches change."""
    return kernel == TORCH_FP8


def has_static_fp8_input(layer: object, kernel: str) -> bool:
    """Tell whether a layer's input is quantized to fp8 with a stored scale.

    Only the activation before such a layer is fused with the quantization. `kernel` is not used: every patch is asked
    with the same arguments.
    """
    from vllm.model_executor.layers.fusion import fused_act_quant

    return bool(fused_act_quant.get_input_quant_key(layer) == fused_act_quant.kFp8StaticTensorSym)


PATCHES = {
    "fast-accumulation": Patch(
        f"kernels.linear.scaled_mm.pytorch.{TORCH_FP8}.apply_scaled_mm",
        VERSIONS,
        accumulate_fast,
        is_torch_fp8,
        "linear",
        "fast accumulation",
        "answers can change: products are summed with fewer bits; +3.4 % Offline on an H200",
        ("linear_backend", "torch"),
    ),
    "inductor-activation": Patch(
        "layers.fusion.fused_act_quant._FUSED_ACT_QUANT",
        VERSIONS,
        leave_activation,
        has_static_fp8_input,
        "activation",
        "Inductor, with the quantization",
        "answers can change by rounding; +4 % Offline on an H200",
    ),
    "single-row": Patch(
        f"kernels.linear.scaled_mm.pytorch.{TORCH_FP8}.apply_scaled_mm",
        VERSIONS,
        multiply_single_rows,
        is_torch_fp8,
        "linear",
        "a single row by Triton",
        "answers can change by rounding; SingleStream -9 % time and +19 % energy a token on an H200",
        ("linear_backend", "torch"),
    ),
}


def patch_names(config: EngineConfig, version: str) -> tuple[str, ...]:
    """Return the names of --engine-patch, once all are checked. `version` is the installed vLLM's, such as "0.32".

    Raises UsageError if a patch is unknown, was not written for this vLLM, or lacks an engine argument.
    """
    for name in config.engine_patch:
        where = f"--engine-patch {name}"
        patch = PATCHES.get(name)
        if patch is None:
            raise UsageError(f"{where}: there is no such patch{spelling_hint(name, sorted(PATCHES))}")
        if version not in patch.versions:
            raise UsageError(
                f"{where} fits vLLM {', '.join(patch.versions)}, not {version or 'none'}: remove it, or read "
                f"vllm.model_executor.{patch.place} there."
            )
        if patch.argument and patch.argument not in config.engine_args.items():
            raise UsageError(f"{where} changes nothing without --engine-arg {'='.join(patch.argument)}.")
    return config.engine_patch


def applied_kernels(names: Iterable[str], kernels: Mapping[object, str]) -> dict[str, str]:
    """Return in words what the patches `names` changed, by the part of the model, such as "linear".

    A patch that changes no layer is left out. `kernels` has the name of each layer's kernel, by layer.
    """
    changes: dict[str, list[str]] = {}
    for name in names:
        patch = PATCHES[name]
        if any(patch.changes(layer, kernel) for layer, kernel in kernels.items()):
            changes.setdefault(patch.part, []).append(patch.kernel)
    return {part: ", ".join(texts) for part, texts in changes.items()}


def check(names: Iterable[str], kernels: Mapping[str, str]) -> None:
    """Raise UsageError for a patch that changed none of the kernels that run.

    `kernels` describes the kernels that run, by the part of the model. A patch that changed a kernel has its name
    (`patch.kernel`) in the description.
    """
    for name in names:
        patch = PATCHES[name]
        if patch.kernel not in kernels.get(patch.part, ""):
            raise UsageError(
                f"--engine-patch {name} changes nothing: no layer of this model runs vllm.model_executor.{patch.place}."
            )
