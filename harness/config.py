"""Every flag, defined once: name, type, default, help. Every `auto` that needs no engine is resolved here."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from harness import rules
from harness.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "demo"

Auto = Literal["auto"]
DEFAULT_MODEL = "llama3.1-8b-instruct"
ALIASES = {DEFAULT_MODEL: "meta-llama/Llama-3.1-8B-Instruct", "demo": str(DEMO / "model")}
GPU_MEMORY_SHARE = 0.9
BYTES_PER_WEIGHT = {"fp16": 2, "bf16": 2, "fp32": 4}
DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


MOST = {  # what LoadGen can plan for: beyond, its counters overflow without a word
    "max_new_tokens": 10**6,
    "total_sample_count": 2**40,  # the data set sets the real one
    "min_duration": 30 * 24 * 3600,
    "batch_size": 10**7,
    "server_target_qps": 10**6,
    "offline_expected_qps": 10**6,
}
SECRET = re.compile(r"(?i)(^|[_-])token$|secret|password|api[_-]?key")  # names whose values are never written down


def flag(default: Any, panel: str, text: str) -> Any:
    """A setting that is a command-line flag, a key of `--config` files and a field of `config.json` at once."""
    return field(default=default, metadata={"panel": panel, "help": text})


MODEL, ENGINE, PARALLEL = "Model", "Engine", "Parallelism"
BENCHMARK, DATA, RATE, ACCURACY, OUTPUT = "Benchmark", "Data", "Load", "Accuracy", "Results"


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The model and how vLLM runs it: the flags that `run.py` and `mmlu.py` share."""

    model: str = flag(
        DEFAULT_MODEL,
        MODEL,
        "Hugging Face repository, local folder, or alias: llama3.1-8b-instruct, or demo (a tiny model in this "
        "repository that needs no GPU, token or download).",
    )
    backend: Literal["vllm"] = flag("vllm", MODEL, "The inference engine.")
    precision: Literal["fp16", "bf16", "fp32"] = flag("bf16", MODEL, "Number format of weights and activations.")
    quantization: str = flag(
        "none",
        MODEL,
        "none; fp8 (half the weights' memory, and the GPU's faster 8-bit arithmetic); or another of vLLM's methods.",
    )
    kv_cache_dtype: Literal["auto", "fp8"] = flag(
        "auto", MODEL, "fp8 halves the memory of each request's attention cache, so that more fit at once."
    )
    load_format: str = flag("auto", MODEL, "How vLLM loads weights; dummy makes random ones (speed only).")
    trust_remote_code: bool = flag(False, MODEL, "Run Python code that comes with the model. Off unless given.")

    tensor_parallel_size: int | Auto = flag(
        "auto", PARALLEL, "GPUs one copy of the model is split over. auto: as few as hold the model."
    )
    data_parallel_size: int | Auto = flag(
        "auto", PARALLEL, "Copies of the model that share the load. auto: as many as the visible GPUs hold."
    )

    max_model_len: int | Auto = flag(
        "auto", ENGINE, "Longest prompt plus answer, in tokens. auto: 2668 (every sample fits); demo: 1024."
    )
    gpu_memory_utilization: float | Auto = flag(
        "auto", ENGINE, "Share of each GPU's memory that vLLM may take. auto: 0.9; on a CPU a quarter of what is free."
    )
    max_num_seqs: int | None = flag(None, ENGINE, "Most requests computed at once. Unset: vLLM decides.")
    max_num_batched_tokens: int | None = flag(None, ENGINE, "Most tokens in one engine step. Unset: vLLM decides.")
    engine_arg: tuple[str, ...] = flag(
        (), ENGINE, "KEY=VALUE, anything else vLLM's engine takes (repeatable), as in enable_prefix_caching=false."
    )

    mlflow: bool = flag(
        False, OUTPUT, "Log the result to MLflow: to MLFLOW_TRACKING_URI, or else to mlflow.db in the results folder."
    )

    def __post_init__(self) -> None:
        check_types(self)
        share = self.gpu_memory_utilization
        require(share == "auto" or 0 < share <= 1, "--gpu-memory-utilization", "a share above 0, at most 1, or auto")
        for name in (
            "tensor_parallel_size",
            "data_parallel_size",
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
        ):
            value = getattr(self, name)
            require(value in (None, "auto") or value > 0, as_flag(name), "a number above 0")
        for pair in self.engine_arg:
            require(pair.partition("=")[0].isidentifier() and "=" in pair, "--engine-arg", "KEY=VALUE", pair)
        flags = {item.name: item.name for item in fields(self)} | {"dtype": "precision"}
        for name in self.engine_args:
            if name in flags:  # told twice, a report would name the wrong one
                raise UsageError(f"--engine-arg takes what has no flag of its own; {name} has {as_flag(flags[name])}.")

    @property
    def demo(self) -> bool:
        return self.model == "demo"

    @property
    def memory_share(self) -> float:
        return GPU_MEMORY_SHARE if self.gpu_memory_utilization == "auto" else self.gpu_memory_utilization

    @property
    def model_path(self) -> str:
        """What Hugging Face loaders take: a repository name or a folder."""
        return ALIASES.get(self.model, self.model)

    @property
    def engine_args(self) -> dict[str, Any]:
        """`engine_arg` by key, values read as YAML (so 8, true, {"mode": 3} and text all work)."""
        pairs = (pair.partition("=") for pair in self.engine_arg)
        return {key: from_yaml(text) for key, _, text in pairs}

    @property
    def uses_ray(self) -> bool:
        """Whether vLLM takes its GPUs from a Ray cluster: those visible here may be a part of them."""
        return "ray" in map(self.engine_args.get, ("data_parallel_backend", "distributed_executor_backend"))

    @property
    def dummy_weights(self) -> bool:
        return self.load_format == "dummy"


