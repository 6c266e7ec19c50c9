"""The harness behind the commands, a line a file; imports run from the later to the earlier.

every command
    environment   the packages that they need, looked for before they are imported
    errors        exit codes, BenchmarkError, and what turns an error into one line
    rules         what MLPerf fixes, as rows: scenarios, tasks, limits, seeds; the models known by a short name
    values        text and YAML into settings; files that the user named
    secrets       the one place that hides what must not be written
    endpoints     what --endpoint takes, and what does not go with it
    flags         how a flag is declared
    workloads     what is asked: MLPerf's, ours, a file of the user's, given lengths; their flags
    engine_config  config   every flag: name, type, default, help, what it affects
    cli           a config class as a command line; --config files
    system        this machine: GPUs, CPU, versions
    model         the checkpoint: weight bytes, whether it is the reference model, its tokenizer
    engines/      what a benchmark asks of an engine, and who answers
    plan          a run with every setting known
    processes     none left behind; signals; exit
    progress      the live display; startup: what an engine does while it starts
the benchmark
    benchmark     the way of one run
    requests_file  workload_samples   what is asked instead of MLPerf's samples: the file, and samples of it
    samples  sut  loadgen  bench      data, system under test, one LoadGen test, the tests of a run
    loadgen_log  validity             what LoadGen wrote, typed; why it says INVALID
    rates  search                     LoadGen's target rate, measured or searched for
    queueing  probes                  whether a test's queue was steady; a test as the search sees it
    accuracy  compliance              verdicts beside LoadGen's
    watchdog  recorder  others        what is watched while a test runs: silence, machine and engine, other programs
    profiling  traces                 the load once more under the engine's profiler; its traces, typed
results
    facts  summary  metrics           what a run folder holds, typed; each metric declared once
    history  beside                   a line of the history; an endpoint run beside the run in this process
    usage  performance  roofline      what machine and engine did; all that is known of a performance test
    advice                            what to try where a limit broke
    results  rendering                the folder and its history; from logs to summary.json and report.md
    figures  plots  timelines  curves  profile_plot  pages      pictures, Markdown
    compare  compare_plot  tracking   comparison, MLflow
    checkpoints                       quantized checkpoints: what one was made of, what a report calls it
mmlu/  sweep/  submission/            the other commands, a folder each
quantize  calibration                 makes a quantized checkpoint, in an environment of its own
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036
    version = sys.version.split()[0]
    print(f"error: {sys.executable} is Python {version}: 3.11 is the least; use .venv/bin/python.", file=sys.stderr)
    raise SystemExit(2)
