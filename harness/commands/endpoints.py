"""MLPerf Endpoints: `llama31-mlperf endpoints {plan,rehearse,describe,run,build,check} --help`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from harness.common import files, processes
from harness.common.errors import DONE, NOT_ACCEPTED, UsageError
from harness.common.system import detect
from harness.config import endpoint as addresses
from harness.config.flags import MOST_AT_ONCE, MOST_S
from harness.mlperf_endpoints import campaign, client, disclosure, official, rehearsal, server, tree
from harness.mlperf_endpoints.campaign import Campaign
from harness.mlperf_endpoints.official import Point
from harness.runs import names
from harness.terminal.command import argument, make_command, make_group, option
from harness.workloads import cnn_dailymail

HIGHEST, PORT = 1024, 8000
CLIENT_HELP = "Path of the official client (install: docs/reference/endpoints.md)."

# The points of a curve.
Lowest = Annotated[int, option("N", "The lowest concurrency, 1 to 32.", flag="--c-min", min=1, max=32)]
Highest = Annotated[int, option("N", "The highest concurrency, above 32.", flag="--c-max", min=33, max=MOST_AT_ONCE)]
Points = Annotated[int, option("N", "The number of points, 7 to 32.", flag="--points", min=7, max=32)]
Seconds = Annotated[
    float | None, option("SECONDS", "Length of each point; unset: what the rules require.", min=0.001, max=MOST_S)
]
Folder = Annotated[Path, argument("DIR", "The folder of the measured points.")]


def plan(c_min: Lowest = 1, c_max: Highest = HIGHEST, points: Points = official.FEWEST + 1) -> int:
    """Show the points, their regions and minimum minutes."""
    print(table(official.points(c_min, c_max, points)))
    return DONE


def table(points: list[Point]) -> str:
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


def rehearse(
    context: typer.Context,
    c_min: Lowest = 1,
    c_max: Highest = HIGHEST,
    points: Points = official.FEWEST + 1,
    run: Annotated[
        str | None, option("RUN", "Judge this finished run instead: a path, latest, an id or a label.")
    ] = None,
    seconds: Seconds = None,
    results_dir: Annotated[Path, option("PATH", "Folder of the runs.")] = Path("results"),
) -> int:
    """Measure this runner's curve and list the rules it would break; other flags go to run.py."""
    if run and context.args:
        raise UsageError(f"--run judges a finished run: remove {context.args[0]}.")
    run = run or rehearsal.run_curve(official.points(c_min, c_max, points), seconds, results_dir, context.args)
    print("\n".join(rehearsal.judgement(names.find_run([run], results_dir, "one is judged at a time."))))
    return DONE


def describe(
    out: Annotated[Path, option("FILE.yaml", "Output file.")] = Path("endpoints-system.yaml"),
    framework: Annotated[str, option("NAME", "The server's name and version.")] = "vLLM",
) -> int:
    """Draft a description of this machine, for you to complete."""
    if out.exists():
        raise UsageError(f"--out {out} already exists and may have been edited: choose another path.")
    files.write_text(out, disclosure.draft(detect(), framework, official.seeds().cohorts[-1]))
    print(f"{out}: complete its empty fields.")
    return DONE


def measure(
    folder: Folder,
    model: Annotated[str, option("MODEL", "Model name on the server, or the path or name to serve.")],
    c_min: Lowest = 1,
    c_max: Highest = HIGHEST,
    points: Points = official.FEWEST + 1,
    endpoint: Annotated[
        list[str] | None, option("URL", "The address of a running server [vLLM's, started here].")
    ] = None,
    port: Annotated[int, option("N", "The port of the server that is started here.", min=1, max=65535)] = PORT,
    serve: Annotated[str, option("FLAGS", "More flags for that server, as one quoted word.")] = "",
    tokenizer: Annotated[str | None, option("MODEL", "Tokenizer that counts tokens [--model].")] = None,
    dataset_path: Annotated[Path | None, option("FILE", "MLPerf's cnn_eval.json [the client's own].")] = None,
    program: Annotated[str, option("PROGRAM", CLIENT_HELP, flag="--client")] = "inference-endpoint",
    seconds: Seconds = None,
    seed_set: Annotated[str | None, option("ID", "A published set of seeds [the last].")] = None,
) -> int:
    """Run the official client at each point; resumes what was begun."""
    processes.install_signal_handlers()  # the client does not outlive this command
    if endpoint and serve:
        raise UsageError("--serve applies to a server that is started here: remove --endpoint.")
    if (place := tokenizer or model).startswith(("/", ".", "~")) and not Path(place).is_dir():
        raise UsageError(f"--tokenizer {place}: no such folder; the client counts tokens with it.")
    try:
        words = shlex.split(serve)
    except ValueError as error:
        raise UsageError(f"--serve {serve!r:.60}: {error}.") from None
    seeds, articles = official.seeds(seed_set), cnn_dailymail.read_articles(dataset_path) if dataset_path else []
    given = Campaign(
        endpoints=[url.removesuffix("/v1") for url in addresses.check_addresses(endpoint or [server.address(port)])],
        server="" if endpoint else shlex.join(server.command(model, port, folder, words)),
        model=model,
        tokenizer=tokenizer or model,
        dataset=str(dataset_path.resolve()) if dataset_path else None,
        samples=len(articles) or official.SAMPLES,
        client=client.program(program),
        c_min=c_min,
        c_max=c_max,
        points=points,
        seconds=seconds,
        seed_set=seeds.id,
    )
    campaign.open_campaign(folder, given)
    with files.lock_folder(folder, "this campaign"):
        client.measure_levels(folder, given, seeds, articles, port)
    return DONE


def build(
    folder: Folder,
    system: Annotated[Path, option("FILE.yaml", "The completed file from `describe`.")],
    out: Annotated[Path, option("DIR", "A new folder for the submission.")],
) -> int:
    """Build a submission from the measured points."""
    found = files.read(folder / campaign.FILE, Campaign)
    about = disclosure.read(system)
    articles = cnn_dailymail.read_articles(Path(found.dataset)) if found.dataset else []
    base = tree.build(folder, found, about, official.seeds(found.seed_set), articles, out)
    print(f"{base}: {len(found.levels)} points; `endpoints check {base}` is next")
    return DONE


def check(folder: Annotated[Path, argument("DIR", "The submission.")]) -> int:
    """Run the official checker on a submission."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder.")
    found = official.check(folder)
    shown = [each for each in found if each.severity != "info"]
    for each in sorted(shown, key=lambda each: each.severity):
        print(f"{each.severity.value}: {each.rule}: {each.message}")
    errors = sum(each.severity == "error" for each in found)
    passed = len(found) - len(shown)
    verdict = f"not accepted: {errors} errors" if errors else "accepted, no error"
    print(f"{folder}: {passed} checks passed, {len(shown) - errors} warnings; {verdict}")
    return NOT_ACCEPTED if errors else DONE


command = make_group(
    "MLPerf Endpoints v1.0: from the points of a curve to a checked submission.",
    {
        "plan": make_command(plan),
        "rehearse": make_command(rehearse, hands_on=True),
        "describe": make_command(describe),
        "run": make_command(measure),
        "build": make_command(build),
        "check": make_command(check),
    },
)
