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
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import lm_eval_run, made_up_mmlu
from benchmarks.lm_eval_run import ENGINE_ARGUMENTS, Backend, LmEvalResult, QuestionKey
from benchmarks.start import start
from harness.core.locations import ROOT

DEMO_MODEL = str(ROOT / "demo" / "model")
LETTERS = "ABCD"
TIE_MARGIN = 1e-3  # Log-probabilities that differ by less count as the same in fp32.
ERROR_CHARACTERS = 4000  # of the output of a process that failed
RANDOM_DEVIATION = 0.08  # of random weights; with so large ones, answers vary from question to question


class OwnRun(NamedTuple):
    """A run of mmlu.py: the rows of samples.csv, overall.json, and config.json."""

    rows: list[dict[str, str]]
    overall: dict[str, Any]
    config: dict[str, Any]

    @property
    def seconds(self) -> float:
        """The time from building the prompts to the last answer."""
        return float(self.overall["seconds"] + self.config["prompts_s"])

    @classmethod
    def read(cls, results_folder: Path) -> "OwnRun":
        folder = results_folder / "mmlu" / "latest"
        with (folder / "samples.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        overall = json.loads((folder / "overall.json").read_text())
        return cls(rows, overall, json.loads((folder / "config.json").read_text()))


class AnswerPair(NamedTuple):
    """The answers of mmlu.py and of lm-eval to a question: the log-probabilities of the four letters.

    The probabilities of the letters add up to 1.
    """

    question: QuestionKey
    prediction: str
    own: list[float]
    lm_eval: list[float]

    @property
    def lm_eval_prediction(self) -> str:
        return LETTERS[self.lm_eval.index(max(self.lm_eval))]

    @property
    def is_equal(self) -> bool:
        return self.prediction == self.lm_eval_prediction

    @property
    def is_near_tie(self) -> bool:
        """Tell whether lm-eval's two most probable letters are nearly as probable."""
        first, second, *_others = sorted(self.lm_eval, reverse=True)
        return first - second < TIE_MARGIN

    @property
    def largest_difference(self) -> float:
        return max(abs(own - other) for own, other in zip(self.own, self.lm_eval, strict=True))


def offline_environment() -> dict[str, str]:
    return os.environ | {"HF_HUB_OFFLINE": "1"}


def run_lm_eval(backend: Backend, model: str, shots: int) -> LmEvalResult:
    """Run lm-eval in a process of its own. Ends this program with its message if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        result_file = Path(folder, "result.json")
        command = [sys.executable, "-m", "benchmarks.mmlu", "theirs", str(result_file), "--backend", backend]
        command += ["--path", model, "--shots", str(shots)]
        process = subprocess.run(
            command, cwd=ROOT, env=offline_environment(), capture_output=True, text=True, check=False
        )
        if process.returncode:
            sys.exit(process.stderr[-ERROR_CHARACTERS:])
        return LmEvalResult.read(result_file)


def run_own(model: str, shots: int, results_folder: Path) -> OwnRun:
    """Run mmlu.py on the demo's questions. Ends this program with its output if it fails."""
    command = [sys.executable, "mmlu.py", "--model", model, "--data", "demo/mmlu", "--precision", "fp32"]
    command += ["--max-model-len", str(ENGINE_ARGUMENTS["max_model_len"]), "--num-fewshot", str(shots)]
    command += ["--results-dir", str(results_folder), "--engine-arg", "enforce_eager=true"]
    command += ["--engine-arg", f"kv_cache_memory_bytes={ENGINE_ARGUMENTS['kv_cache_memory_bytes']}"]
    process = subprocess.run(command, cwd=ROOT, env=offline_environment(), capture_output=True, text=True, check=False)
    if process.returncode:
        sys.exit(process.stdout[-ERROR_CHARACTERS:] + process.stderr[-ERROR_CHARACTERS:])
    return OwnRun.read(results_folder)


def make_random_model(folder: Path) -> str:
    """Write a model of the demo's shape and tokenizer with large random weights, and return its folder.

    Its answers vary from question to question.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(DEMO_MODEL), dtype=torch.float32)
    for weights in model.parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=RANDOM_DEVIATION)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(DEMO_MODEL).save_pretrained(folder)
    return str(folder)


def model_folder(model: str, work_folder: Path) -> str:
    """Return the folder of a model: `demo`, `random`, which is made in the work folder, or a folder itself."""
    if model == "random":
        return make_random_model(work_folder / "model")
    return DEMO_MODEL if model == "demo" else model


def answer_pair(row: dict[str, str], result: LmEvalResult) -> AnswerPair:
    """Return both answers to the question of a row of samples.csv."""
    question = QuestionKey(row["subject"], int(row["number"]))
    other = result.log_probabilities[question]
    # lm-eval's probabilities are those among the whole vocabulary, ours those among the four letters.
    log_of_sum = math.log(sum(map(math.exp, other)))
    return AnswerPair(
        question,
        prediction=row["prediction"],
        own=[float(row[f"logprob_{letter}"]) for letter in LETTERS],
        lm_eval=[value - log_of_sum for value in other],
    )


def compare_answers(model: str, shots: int) -> None:
    """Print how many predictions agree, how far the log-probabilities are apart, and every difference."""
    with tempfile.TemporaryDirectory() as folder:
        path = model_folder(model, Path(folder))
        rows = run_own(path, shots, Path(folder)).rows
        result = run_lm_eval("hf", path, shots)
    assert len(result.log_probabilities) == len(rows), (len(result.log_probabilities), len(rows))
    pairs = [answer_pair(row, result) for row in rows]
    predictions = [pair.prediction for pair in pairs]
    predictions_by_letter = {letter: predictions.count(letter) for letter in LETTERS}
    ties = sum(pair.is_near_tie for pair in pairs)
    equal = sum(pair.is_equal for pair in pairs)
    differences = [pair.largest_difference for pair in pairs]
    print(f"{model}, {shots}-shot, {len(rows)} questions: {equal} predictions equal")
    print(f"  chosen: {predictions_by_letter}; nearer than {TIE_MARGIN} to a tie: {ties}")
    print(
        f"  log-probabilities apart: {max(differences):.2g} at most, {statistics.median(differences):.2g} in the middle"
    )
    for pair in pairs:
        if not pair.is_equal:
            name = f"{pair.question.subject} {pair.question.number}"
            print(f"  {name}: {pair.prediction}, lm-eval {pair.lm_eval_prediction}: {pair.lm_eval}")


def compare_speeds(rounds: int, shots: int) -> None:
    """Print the questions/s of mmlu.py and of lm-eval on vLLM in each round, and the median of their ratios."""
    ratios = []
    for _round in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            own = run_own(DEMO_MODEL, shots, Path(folder))
        lm_eval = run_lm_eval("vllm", DEMO_MODEL, shots)
        assert len(lm_eval.log_probabilities) == len(own.rows)
        print_speeds(own, lm_eval, shots)
        ratios.append(lm_eval.seconds / own.seconds)
    print(f"ratio, median of {rounds}: {statistics.median(ratios):.2f}")


def print_speeds(own: OwnRun, lm_eval: LmEvalResult, shots: int) -> None:
    count, hit_percent = len(own.rows), 100 * own.overall["cache_hit_rate"]
    ratio, backend_ratio = lm_eval.seconds / own.seconds, lm_eval.backend_seconds / own.seconds
    print(f"{count} questions, {shots}-shot, {own.overall['prompt_tokens'] / count:.0f} prompt tokens each")
    print(f"  mmlu.py        {speed_text(count, own.seconds)}, prefix cache {hit_percent:.1f} %")
    print(f"  lm-eval, vLLM  {speed_text(count, lm_eval.seconds)}")
    print(f"    its backend  {speed_text(count, lm_eval.backend_seconds)}")
    print(f"  ratio {ratio:.2f}; to its backend alone {backend_ratio:.2f}", flush=True)


def speed_text(questions: int, seconds: float) -> str:
    return f"{seconds:7.1f} s {questions / seconds:7.1f} questions/s"


def measure_on_gpu(folder: Path) -> None:
    """Run mmlu.py on made-up questions with dummy weights, and print its speed. Everything goes to the folder."""
    made_up_mmlu.make(folder)
    command = [sys.executable, "mmlu.py", "--model", str(folder / "model"), "--load-format", "dummy"]
    command += ["--data", str(folder / "mmlu"), "--precision", "bf16", "--gpu-memory-utilization", "0.92"]
    command += ["--results-dir", str(folder / "results")]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    own = OwnRun.read(folder / "results")
    count, seconds, prompts_s = own.overall["n"], own.overall["seconds"], own.config["prompts_s"]
    print(f"{count:,} questions, 5-shot, {own.overall['prompt_tokens'] / count:.0f} prompt tokens each")
    print(f"  asked in {seconds:.1f} s: {count / seconds:,.1f} questions/s; prompts built in {prompts_s:.1f} s")
    print(f"  prefix cache {100 * own.overall['cache_hit_rate']:.1f} % of the prompt tokens")


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
    match arguments.what:
        case "theirs":  # in the process that `run_lm_eval` starts
            lm_eval_run.run(arguments.backend, arguments.path, arguments.shots).write(arguments.out)
        case "answers":
            compare_answers(arguments.model, arguments.shots)
        case "speed":
            compare_speeds(arguments.rounds, arguments.shots)
        case "gpu":
            if not arguments.out:
                parser().error("gpu takes a folder")
            measure_on_gpu(arguments.out)


if __name__ == "__main__":
    start(main)
