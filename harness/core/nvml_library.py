"""The part of NVML that this program uses, as the package pynvml has it; any call raises where a GPU has no answer."""

from collections.abc import Sequence
from typing import NewType, Protocol

GPUHandle = NewType("GPUHandle", object)  # NVML's name of a GPU


class Memory(Protocol):
    """The memory of a GPU, in bytes."""

    total: int
    used: int


class Utilization(Protocol):
    """The percentage of the time in which a GPU computed, and of that in which its memory was accessed."""

    gpu: int
    memory: int


class FieldNumber(Protocol):
    """The value of a field: C's union of all types. Only the attribute of the field's own type is meaningful."""

    uiVal: int  # noqa: N815
    ullVal: int  # noqa: N815


class FieldValue(Protocol):
    """A field that was asked of NVML. The error code `nvmlReturn` is not 0 if the GPU does not have the field."""

    nvmlReturn: int  # noqa: N815
    value: FieldNumber


class ConfidentialComputing(Protocol):
    """The state of confidential computing: 1 if it is switched on, 0 if not."""

    ccFeature: int  # noqa: N815


class NVML(Protocol):
    """NVML's functions: of the library, of the system, then of a GPU. Power in mW, clocks in MHz, energy in mJ."""

    def nvmlInit(self) -> object: ...

    def nvmlShutdown(self) -> object: ...

    def nvmlSystemGetDriverVersion(self) -> str: ...

    def nvmlSystemGetCudaDriverVersion(self) -> int: ...

    def nvmlSystemGetConfComputeState(self) -> ConfidentialComputing: ...

    def nvmlDeviceGetCount(self) -> int: ...

    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> GPUHandle: ...

    def nvmlDeviceGetHandleByUUID(self, uuid: str, /) -> GPUHandle: ...

    def nvmlDeviceGetName(self, gpu: GPUHandle, /) -> str: ...

    def nvmlDeviceGetUUID(self, gpu: GPUHandle, /) -> str: ...

    def nvmlDeviceGetIndex(self, gpu: GPUHandle, /) -> int: ...

    def nvmlDeviceIsMigDeviceHandle(self, gpu: GPUHandle, /) -> int: ...

    def nvmlDeviceGetMigMode(self, gpu: GPUHandle, /) -> Sequence[int]: ...

    def nvmlDeviceGetMemoryInfo(self, gpu: GPUHandle, /) -> Memory: ...

    def nvmlDeviceGetUtilizationRates(self, gpu: GPUHandle, /) -> Utilization: ...

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: GPUHandle, /) -> int: ...

    def nvmlDeviceGetPowerUsage(self, gpu: GPUHandle, /) -> int: ...

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: GPUHandle, /) -> int: ...

    def nvmlDeviceGetPowerManagementDefaultLimit(self, gpu: GPUHandle, /) -> int: ...

    def nvmlDeviceGetClockInfo(self, gpu: GPUHandle, clock: int, /) -> int: ...

    def nvmlDeviceGetMaxClockInfo(self, gpu: GPUHandle, clock: int, /) -> int: ...

    def nvmlDeviceGetApplicationsClock(self, gpu: GPUHandle, clock: int, /) -> int: ...

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: GPUHandle, /) -> int: ...

    def nvmlDeviceGetPersistenceMode(self, gpu: GPUHandle, /) -> int: ...

    def nvmlDeviceGetTemperature(self, gpu: GPUHandle, sensor: int, /) -> int: ...

    def nvmlDeviceGetPcieThroughput(self, gpu: GPUHandle, counter: int, /) -> int: ...

    def nvmlDeviceGetFieldValues(self, gpu: GPUHandle, fields: Sequence[object], /) -> Sequence[FieldValue]: ...
