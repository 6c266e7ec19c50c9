"""Imported by vLLM's workers on a CPU: asks Linux for the AMX tiles that vLLM's bf16 attention uses without asking.

Linux ends a process by SIGILL that uses tile registers before `arch_prctl(ARCH_REQ_XCOMP_PERM, 18)` (the kernel's
Documentation/arch/x86/xstate.rst). oneDNN makes that request at the first large matrix product; vLLM's attention kernel
does not, and a short prompt comes to it first. The permission is lost at exec, so each worker asks for itself: vLLM
imports the module of `worker_extension_cls` in every one. Where a CPU has no AMX, the call does nothing.
"""

import torch

torch.cpu._init_amx()


class Extension:
    """What vLLM adds to its worker class; empty."""
