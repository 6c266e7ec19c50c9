"""Commands, flags and modules that earlier versions had, with what serves now: each ends in one line that names it."""

PROFILE = "is a key of a profile now: --workload FILE.yaml (docs/workloads.md)"

MOVED = {
    "completion": 'was removed; the shell\'s line is: eval "$(_LLAMA31_MLPERF_COMPLETE=source_bash llama31-mlperf)"',
    "crosscheck": "is `python -m benchmarks.crosscheck` now, in a checkout",
    "endpoints": "was removed; MLPerf Endpoints' official client measures it: https://github.com/mlcommons/endpoints",
    "inference": "was removed; `run --endpoint URL --scenario NAME` measures a scenario with LoadGen",
    "inference-build": "was removed; `submission build` makes a submission of LoadGen's runs",
    "quantize": "was removed; docs/quantization.md has the lines of llm-compressor that make an fp8 checkpoint",
    "--prefix-len": PROFILE,
    "--prefixes": PROFILE,
    "--turns": PROFILE,
    "--compare": "is a flag of `report` alone; mmlu's was removed: two samples.csv hold the answers to compare",
    "--html": "was removed; every report has its report.html beside it",
}
MODULES = {  # `python -m harness.OLD` -> what is typed now
    "accuracy": "python -m harness accuracy",
    "submission": "python -m harness submission",
    "summary": "python -m docs.summary_schema",
    "tracking": "python -m harness mlflow",
    "workload_samples": "python -m harness workloads",
}
