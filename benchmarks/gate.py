"""What the accuracy gate sees, on a real small model: SmolLM2-135M-Instruct summarizes the demo's articles.

    PYTHONPATH=EXTRA python -m benchmarks.smollm2 /tmp/smollm2     # once: benchmarks/smollm2.py says how
    python -m benchmarks.gate /tmp/smollm2 /tmp/gate               # some minutes a row on two cores
    python -m benchmarks.gate /tmp/smollm2 /tmp/gate --table       # the table again, from the runs in the folder

The model's own bf16 answers give the reference scores; each row is a run of `run.py --mode accuracy` with one thing
changed, judged as MLPerf judges: ROUGE at least 0.99 of the reference, gen_len within a tenth of it. With fewer samples
than the set has, a score's 95 % interval decides. The package's weights are 4-bit ones, dequantized: "4 bits" rounds
them once more, to a coarser grid with one scale a tensor.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.start import start
from harness.config import mlperf
from harness.core import csv_files
from harness.core.errors import UsageError
from harness.core.formatting import number
from harness.core.locations import ROOT
from harness.results import accuracy, scoring

SAMPLE_COUNTS = (25, 50, 100, 200, 256)  # the numbers of samples that are judged as a part of a set
SET_SAMPLES = 13_368  # the samples of the set of which they are a part, so that the interval decides
OTHER_TEMPLATE_HEAD = "<|start_header_id|>user<|end_header_id|>\n\n"
OTHER_TEMPLATE_TAIL = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
# The tokens that replace the stop token, by the key that it has in the files of a model.
OTHER_STOP_TOKENS = {"eos_token_id": 0, "eos_token": "<|endoftext|>"}
Record = dict[str, Any]


def keep_model(_folder: Path) -> None:
    """Leave the model's folder as it is."""


def keep_record(record: Record, _tokenizer: Any) -> Record:
    return record


class Variant(NamedTuple):
    """A row of the table: what is changed in the model's folder, and in each record of the data."""

    name: str
    edit_model: Callable[[Path], None] = keep_model
    edit_record: Callable[[Record, Any], Record] = keep_record


