"""What a submission reads of a run folder, typed. A file that is not as a run leaves it is named, with the fault."""

import json
from collections.abc import Container
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError

from harness import rules
from harness.errors import UsageError
from harness.system import System

Kind = TypeVar("Kind")


def known(names: Container[str]) -> AfterValidator:
    """Refuses a name that is not one of these."""

    def check(name: str) -> str:
        if name not in names:
            raise ValueError(f"{name!r:.40} is unknown to this version")
        return name

    return AfterValidator(check)


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Shared(Model):
    """The flags that the runs of one entry must share."""

    version: Annotated[str, known(rules.SEEDS)]
    model: str
    load_format: str
    precision: str
    quantization: str
    kv_cache_dtype: str
    max_new_tokens: int
    seed: int | None
    engine_arg: list[str]
    tensor_parallel_size: int | str
    data_parallel_size: int | str
    max_model_len: int | str | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    batch_size: int | None
    sort_by_length: bool
    dataset_path: str | None


class Flags(Shared):
    """The flags that say which entry a run is of."""

    category: Annotated[str, known(rules.OFFICIAL)]
    scenario: Annotated[str, known(rules.SCENARIO)]


class Running(Model):
    """What the engine made of the flags."""

    quantization: str
    quantized_checkpoint: bool
    kv_cache_dtype: str


class Settings(Model):
    """Flags, and what `auto` came to."""

    config: Flags
    running: Running
    tensor_parallel_size: int
    data_parallel_size: int
    max_model_len: int


class Facts(Model):
    """config.json."""

    command: str
    deviations: list[str]
    system: System
    plan: Settings


class Machine(Model):
    """config.json of any command: the machine alone."""

    system: System


class Status(Model):
    """status.json."""

    status: str


class Check(Model):
    name: str
    score: float


class Scores(Model):
    """rouge.json; `log` is the SHA-256 of the accuracy log that was scored."""

    verdict: str
    approximate: list[str]
    checks: list[Check]
    samples: int
    splitter: str
    log: str | None = None


class Eos(Model):
    eos: int


class Test06(Model):
    """result.json of TEST06."""

    __test__ = False  # no test of pytest's

    passed: bool
    facts: Eos


def facts_of(folder: Path) -> Facts:
    """What config.json keeps of a run of run.py. Raises UsageError for any other folder."""
    path = folder / "config.json"
    if not path.exists():
        raise UsageError(f"{folder}: no config.json in it; not a run folder.")
    data = load(path)
    if isinstance(data, dict) and "plan" not in data:
        raise UsageError(f"{folder}: not a folder of run.py, but of mmlu.py or another.")
    if isinstance(data, dict) and isinstance(data["plan"], dict) and "running" not in data["plan"]:
        raise UsageError(f"{folder}: written in an older format; use the version that wrote it.")
    return parsed(path, data, Facts)


def read(path: Path, kind: type[Kind]) -> Kind:
    """The file as what it should hold. Raises UsageError, naming the file and what is wrong in it."""
    return parsed(path, load(path), kind)


def load(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; is the run whole?") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON: {' '.join(str(error).split())}.") from None


def parsed(path: Path, data: Any, kind: type[Kind]) -> Kind:
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(map(str, fault["loc"]))
        raise UsageError(f"{path}: {f'{where}: ' if where else ''}{fault['msg']}.") from None
