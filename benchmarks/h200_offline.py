"""Offline through LoadGen beside the bare engine, on one GPU: does the harness cost anything?

    python -m benchmarks.h200_offline OUT [--samples 3000] [--quantization fp8] [--skip c]

(a) vLLM's `LLM.generate` on all prompts at once, (b) `run.py` with the same engine settings, (c) `run.py
--batch-size 16`, the reference implementation's way. Llama-3.1-8B's shape with random weights; each in its own process.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import random_llama

ROOT = Path(__file__).parent.parent
FORMATS = {"none": "bf16", "fp8": "fp8-static"}
SEQUENCES, BATCHED_TOKENS, CONTEXT, ANSWER = 1024, 16384, 2668, 128


def bare(folder: Path, samples: int, quantization: str) -> float:
    """Tokens per second of `LLM.generate`, start-up left out."""
    from vllm import LLM, SamplingParams

    prompts = [record["tok_input"] for record in json.loads((folder / "cnn_eval.json").read_text())[:samples]]
    llm = LLM(
        model=str(folder / "model"),
        dtype="bfloat16",
        kv_cache_dtype="fp8" if quantization == "fp8" else "auto",
        max_model_len=CONTEXT,
        max_num_seqs=SEQUENCES,
        max_num_batched_tokens=BATCHED_TOKENS,
        enable_prefix_caching=False,
    )
    params = SamplingParams(temperature=0, max_tokens=ANSWER, min_tokens=1, detokenize=False)
    llm.generate([{"prompt_token_ids": prompt} for prompt in prompts[:64]], params, use_tqdm=False)
    begin = time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    seconds = time.perf_counter() - begin
    return sum(len(output.outputs[0].token_ids) for output in outputs) / seconds


def harness(folder: Path, samples: int, quantization: str, *more: str) -> float:
    """Tokens per second of an Offline run on the same prompts, each issued once; LoadGen's number."""
    results = folder / "results"
    command = [sys.executable, "run.py", "--model", str(folder / "model")]
    command += ["--dataset-path", str(folder / "cnn_eval.json"), "--mode", "performance"]
    command += ["--total-sample-count", str(samples), "--offline-expected-qps", "0.001", "--min-duration", "1"]
    command += ["--max-num-seqs", str(SEQUENCES), "--max-num-batched-tokens", str(BATCHED_TOKENS)]
    command += ["--kv-cache-dtype", "fp8" if quantization == "fp8" else "auto"]
    command += ["--results-dir", str(results), *more]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    summary = json.loads((results / "latest" / "summary.json").read_text())
    return float(summary["run"]["performance"]["tokens_per_sec"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--quantization", choices=("none", "fp8"), default="none")
    parser.add_argument("--skip", choices=("a", "b", "c"), nargs="*", default=[])
    parser.add_argument("--only-bare", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder, samples, quantization = arguments.out, arguments.samples, arguments.quantization
    if arguments.only_bare:
        print(json.dumps(bare(folder, samples, quantization)))
        return
    random_llama.make(folder, samples, FORMATS[quantization])
    ways = {
        "a": ("LLM.generate", lambda: run_bare(folder, samples, quantization)),
        "b": ("run.py, Offline", lambda: harness(folder, samples, quantization)),
        "c": ("run.py --batch-size 16", lambda: harness(folder, samples, quantization, "--batch-size", "16")),
    }
    found = {}
    for key, (name, measure) in ways.items():
        if key not in arguments.skip:
            found[key] = measure()
            print(f"{key} {name:24} {found[key]:9,.0f} tokens/s", flush=True)
    for one, other in (("b", "a"), ("b", "c")):
        if one in found and other in found:
            print(f"{one}/{other} {found[one] / found[other]:.3f}")


def run_bare(folder: Path, samples: int, quantization: str) -> float:
    command = [sys.executable, "-m", "benchmarks.h200_offline", str(folder), "--only-bare"]
    command += ["--samples", str(samples), "--quantization", quantization]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return float(output.strip().splitlines()[-1])


if __name__ == "__main__":
    main()
