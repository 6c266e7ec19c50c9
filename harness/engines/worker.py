"""Imported by each of vLLM's worker processes: asks Linux for AMX, patches vLLM, and tells which kernels it runs.

vLLM's bf16 attention on a CPU uses AMX tiles without asking. Linux ends a process by SIGILL that uses tile registers
before `arch_prctl(ARCH_REQ_XCOMP_PERM, 18)` (the kernel's Documentation/arch/x86/xstate.rst). oneDNN makes that request
at the first large matrix product; vLLM's attention kernel does not, and a short prompt reaches it first. Permission
is lost at exec, so each worker asks for itself: vLLM imports the module of `worker_extension_cls` in every one. Where a
CPU has no AMX, the call does nothing.
"""

from collections import Counter
from os import environ
from typing import TYPE_CHECKING

import torch

from harness.engines import patches

if TYPE_CHECKING:
    from vllm.v1.worker.worker_base import WorkerBase

CHOSEN_PATCHES = list(filter(None, environ.get(patches.VARIABLE, "").split(",")))

torch.cpu._init_amx()
for name in CHOSEN_PATCHES:
    patches.PATCHES[name].apply()

KERNELS = "vllm.model_executor.kernels"  # the package of vLLM's classes that are one kernel each


class Extension:
    """Methods that vLLM adds to its worker class (`worker_extension_cls`), to be called by name."""

    def chosen_kernels(self: "WorkerBase") -> dict[str, str]:
        """Return the kernels that run: the attention backend, and the kernel of most linear layers, by vLLM's names.

        What patches change in them is added. A part that vLLM does not tell is left out.
        """
        config = self.vllm_config.compilation_config
        backends = (getattr(layer, "attn_backend", None) for layer in config.static_forward_context.values())
        attention = Counter(backend.get_name() for backend in backends if backend)
        layers = [module for module in self.get_model().modules() if hasattr(module, "quant_method")]
        linear = {layer: linear_kernel(layer) for layer in layers}
        counts = {"attention": attention, "linear": Counter(linear.values())}
        kernels = {part: names.most_common(1)[0][0] for part, names in counts.items() if names}
        patched = patches.applied_kernels(CHOSEN_PATCHES, linear)
        return kernels | {part: ", ".join(filter(None, (kernels.get(part), what))) for part, what in patched.items()}


def linear_kernel(module: torch.nn.Module) -> str:
    """Return the name of the kernel class that a layer's method holds.

    If it holds none, return the method's own class name.
    """
    holders = [holder for holder in (module.quant_method, getattr(module, "scheme", None)) if holder is not None]
    for holder in holders:
        for value in vars(holder).values():
            if type(value).__module__.startswith(KERNELS):
                return type(value).__name__
    return type(holders[-1]).__name__ if holders else "none"