def weight_rounding(bits: int) -> Callable[[Path], None]:
    """Return a function that rounds the weights of a model's linear layers to a grid of 2^bits - 1 values.

    The grid is the same for a whole tensor. The function changes the files in the folder that it is given.
    """
    steps = 2 ** (bits - 1) - 1  # on each side of 0

    def round_weights(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        path = folder / "model.safetensors"
        tensors = load_file(path)
        for name, tensor in tensors.items():
            is_linear = tensor.dim() == 2 and "embed" not in name
            if is_linear:
                scale = tensor.float().abs().max() / steps
                rounded = (tensor.float() / scale).round() * scale
                tensors[name] = rounded.to(tensor.dtype)
        save_file(tensors, path, metadata={"format": "pt"})

    return round_weights


def remove_stop_token(folder: Path) -> None:
    """Change a model's files so that the end of a message no longer ends the answer."""
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        path = folder / name
        if not path.exists():
            continue
        content = json.loads(path.read_text())
        for key, other_token in OTHER_STOP_TOKENS.items():
            if key in content:
                content[key] = other_token
        path.write_text(json.dumps(content, indent=2) + "\n")


def prompt_text(record: Record) -> str:
    text: str = record["instruction"].format(input=record["input"])
    return text


def with_prompt(record: Record, tokenizer: Any) -> Record:
    """Return the record with the tokens of its prompt, in the model's chat template."""
    messages = [{"role": "user", "content": prompt_text(record)}]
    tokens = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return record | {"tok_input": tokens}


def with_other_template(record: Record, tokenizer: Any) -> Record:
    """Return the record with its prompt in another model's template, whose headers this model has never seen."""
    text = OTHER_TEMPLATE_HEAD + prompt_text(record) + OTHER_TEMPLATE_TAIL
    return record | {"tok_input": tokenizer.encode(text)}


def with_half_article(record: Record, tokenizer: Any) -> Record:
    words = record["input"].split()
    first_half = " ".join(words[: len(words) // 2])
    return with_prompt(record | {"input": first_half}, tokenizer)


VARIANTS = (
    Variant("bf16, the reference"),
    Variant("bf16, again"),
    Variant("weights rounded to 8 bits", edit_model=weight_rounding(8)),
    Variant("weights rounded to 4 bits", edit_model=weight_rounding(4)),
    Variant("another model's chat template", edit_record=with_other_template),
    Variant("articles cut to their first half", edit_record=with_half_article),
    Variant("no stop token", edit_model=remove_stop_token),
)


def variant_folder(out: Path, place: int) -> Path:
    """Return the folder of a variant's run; `place` is its place in VARIANTS."""
    return out / str(place)


def has_run(folder: Path) -> bool:
    return (folder / "latest").exists()


def run_variant(variant: Variant, model: Path, folder: Path) -> None:
    """Make the variant's model and data in `folder`, and run the accuracy test there. Delete the model at the end."""
    model_copy, data = folder / "model", folder / "cnn_eval.json"
    shutil.rmtree(model_copy, ignore_errors=True)
    shutil.copytree(model, model_copy)
    variant.edit_model(model_copy)
    data.write_text(json.dumps(variant_records(variant, model)))
    flags = {
        "--model": model_copy,
        "--dataset-path": data,
        "--mode": "accuracy",
        "--total-sample-count": 256,
        "--results-dir": folder,
        "--max-model-len": 1024,
    }
    command = [sys.executable, str(ROOT / "run.py"), "--no-exit-on-accuracy-fail"]
    for name, value in flags.items():
        command += [name, str(value)]
    subprocess.run(command, cwd=ROOT, check=True)
    shutil.rmtree(model_copy)


def variant_records(variant: Variant, model: Path) -> list[Record]:
    """Return the demo's records with the prompts of a model, edited as the variant asks."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    records = json.loads((ROOT / "demo" / "cnn_eval.json").read_text())
    prompted = [with_prompt(record, tokenizer) for record in records]
    return [variant.edit_record(record, tokenizer) for record in prompted]


def sample_scores(folder: Path) -> list[scoring.Row]:
    """Return the scores of each sample of a variant's run, in the order of the data."""
    columns = csv_files.read_columns(folder / "latest" / "Accuracy" / "samples.csv", (*mlperf.ROUGE, "characters"))
    rows = []
    for values in zip(*columns.values(), strict=True):
        rows.append(tuple(value or 0.0 for value in values))
    return rows


def task_of(reference: list[scoring.Row], samples: int = SET_SAMPLES) -> mlperf.Task:
    """Return a task whose set has this number of samples, and whose reference scores are those of the rows.

    gen_len is a sum over samples, so it is scaled to the set.
    """
    scores = scoring.totals(reference)
    gen_len = round(scores.gen_len * samples / len(reference))
    return mlperf.Task(samples, replace(scores, gen_len=gen_len))


def table(out: Path) -> Iterator[str]:
    """Yield the lines of a table with a row for each variant that has run."""
    heads = ["", *mlperf.ROUGE, "gen_len", *(f"{count} samples" for count in SAMPLE_COUNTS), "as the whole set"]
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    reference = sample_scores(variant_folder(out, 0))
    for place, variant in enumerate(VARIANTS):
        folder = variant_folder(out, place)
        if has_run(folder):
            rows = sample_scores(folder)
            cells = [variant.name, *score_cells(rows, reference), *verdicts(rows, reference)]
            yield f"| {' | '.join(cells)} |"


def score_cells(rows: list[scoring.Row], reference: list[scoring.Row]) -> list[str]:
    """Return each score of a run, with its difference from the reference's in percent."""
    scores, reference_scores = scoring.totals(rows), scoring.totals(reference)
    cells = []
    for name in (*mlperf.ROUGE, "gen_len"):
        score, reference_score = getattr(scores, name), getattr(reference_scores, name)
        difference = 100 * (score / reference_score - 1)
        cells.append(f"{number(score)} ({difference:+.1f} %)")
    return cells


def verdicts(rows: list[scoring.Row], reference: list[scoring.Row]) -> list[str]:
    """Return the gate's verdict on a run for each of SAMPLE_COUNTS, and as if its samples were the whole set."""
    tasks = [(count, task_of(reference[:count])) for count in SAMPLE_COUNTS]
    tasks.append((len(rows), task_of(reference, len(rows))))
    return [accuracy.worst_verdict(accuracy.judge_scores(rows[:count], task)) for count, task in tasks]


def smallest_losses(out: Path) -> Iterator[str]:
    """Yield a line for each number of samples: the smallest loss of ROUGE-1 that fails the gate.

    With this loss, all of the score's interval is below the bound.
    """
    reference = sample_scores(variant_folder(out, 0))
    for count in SAMPLE_COUNTS:
        rows = reference[:count]
        check = accuracy.judge_scores(rows, task_of(rows))[0]
        assert check.interval is not None
        low, high = check.interval
        half_width = (high - low) / 2
        allowed_loss = 1 - mlperf.GATE_SHARE[False]
        loss = 100 * (allowed_loss + half_width / check.score)
        yield f"{count} samples: a loss of {loss:.1f} % of {check.name} or more"


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("model", type=Path)
    flags.add_argument("out", type=Path)
    flags.add_argument("--table", action="store_true")
    return flags


def main() -> None:
    arguments = parser().parse_args()
    model, out = arguments.model, arguments.out
    if arguments.table and not has_run(variant_folder(out, 0)):
        raise UsageError(f"{out}: no runs in it; leave out --table to make them.")
    if not arguments.table:
        if not (model / "config.json").exists():
            raise UsageError(f"{model}: not a model's folder; benchmarks/smollm2.py makes one.")
        run_missing_variants(model, out)
    print("\n".join((*table(out), "", *smallest_losses(out))))


def run_missing_variants(model: Path, out: Path) -> None:
    """Run each variant that has no run in `out` yet."""
    for place, variant in enumerate(VARIANTS):
        folder = variant_folder(out, place)
        if not has_run(folder):
            folder.mkdir(parents=True, exist_ok=True)
            run_variant(variant, model, folder)


if __name__ == "__main__":
    start(main)
