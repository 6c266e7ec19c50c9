"""Imported by each of vLLM's worker processes: asks Linux for AMX, patches vLLM, and reports which kernels it runs.

vLLM's bf16 attention on a CPU uses AMX tiles without asking. Linux ends a process by SIGILL that uses tile registers
before `arch_prctl(ARCH_REQ_XCOMP_PERM, 18)` (the kernel's Documentation/arch/x86/xstate.rst). oneDNN makes that request
at the first large matrix product; vLLM's attention kernel does not, and a short prompt reaches it first. Permission
is lost at exec, so each worker asks for itself: vLLM imports the module of `worker_extension_cls` in every worker. On a
CPU without AMX, the call does nothing.
"""

from os import environ
from statistics import mode
from typing import TYPE_CHECKING

import torch

from harness.engines import patches

if TYPE_CHECKING:
    from vllm.v1.worker.worker_base import WorkerBase

CHOSEN_PATCHES = list(filter(None, environ.get(patches.VARIABLE, "").split(",")))

torch.cpu._init_amx()
for name in CHOSEN_PATCHES:
    patches.PATCHES[name].apply()

KERNELS_PACKAGE = "vllm.model_executor.kernels"  # each class in it stands for one kernel


class Extension:
    """Methods that vLLM adds to its worker class (`worker_extension_cls`), to be called by name."""

    def chosen_kernels(self: "WorkerBase") -> dict[str, str]:
        """Return the names of the kernels that run in this worker, by part of the model, such as "attention".

        If patches change the kernels of a part, their names are added.
        """
        backend_names, linear_kernels = list[str](), dict[torch.nn.Module, str]()
        for layer in self.vllm_config.compilation_config.static_forward_context.values():
            backend = getattr(layer, "attn_backend", None)
            if backend:
                backend_names.append(backend.get_name())
        for module in self.get_model().modules():
            if hasattr(module, "quant_method"):
                linear_kernels[module] = linear_kernel(module)
        kernels = dict[str, str]()
        if backend_names:  # The mode is the name that most layers have.
            kernels["attention"] = mode(backend_names)
        if linear_kernels:
            kernels["linear"] = mode(linear_kernels.values())
        for part, patched_kernels in patches.applied_kernels(CHOSEN_PATCHES, linear_kernels).items():
            if part in kernels:
                kernels[part] = f"{kernels[part]}, {patched_kernels}"
            else:
                kernels[part] = patched_kernels
        return kernels


def linear_kernel(module: torch.nn.Module) -> str:
    """Return the name of the kernel class that a linear layer's quantization method or scheme holds in an attribute.

    If neither holds one, return the class name of the scheme, or of the method if there is no scheme; "none" without
    either.
    """
    name = "none"
    for holder in (module.quant_method, getattr(module, "scheme", None)):
        if holder is None:
            continue
        for value in vars(holder).values():
            if type(value).__module__.startswith(KERNELS_PACKAGE):
                return type(value).__name__
        name = type(holder).__name__
    return name
