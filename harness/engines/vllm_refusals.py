"""What vLLM has against its arguments, in one line; and what it accepts in vain."""

from typing import Any

from harness.common.errors import UsageError, first_line


def refusal(error: Exception) -> str:
    """What vLLM has against its arguments; pydantic, with which it checks them, says so below a heading."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return first_line(error)
    said = [(item["loc"][:1], " ".join(str(item["msg"]).removeprefix("Value error, ").split())) for item in errors()]
    return "; ".join(": ".join([*map(str, where), what]) for where, what in said).rstrip(".")


def check_quantization(model: Any) -> None:
    """Raises UsageError for quantization that vLLM accepts in vain.

    Some of its methods quantize experts alone: without any, the model would run as it is, under a wrong name. And on
    a CPU, where it has no 8-bit floating-point arithmetic, it finds that out only once it computes.
    """
    from vllm.platforms import current_platform

    checkpoint = getattr(model.hf_config, "quantization_config", None) or {}
    in_fp8 = str(model.quantization).startswith("fp8") or checkpoint.get("format") == "float-quantized"
    if current_platform.is_cpu() and in_fp8 and not current_platform.supports_fp8():
        raise UsageError("vLLM does not compute in fp8 on a CPU: use --quantization none and a model in 16 bits.")
    online = model.quantization_config
    dense = getattr(online, "linear", "unknown") or getattr(online, "targets", None)
    if online is not None and not dense and not model.is_moe:
        raise UsageError(
            f"--quantization {model.quantization} quantizes nothing in this model, only experts: use another, or none."
        )
