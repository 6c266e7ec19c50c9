"""Commands and flags that earlier versions had, with what serves now: each ends in one line that names it."""

PROFILE = "is a key of a profile now: --workload FILE.yaml (docs/workloads.md)"

MOVED = {
    "completion": 'was removed; the shell\'s line is: eval "$(_LLAMA31_MLPERF_COMPLETE=source_bash llama31-mlperf)"',
    "crosscheck": "is `python -m benchmarks.crosscheck` now, in a checkout",
    "endpoints": "was removed; MLPerf Endpoints' official client measures it: https://github.com/mlcommons/endpoints",
    "inference": "was removed; `run --endpoint URL --scenario NAME` measures a scenario with LoadGen",
    "inference-build": "was removed; `submission build` makes a submission of LoadGen's runs",
    "quantize": "was removed; docs/quantization.md has the lines of llm-compressor that make an fp8 checkpoint",
    "plan": 'was removed; a curve\'s report.html has the field "peak requests/s", and report.md the formula',
    "--prefix-len": PROFILE,
    "--prefixes": PROFILE,
    "--turns": PROFILE,
    "--compare": "is a flag of `report` alone; mmlu's was removed: two samples.csv hold the answers to compare",
    "--client-processes": "was removed; a client takes half of the cores, at most 8: give it more cores",
    "--disable-accuracy-gate": "was removed; --no-exit-on-accuracy-fail goes on after a FAIL, with exit code 0",
    "--probe-queries": "was removed; several rates are tested with 600 queries each, or as long as the full test",
    "--stagger": "was removed; all requests in flight begin at once",
    "--verbose": "was removed; report.md has every number, summary.json and --json as JSON",
    "--html": "was removed; every report has its report.html beside it",
}
