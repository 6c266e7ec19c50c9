"""MLPerf Endpoints: `llama31-mlperf endpoints {plan,rehearse,describe,run,build,check} --help`."""

import harness.common.environment  # noqa: F401

# isort: split
import argparse
import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.common import files, processes
from harness.common.errors import DONE, NOT_ACCEPTED, Arguments, UsageError, ends_in_one_line
from harness.common.markdown import number
from harness.common.paths import ROOT
from harness.common.system import System, facts
from harness.config import mlperf
from harness.config.cli import prepare
from harness.endpoints import campaign, client, disclosure, inference, official, rehearsal, server, tree
from harness.endpoints.campaign import Campaign, Target
from harness.endpoints.official import Point
from harness.results.summary import Summary
from harness.runs import names
from harness.runs.folder import facts_of
from harness.submission import description
from harness.workloads import cnn_dailymail
from harness.workloads.cnn_dailymail import Article

HIGHEST, PORT = 1024, 8000
DEMO = "demo"


def main() -> int:
    prepare()
    flags, rest = parser().parse_known_args()
    if rest and flags.command is not rehearse:
        parser().error(f"unrecognized arguments: {' '.join(rest)}")
    with ends_in_one_line():
        flags.rest = rest
        code: int = flags.command(flags)
        return code
    return DONE


