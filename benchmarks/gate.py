"""What the accuracy gate sees, on a real small model: SmolLM2-135M-Instruct summarizes the demo's articles.

    PYTHONPATH=EXTRA python -m benchmarks.smollm2 /tmp/smollm2     # once: benchmarks/smollm2.py says how
    python -m benchmarks.gate /tmp/smollm2 /tmp/gate               # some minutes a row on two cores
    python -m benchmarks.gate /tmp/smollm2 /tmp/gate --table       # the table again, from the runs that are there

The model's own bf16 answers give the reference scores; each row is a run of `run.py --mode accuracy` with one thing
changed, judged as MLPerf judges: ROUGE at least 0.99 of the reference, gen_len within a tenth of it. With fewer samples
than the set has, a score's 95 % interval decides. The package's weights are 4-bit ones, dequantized: "4 bits" rounds
them once more, to a coarser grid of one scale a tensor.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.start import start
from harness.config import mlperf
from harness.core import csv_files
from harness.core.errors import UsageError
from harness.core.formatting import number
from harness.core.locations import ROOT
from harness.results import accuracy, scoring

SIZES = (25, 50, 100, 200, 256)  # samples that are judged
SET = 13_368  # of which those count as a part, so that the interval decides
Record = dict[str, Any]


class Variant(NamedTuple):
    """A row of the table: what is changed in the model's folder, and in each record of the data."""

    name: str
    model: Callable[[Path], None] = lambda folder: None
    record: Callable[[Record, Any], Record] = lambda record, tokenizer: record


def rounded(bits: int) -> Callable[[Path], None]:
    """Weights of the linear layers on a grid of 2^bits - 1 steps, the same for a whole tensor."""

    def edit(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        path, steps = folder / "model.safetensors", 2 ** (bits - 1) - 1
        tensors = load_file(path)
        for name, tensor in tensors.items():
            if tensor.dim() == 2 and "embed" not in name:
                scale = tensor.float().abs().max() / steps
                tensors[name] = ((tensor.float() / scale).round() * scale).to(tensor.dtype)
        save_file(tensors, path, metadata={"format": "pt"})

    return edit


def without_stop(folder: Path) -> None:
    """The end of a message is no longer the end of the answer."""
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        path = folder / name
        content = json.loads(path.read_text()) if path.exists() else {}
        for key, other in (("eos_token_id", 0), ("eos_token", "<|endoftext|>")):
            content |= {key: other} if key in content else {}
        if path.exists():
            path.write_text(json.dumps(content, indent=2) + "\n")


def prompt(record: Record, tokenizer: Any) -> Record:
    """The record with the prompt's tokens, as the model's chat template has it."""
    text = record["instruction"].format(input=record["input"])
    message = [{"role": "user", "content": text}]
    return record | {"tok_input": tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False)}


def plain(record: Record, tokenizer: Any) -> Record:
    """Another model's template: headers that this one has never seen."""
    text = record["instruction"].format(input=record["input"])
    head = "<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    return record | {"tok_input": tokenizer.encode(text.join(head))}


def truncated(record: Record, tokenizer: Any) -> Record:
    words = record["input"].split()
    return prompt(record | {"input": " ".join(words[: len(words) // 2])}, tokenizer)


VARIANTS = (
    Variant("bf16, the reference"),
    Variant("bf16, again"),
    Variant("weights rounded to 8 bits", rounded(8)),
    Variant("weights rounded to 4 bits", rounded(4)),
    Variant("another model's chat template", record=plain),
    Variant("articles cut to their first half", record=truncated),
    Variant("no stop token", without_stop),
)


def run(variant: Variant, model: Path, out: Path) -> None:
    """Makes the variant's model and data, and runs the accuracy test; leaves the run's folder in `out`."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    records = json.loads((ROOT / "demo" / "cnn_eval.json").read_text())
    edited = [prompt(record, tokenizer) for record in records]
    edited = [variant.record(record, tokenizer) for record in edited]
    folder = out / "model"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(model, folder)
    variant.model(folder)
    (out / "cnn_eval.json").write_text(json.dumps(edited))
    command = [sys.executable, ROOT / "run.py", "--model", folder, "--dataset-path", out / "cnn_eval.json"]
    command += ["--mode", "accuracy", "--total-sample-count", "256", "--results-dir", out, "--max-model-len", "1024"]
    command += ["--no-exit-on-accuracy-fail"]
    subprocess.run([str(word) for word in command], cwd=ROOT, check=True)
    shutil.rmtree(folder)


def rows_of(out: Path) -> list[scoring.Row]:
    """The scores of each sample of a run, in the order of the data."""
    columns = csv_files.read_columns(out / "latest" / "Accuracy" / "samples.csv", (*mlperf.ROUGE, "characters"))
    return [tuple(value or 0.0 for value in row) for row in zip(*columns.values(), strict=True)]


def task_of(rows: list[scoring.Row], samples: int = SET) -> mlperf.Task:
    """The scores of the reference rows as those of a whole set of so many samples."""
    scores = scoring.totals(rows)
    return mlperf.Task(samples, replace(scores, gen_len=round(scores.gen_len * samples / len(rows))))


def table(out: Path) -> Iterator[str]:
    """A row a variant: its scores against the reference's, and the verdict by the number of samples."""
    reference = rows_of(out / "0")
    heads = ["", *mlperf.ROUGE, "gen_len", *(f"{size} samples" for size in SIZES), "as the whole set"]
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for place, variant in enumerate(VARIANTS):
        if not (out / str(place) / "latest").exists():
            continue
        rows = rows_of(out / str(place))
        mine, theirs = asdict(scoring.totals(rows)), asdict(scoring.totals(reference))
        cells = [
            f"{number(mine[name])} ({100 * (mine[name] / theirs[name] - 1):+.1f} %)"
            for name in (*mlperf.ROUGE, "gen_len")
        ]
        tasks = [(size, task_of(reference[:size])) for size in SIZES] + [(len(rows), task_of(reference, len(rows)))]
        verdicts = [accuracy.worst_verdict(accuracy.judge_scores(rows[:size], task)) for size, task in tasks]
        yield f"| {' | '.join((variant.name, *cells, *verdicts))} |"


def smallest_loss(out: Path) -> Iterator[str]:
    """By the number of samples, the loss of ROUGE-1 from which on all of the interval is under the bound."""
    reference = rows_of(out / "0")
    for size in SIZES:
        check = accuracy.judge_scores(reference[:size], task_of(reference[:size]))[0]
        assert check.interval
        half = (check.interval[1] - check.interval[0]) / 2
        loss = 100 * (1 - mlperf.GATE_SHARE[False] + half / check.score)
        yield f"{size} samples: a loss of {loss:.1f} % of {check.name} or more"


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("model", type=Path)
    flags.add_argument("out", type=Path)
    flags.add_argument("--table", action="store_true")
    return flags


def main() -> None:
    given = parser().parse_args()
    if not given.table and not (given.model / "config.json").exists():
        raise UsageError(f"{given.model}: not a model's folder; benchmarks/smollm2.py makes one.")
    if given.table and not (given.out / "0" / "latest").exists():
        raise UsageError(f"{given.out}: no runs in it; leave out --table to make them.")
    for place, variant in enumerate(VARIANTS if not given.table else ()):
        out = given.out / str(place)
        if not (out / "latest").exists():
            out.mkdir(parents=True, exist_ok=True)
            run(variant, given.model, out)
    print("\n".join((*table(given.out), "", *smallest_loss(given.out))))


if __name__ == "__main__":
    start(main)