@dataclass(frozen=True, kw_only=True)
class RunConfig(EngineConfig):
    """One run of the benchmark, as asked for."""

    version: Literal["5.1", "6.0", "6.1"] = flag("5.1", BENCHMARK, "MLPerf Inference round: its seeds and rules.")
    category: Literal["datacenter", "edge"] = flag("datacenter", BENCHMARK, "Which sample set and scenarios.")
    scenario: Literal["offline", "server", "interactive", "singlestream"] = flag(
        "offline",
        BENCHMARK,
        "offline: everything at once; server: random arrivals within latency limits; interactive: the same with "
        "tighter limits; singlestream: one request at a time. datacenter takes offline, server, interactive; "
        "edge takes offline, singlestream.",
    )
    mode: Literal["accuracy", "performance", "both"] = flag(
        "both", BENCHMARK, "Check the answers, measure the speed, or one after the other on one engine."
    )
    compliance: Literal["none", "test04", "test06"] = flag(
        "none",
        BENCHMARK,
        "One of MLPerf's compliance tests after the others: test06, are the answers what was reported of them? "
        "test04, is a repeated sample answered from a cache?",
    )
    max_new_tokens: int = flag(rules.MAX_NEW_TOKENS, BENCHMARK, "Longest answer, in tokens. MLPerf: 128.")
    total_sample_count: int | Auto = flag(
        "auto", BENCHMARK, "Samples to use. auto: all of them. Fewer make a short run, not comparable with MLPerf."
    )
    seed: int | None = flag(
        None, BENCHMARK, "Replaces LoadGen's seeds and sets vLLM's. Unset: the round's official seeds."
    )

    dataset: Literal["cnndm"] = flag("cnndm", DATA, "CNN/DailyMail 3.0.0, validation split.")
    dataset_path: Path | None = flag(
        None, DATA, "The MLCommons JSON (cnn_eval.json), or a folder saved by `datasets`. Unset: downloaded."
    )

    server_target_qps: float | Literal["auto", "max"] = flag(
        "auto",
        RATE,
        "Queries per second to send (server, interactive). auto: 0.8 of what Offline reached; max: search for the "
        "highest rate that is VALID, then run at it.",
    )
    offline_expected_qps: float | Auto = flag(
        "auto", RATE, "Samples per second LoadGen shall plan for. auto: measured on the loaded engine first."
    )
    min_duration: float | Auto = flag(
        "auto", RATE, "Least seconds of a performance run. auto: 600 as MLPerf asks, less for a short run."
    )
    batch_size: int | None = flag(
        None, RATE, "Offline in fixed batches of N, one after the other. Unset: continuous batching."
    )
    sort_by_length: bool = flag(False, RATE, "Offline: hand samples to the engine longest prompt first.")

    high_accuracy: bool = flag(False, ACCURACY, "Gate at 99.9 % of the reference scores instead of 99 %.")
    disable_accuracy_gate: bool = flag(False, ACCURACY, "Report the scores, judge nothing.")
    no_exit_on_accuracy_fail: bool = flag(
        False, ACCURACY, "Go on to performance, and exit with 0, when the gate fails."
    )
    exit_on_invalid: bool = flag(
        False, ACCURACY, "Exit with 1 when LoadGen calls the performance run INVALID, or logs errors in it."
    )

    results_dir: Path = flag(Path("results"), OUTPUT, "Where run folders go.")
    keep_all: Literal[0, 1] = flag(1, OUTPUT, "0: delete older run folders once this one is finished.")
    extra_metrics: bool = flag(
        False, OUTPUT, "Also record the machine once a second: GPU load, memory and power, CPU, free memory."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = rules.SCENARIOS[self.category]
        if self.scenario not in allowed:
            raise UsageError(f"--category {self.category} takes --scenario {', '.join(allowed)}; not {self.scenario}.")
        require(self.seed is None or 0 <= self.seed < 2**32, "--seed", "a whole number from 0 to 4294967295")
        for name in MOST:
            value = getattr(self, name)
            known = value in (None, "auto") or (name, value) == ("server_target_qps", "max")
            require(known or 0 < value <= MOST[name], as_flag(name), f"a number above 0, at most {MOST[name]:,}")
        if self.server_target_qps == "max" and (self.mode == "accuracy" or self.scenario not in rules.LIMITS):
            raise UsageError(
                "--server-target-qps max searches for a speed: it takes --scenario server or interactive, and --mode "
                "performance or both."
            )
        if self.scenario != "offline" and (self.batch_size or self.sort_by_length):
            raise UsageError("--batch-size and --sort-by-length are for --scenario offline only.")
        if self.compliance == "test04" and (self.mode == "accuracy" or self.scenario in rules.LIMITS):
            raise UsageError(
                "--compliance test04 compares speeds: it takes --mode performance or both, and --scenario offline or "
                "singlestream, where LoadGen does not set the pace."
            )

    @property
    def streaming(self) -> bool:
        """Whether LoadGen is told of each first token."""
        return self.scenario != "offline"


@dataclass(frozen=True)
class GPU:
    """A visible GPU; memory in bytes."""

    name: str
    memory: int


@dataclass(frozen=True)
class Running:
    """What the engine makes of its arguments and the checkpoint; only the engine itself knows."""

    quantization: str = "none"
    quantized_checkpoint: bool = False  # with scales from whoever made it
    kv_cache_dtype: str = "auto"
    prefix_caching: bool = False
    speculation: str | None = None  # the method
    kv_connector: str | None = None  # what else may hold attention caches, or make them up


@dataclass(frozen=True)
class Plan:
    """A run with every setting known. `notes` says how each `auto` was resolved, for the report."""

    config: RunConfig
    task: rules.Task
    samples: int
    min_duration_s: float
    max_model_len: int
    tensor_parallel_size: int
    data_parallel_size: int
    seeds: rules.Seeds
    reference_model: bool = True  # whether the model has Llama-3.1-8B's shape
    running: Running = Running()  # once the engine is up
    notes: tuple[str, ...] = ()
    target_qps: float | None = None  # Offline: samples/s expected; Server, Interactive: queries/s sent
    expected_latency_ms: float | None = None  # SingleStream

    @property
    def loadgen_model(self) -> str:
        return rules.loadgen_model(self.config.category, self.config.scenario)

    @property
    def full(self) -> bool:
        """Whether the whole sample set is used."""
        return self.samples == self.task.samples

    @property
    def shortcomings(self) -> list[str]:
        """Why the result cannot stand beside MLPerf's; empty for a run of official length on the real model."""
        why = []
        if self.config.demo:
            why.append("the demo model")
        elif not self.reference_model:
            why.append("another model than Llama-3.1-8B")
        if self.config.dummy_weights:
            why.append("dummy weights")
        official = rules.OFFICIAL[self.config.category].samples
        if self.samples < official:
            why.append(f"{self.samples:,} of {official:,} samples")
        if self.min_duration_s < rules.MIN_DURATION_S and self.config.mode != "accuracy":
            why.append(f"at least {self.min_duration_s:g} s instead of {rules.MIN_DURATION_S:g} s")
        if self.config.max_new_tokens != rules.MAX_NEW_TOKENS:
            why.append(f"{self.config.max_new_tokens} new tokens instead of {rules.MAX_NEW_TOKENS}")
        if self.config.seed is not None:
            why.append("seeds of its own")
        if self.running.speculation:
            why.append("speculative decoding")
        if self.running.prefix_caching:
            why.append("prefix caching: LoadGen repeats its samples, and would measure the cache")
        if self.running.kv_connector:
            why.append(f"{self.running.kv_connector}: answers may rest on what was not computed in the test")
        if self.config.disable_accuracy_gate:
            why.append("the accuracy gate is switched off")
        return why

    def noted(self, note: str, **changes: Any) -> "Plan":
        """The same plan with one more `auto` resolved."""
        return replace(self, notes=(*self.notes, note), **changes)


def resolve(
    config: RunConfig, task: rules.Task, gpus: Sequence[GPU], weight_bytes: int, reference_model: bool = True
) -> Plan:
    """Fills in every `auto` but the rates, which only a loaded engine can tell.

    Raises UsageError where the sample count is more than there is, or the GPUs are too few.
    """
    notes = []
    samples = task.samples if config.total_sample_count == "auto" else config.total_sample_count
    if samples > task.samples:
        raise UsageError(f"--total-sample-count {samples}: this data set has {task.samples:,} samples.")
    if config.min_duration != "auto":
        min_duration = config.min_duration
    else:
        min_duration = task.min_duration_s
        if samples < task.samples:
            min_duration = max(1.0, round(task.min_duration_s * samples / task.samples, 1))
            notes.append(
                f"minimum duration: {min_duration:g} s = {task.min_duration_s:g} s x {samples:,} / {task.samples:,}"
            )
    tensor, data = parallelism(config, gpus, weight_bytes)
    if gpus and "auto" in (config.tensor_parallel_size, config.data_parallel_size):
        notes.append(
            f"parallelism: {len(gpus)} visible GPU(s), weights of {weight_bytes / 2**30:.1f} GiB: "
            f"tensor parallel {tensor}, data parallel {data}"
        )
    model_len = config.max_model_len
    if model_len == "auto":
        model_len = 1024 if config.demo else rules.LONGEST_PROMPT + rules.MAX_NEW_TOKENS
    seeds = rules.SEEDS[config.version]
    if config.seed is not None:
        seeds = rules.Seeds(config.seed, config.seed, config.seed)
    given = {"offline": config.offline_expected_qps, "singlestream": "auto"}
    rate = given.get(config.scenario, config.server_target_qps)
    return Plan(
        config,
        task,
        samples,
        min_duration,
        model_len,
        tensor,
        data,
        seeds,
        reference_model,
        notes=tuple(notes),
        target_qps=None if isinstance(rate, str) else rate,
    )


def parallelism(config: EngineConfig, gpus: Sequence[GPU], weight_bytes: int) -> tuple[int, int]:
    """Tensor and data parallel size: split only as far as the weights need, replicate over the rest.

    A model fits when its weights take at most 0.8 of what vLLM may use; the rest is for the attention cache.
    """
    tensor: int | str = config.tensor_parallel_size
    data: int | str = config.data_parallel_size
    if not gpus:
        return (1 if tensor == "auto" else int(tensor)), (1 if data == "auto" else int(data))
    if tensor == "auto":
        available = len(gpus) // (1 if data == "auto" or config.uses_ray else int(data))
        if available == 0:
            raise UsageError(f"--data-parallel-size {data} needs {data} GPUs or more; {len(gpus)} visible.")
        room = 0.8 * config.memory_share * min(gpu.memory for gpu in gpus)
        sizes = [2**n for n in range(10) if 2**n <= available]
        fitting = [size for size in sizes if weight_bytes / size <= room]
        if not fitting:
            raise UsageError(
                f"{config.model} needs {weight_bytes / 2**30:.0f} GiB for its weights; {available} GPU(s) with "
                f"{min(gpu.memory for gpu in gpus) / 2**30:.0f} GiB each do not hold it. Use more GPUs or "
                "--quantization fp8; --tensor-parallel-size 1 tries it all the same."
            )
        tensor = fitting[0]
    tensor = int(tensor)
    data = max(1, len(gpus) // tensor) if data == "auto" else int(data)
    if tensor * data > len(gpus) and not config.uses_ray:
        raise UsageError(
            f"--tensor-parallel-size {tensor} x --data-parallel-size {data} needs {tensor * data} GPUs; "
            f"{len(gpus)} visible."
        )
    return tensor, data


def as_flag(name: str) -> str:
    """max_num_seqs -> --max-num-seqs"""
    return "--" + name.replace("_", "-")


def require(ok: bool, name: str, wanted: str, got: object = None) -> None:
    if not ok:
        raise UsageError(f"{name} takes {wanted}" + (f"; got {got!r}." if got is not None else "."))


def check_types(config: EngineConfig) -> None:
    """Holds each field to its annotation, so that a --config file meets the same checks as the command line."""
    for name, hint in get_type_hints(type(config)).items():
        value = getattr(config, name)
        converted = convert(value, hint)
        if converted is None and not (value is None and type(None) in get_args(hint)):
            raise UsageError(f"{as_flag(name)} takes {describe(hint)}; got {value!r}.")
        object.__setattr__(config, name, converted)


def convert(value: Any, hint: Any) -> Any:
    """`value` as `hint` asks for it, or None where it does not fit."""
    if get_origin(hint) is Literal:
        return next((choice for choice in get_args(hint) if str(choice) == str(value)), None)
    if get_origin(hint) is tuple:
        items = [value] if isinstance(value, str) else value
        fits = isinstance(items, list | tuple) and all(isinstance(item, str) for item in items)
        return tuple(items) if fits else None
    if args := get_args(hint):  # a union: the first member that fits
        return next((got for arg in args if (got := convert(value, arg)) is not None), None)
    if hint is type(None) or value is None:
        return None
    if hint is bool:
        return value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    try:
        if hint is int:
            return int(value) if float(value).is_integer() else None
        if hint is str and not isinstance(value, str | int | float):
            return None
        return hint(value)
    except (TypeError, ValueError, OverflowError):
        return None


def describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(str(choice) for choice in get_args(hint))
    if get_origin(hint) is tuple:
        return "a list of KEY=VALUE"
    if args := get_args(hint):
        return " or ".join(describe(arg) for arg in args if arg is not type(None))
    return {int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}.get(hint, "text")


def load_file(path: Path, kind: type[EngineConfig]) -> dict[str, Any]:
    """The settings of a `--config` YAML file, keys as flags are named, with '-' or '_'. Raises UsageError."""
    import yaml

    data = read_given("--config", path, "YAML", yaml.safe_load, yaml.YAMLError)
    if not isinstance(data, Mapping):
        raise UsageError(f"--config {path}: expected lines of `flag: value`.")
    settings = {str(key).replace("-", "_"): value for key, value in data.items()}
    known = [item.name for item in fields(kind)]
    for key in settings:
        if key not in known:
            raise UsageError(f"--config {path}: unknown setting {key!r}{near(key, known)}")
    return settings


def from_yaml(text: str) -> Any:
    """A value as YAML has it, or the text itself where it is none, or a date."""
    import yaml

    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    return text if isinstance(value, date) else value


def read_given(
    flag: str, path: Path, kind: str, parse: Callable[[str], Any], wrong: type[Exception] = ValueError
) -> Any:
    """The content of a file that the user named with `flag`. Raises UsageError when it cannot be read or parsed."""
    try:
        return parse(path.read_text())
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}.") from None
    except (wrong, ValueError, RecursionError) as error:  # also text that is not UTF-8, or a date that is none
        raise UsageError(f"{flag} {path}: not {kind}: {' '.join(str(error).split()).removesuffix('.')}.") from None


def without_secrets(settings: Any) -> Any:
    """Settings as they may be written down: `***` for what a name says is secret, however deep."""
    if isinstance(settings, list | tuple):
        return [without_secrets(item) for item in settings]
    if isinstance(settings, dict):
        return {
            key: "***" if SECRET.search(str(key)) and value else without_secrets(value)
            for key, value in settings.items()
        }
    return settings


def near(word: str, known: Sequence[str]) -> str:
    """`; did you mean ...?` for a misspelt name, or a full stop."""
    close = get_close_matches(word, known, n=3, cutoff=0.6)
    return f"; did you mean {', '.join(close)}?" if close else "."


def why_not_loaded(config: EngineConfig, error: Exception) -> str:
    """One line for a model that cannot be loaded: no such folder, no access, or no network."""
    text = str(error)
    if Path(config.model_path).is_dir():
        return f"--model {config.model_path}: no usable tokenizer or config in it: {text.splitlines()[0][:200]}"
    if "gated" in text or "401" in text or "403" in text:
        return f"{config.model_path} is gated: accept its licence on huggingface.co, then set HF_TOKEN."
    return (
        f"cannot load {config.model_path}: no such local folder, and the Hugging Face hub did not give it "
        "(network? HF_TOKEN? a misspelt name?). Try --model demo, which needs neither."
    )