def parser() -> argparse.ArgumentParser:
    top = Arguments(prog="llama31-mlperf endpoints", description="MLPerf Endpoints v1.0 from its points to its check.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, about: str, does: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        found: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about)
        found.set_defaults(command=does)
        return found

    add = command("plan", "the points, their regions and least minutes", plan)
    curve(add)
    add = command("rehearse", "this runner's curve, and the rules it would break; other flags go to run.py", rehearse)
    curve(add)
    add.add_argument("--run", metavar="RUN", help="judge this finished run instead: a path, latest, an id or a label")
    add.add_argument("--seconds", type=float, help="of each level; default: what the rules ask for")
    add.add_argument("--results-dir", type=Path, default=Path("results"))
    add = command("describe", "a description of this machine for the submission, to be completed", describe)
    add.add_argument("--out", type=Path, default=Path("endpoints-system.yaml"), metavar="FILE.yaml")
    add.add_argument("--framework", default="vLLM", help="the server's name and version")
    add = command("run", "the official client at each point; what is measured already stays", measure)
    add.add_argument("folder", type=Path, metavar="DIR")
    curve(add)
    asking(add)
    add.add_argument("--seconds", type=float, help="of each point, for a rehearsal; default: what the rules ask for")
    add.add_argument("--seed-set", metavar="ID", help="a published one [the last]")
    add = command("inference", "the official client in a scenario of MLPerf Inference v6.1", measure_scenario)
    add.add_argument("folder", type=Path, metavar="DIR")
    add.add_argument("--scenario", choices=list(inference.LOADS), required=True)
    add.add_argument("--target-qps", type=float, required=True, metavar="X", help="sent; Offline: expected")
    asking(add)
    add.add_argument("--seconds", type=float, default=mlperf.MIN_DURATION_S, help="at least; MLPerf's 600 unless given")
    add = command("inference-build", "those scenarios as a submission; `submission check` is next", build_inference)
    add.add_argument("folder", type=Path, metavar="DIR")
    add.add_argument("--system", type=Path, required=True, metavar="SYSTEM.json", help="of `submission system`")
    add.add_argument("--submitter", required=True, metavar="NAME")
    add.add_argument("--division", choices=("open", "closed"), default="open")
    add.add_argument("--out", type=Path, required=True, metavar="DIR")
    add = command("build", "the measured points as a submission", build)
    add.add_argument("folder", type=Path, metavar="DIR")
    add.add_argument("--system", type=Path, required=True, metavar="FILE.yaml", help="of `describe`, completed")
    add.add_argument("--out", type=Path, required=True, metavar="DIR")
    add = command("check", "the official checker on a submission", check)
    add.add_argument("folder", type=Path, metavar="DIR")
    return top


def curve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--c-min", type=int, default=1, metavar="N", help="lowest concurrency, 1 to 32 [1]")
    parser.add_argument("--c-max", type=int, default=HIGHEST, metavar="N", help=f"highest, above 32 [{HIGHEST}]")
    parser.add_argument("--points", type=int, default=official.FEWEST + 1, metavar="N", help="7 to 32 [8]")


def asking(parser: argparse.ArgumentParser) -> None:
    """Whom the client asks, and what."""
    parser.add_argument("--endpoint", action="append", metavar="URL", help="of a running server [vLLM's, started here]")
    parser.add_argument("--port", type=int, default=PORT, metavar="N", help=f"of the server started here [{PORT}]")
    parser.add_argument("--serve", default="", metavar="FLAGS", help="further flags of that server, as one word")
    parser.add_argument("--model", required=True, help="as the server names it; of one started here, a path or a name")
    parser.add_argument("--tokenizer", help="a folder or a name, for token counts [--model]")
    parser.add_argument("--dataset-path", type=Path, metavar="FILE", help="MLPerf's cnn_eval.json [the client's own]")
    parser.add_argument("--client", default="inference-endpoint", metavar="PROGRAM", help=client.INSTALL)


def target(flags: argparse.Namespace, articles: Sequence[Article]) -> dict[str, Any]:
    """What the flags of `asking` say, by the fields of Target."""
    if flags.endpoint and flags.serve:
        raise UsageError("--serve is for a server that is started here: leave out --endpoint.")
    words = [] if flags.endpoint else server.command(flags.model, flags.port, flags.folder, shlex.split(flags.serve))
    return {
        "endpoints": [url.rstrip("/").removesuffix("/v1") for url in flags.endpoint or [server.address(flags.port)]],
        "server": shlex.join(words),
        "model": flags.model,
        "tokenizer": flags.tokenizer or flags.model,
        "dataset": str(flags.dataset_path.resolve()) if flags.dataset_path else None,
        "samples": len(articles) or official.SAMPLES,
        "client": client.program(flags.client),
    }


def plan(flags: argparse.Namespace) -> int:
    points = official.points(flags.c_min, flags.c_max, flags.points)
    print(table(points))
    return DONE


def table(points: list[Point]) -> str:
    """The points as people read them."""
    rows = ["concurrency  region            at least  accuracy"]
    for point in points:
        gate = "yes" if point.accuracy else ""
        rows.append(f"{point.concurrency:>11,}  {point.region:16}  {point.seconds / 60:>4.0f} min  {gate}".rstrip())
    minutes = sum(point.seconds for point in points) / 60
    scored = sum(point.accuracy for point in points)
    rows += [
        "",
        f"{minutes:,.0f} minutes at least, more where the {official.SAMPLES:,} requests of a point take longer;",
        f"{len(points) + scored} x {official.SAMPLES:,} requests or more, at most 128 output tokens each; "
        f"{points[-1].concurrency:,} is the Offline result by election.",
    ]
    return "\n".join(rows)


def rehearse(flags: argparse.Namespace) -> int:
    run = flags.run or curve_of_ours(flags)
    (folder, *_) = names.named(run, flags.results_dir)
    summary = files.read(folder / "summary.json", Summary)
    levels = rehearsal.tested(summary)
    print(
        f"{folder}: MLPerf Endpoints takes the official client's measurements alone. Of this curve its rules would say:"
    )
    points = rehearsal.placed(levels)
    tests = rehearsal.measured(folder, levels, points, facts_of(folder).plan.samples)
    found = list(rehearsal.breaches(summary, levels, points, tests))
    print("\n".join(f"  {line}" for line in found) or "  nothing")
    for probe, test in zip(levels, tests, strict=True):
        user = number(probe.tokens_per_sec_per_user) if probe.tokens_per_sec_per_user else "unknown"
        print(
            f"  r{probe.concurrency}: system_tps {number(probe.tokens_per_sec or 0.0)}, tps_per_user {user}, "
            f"TTFT p90 {number(probe.ttft_p90 or 0.0)} ms"
        )
        if test.steady.tokens_per_sec and test.steady.tpot_p90:
            print(
                f"    steady: system_tps {number(test.steady.tokens_per_sec)}, tps_per_user "
                f"{number(1000 / test.steady.tpot_p90)}, TTFT p90 {number(test.steady.ttft_p90 or 0.0)} ms "
                f"({test.steady.told})"
            )
    return DONE


def curve_of_ours(flags: argparse.Namespace) -> str:
    """Runs the benchmark at the points; the finished run."""
    points = official.points(flags.c_min, flags.c_max, flags.points)
    seconds = flags.seconds or max(point.seconds for point in points)
    levels = ",".join(str(point.concurrency) for point in points)
    command = [sys.executable, "-m", "harness", "run", "--concurrency", levels, "--min-duration", f"{seconds:g}"]
    command += ["--results-dir", str(flags.results_dir), *flags.rest]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    ended = subprocess.run(command, env=environment)
    if ended.returncode:
        raise SystemExit(ended.returncode)
    return "latest"


def describe(flags: argparse.Namespace) -> int:
    if flags.out.exists():
        raise UsageError(f"--out {flags.out} is already there, maybe completed by hand: choose another.")
    machine = System.model_validate(facts())
    files.write_text(flags.out, disclosure.drafted(machine, flags.framework, official.seeds().cohorts[-1]))
    print(f"{flags.out}: complete what is empty in it.")
    return DONE


def measure(flags: argparse.Namespace) -> int:
    processes.install_signal_handlers()  # the client does not outlive this command
    seeds = official.seeds(flags.seed_set)
    articles = stored(flags.dataset_path)
    given = Campaign(
        **target(flags, articles),
        c_min=flags.c_min,
        c_max=flags.c_max,
        points=flags.points,
        seconds=flags.seconds,
        seed_set=seeds.name,
    )
    points = given.levels
    campaign.opened(flags.folder, given)
    prompts = prompts_in(flags.folder, articles)
    done = {point: found for point in points if (found := measured_before(flags.folder, given, point))}
    with served(flags, given) if len(done) < len(points) else contextlib.nullcontext():
        for place, point in enumerate(points, 1):
            shown = f"{place} of {len(points)}: concurrency {point.concurrency:,}"
            if point not in done:
                print(f"{shown}: at least {given.length(point):,.0f} s", flush=True)
                folder = campaign.folder_of(flags.folder, point)
                done[point] = client.measure(given, point, seeds, folder, prompts)
            left = done[point]
            failed = f", {left.n_samples_failed:,} FAILED" if left.n_samples_failed else ""
            print(f"{shown}: {left.n_samples_completed:,} requests in {left.seconds:,.1f} s{failed}", flush=True)
    return DONE


def measured_before(root: Path, given: Campaign, point: Point) -> client.Measured | None:
    """What an earlier command measured at a point, if it is long enough."""
    left = client.left_in(campaign.folder_of(root, point))
    return left if left and client.long_enough(given, point, left) else None


def served(flags: argparse.Namespace, given: Target) -> contextlib.AbstractContextManager[None]:
    """The server of a campaign for as long as it is measured, if it has one of its own."""
    if not given.server:
        return contextlib.nullcontext()
    print(f"starting vLLM's server at {given.endpoints[0]}: {flags.folder / server.LOG}", flush=True)
    return server.serving(shlex.split(given.server), flags.port, flags.folder)


def measure_scenario(flags: argparse.Namespace) -> int:
    processes.install_signal_handlers()
    if not (flags.target_qps > 0 and flags.seconds > 0):
        raise UsageError("--target-qps and --seconds take numbers above 0.")
    articles = stored(flags.dataset_path)
    rates = {"scenario": flags.scenario, "target_qps": flags.target_qps, "seconds": flags.seconds}
    test = inference.ScenarioTest(**target(flags, articles), **rates)
    flags.folder.mkdir(parents=True, exist_ok=True)
    with served(flags, test):
        print(f"{flags.scenario}: at least {test.seconds:,.0f} s", flush=True)
        left = inference.measure(test, flags.folder, prompts_in(flags.folder, articles))
    print(f"{flags.scenario}: {left.n_samples_completed:,} requests in {left.seconds:,.1f} s, {left.rate:.4g} a second")
    return DONE


def build_inference(flags: argparse.Namespace) -> int:
    tests = inference.measured_in(flags.folder)
    about = description.completed(description.read(flags.system), flags.submitter, flags.division, ["datacenter"])
    articles = stored(Path(tests[0].dataset) if tests[0].dataset else None)
    base = inference.build(flags.folder, tests, articles, about, flags.system.stem, flags.out)
    print(
        f"{base}: {', '.join(test.load.folder for test in tests)}; `submission check {flags.out} --version 6.1` is next"
    )
    return DONE


def prompts_in(folder: Path, articles: Sequence[Article]) -> Path | None:
    """The file of the prompts, left in the folder; None where the client has its own."""
    if not articles:
        return None
    path = (folder / "prompts.jsonl").resolve()
    client.write_prompts(path, articles)
    return path


def stored(path: Path | None) -> list[Article]:
    return cnn_dailymail.stored(path, "--dataset-path") if path else []


def build(flags: argparse.Namespace) -> int:
    found = campaign.read(flags.folder)
    about = disclosure.read(flags.system)
    articles = stored(Path(found.dataset) if found.dataset else None)
    base = tree.build(flags.folder, found, about, official.seeds(found.seed_set), articles, flags.out)
    print(f"{base}: {len(found.levels)} points; `endpoints check {base}` is next")
    return DONE


def check(flags: argparse.Namespace) -> int:
    if not flags.folder.is_dir():
        raise UsageError(f"{flags.folder}: no such folder.")
    found = official.check(flags.folder)
    shown = [each for each in found if each.severity != "info"]
    for each in sorted(shown, key=lambda each: each.severity):
        print(f"{each.severity}: {each.rule}: {each.text}")
    errors = sum(each.severity == "error" for each in found)
    passed = len(found) - len(shown)
    verdict = f"not accepted: {errors} errors" if errors else "accepted, no error"
    print(f"{flags.folder}: {passed} checks passed, {len(shown) - errors} warnings; {verdict}")
    return NOT_ACCEPTED if errors else DONE


if __name__ == "__main__":
    sys.exit(main())
