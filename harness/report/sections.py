"""A run's report, section by section: what came out, what limits it, its numbers, and how to do it again."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from harness.config.patterns import ClosedLoop
from harness.core.document import Block, Code, Picture, Section
from harness.core.formatting import cell, listed, number, percent, plural
from harness.core.markdown import Finished, code
from harness.core.tables import Table, TableColumn
from harness.engines import server_metrics
from harness.report import answer, load_view
from harness.results import advice, metrics, telemetry
from harness.results.outcome import Outcome
from harness.results.records import RunFacts
from harness.results.summary import Summary

Rows = Mapping[str, str]  # of a table of two columns; empty ones are left out


class RunReport(NamedTuple):
    """What the sections are made of."""

    summary: Summary
    facts: RunFacts
    pictures: Mapping[str, Picture]
    loads: load_view.LoadPicture | None

    def picture(self, name: str) -> list[Block]:
        return [self.pictures[name]] if name in self.pictures else []


def facts_table(rows: Rows, name: str = "") -> Table:
    return Table(["", ""], [row for row in rows.items() if row[1]], name)


def measured_with(report: RunReport) -> Iterator[Section]:
    """What was measured, on what, by which program: all that a number rests on, once."""
    summary, meta, system, plan = report.summary, report.summary.meta, report.summary.system, report.facts.plan
    is_ours, served = summary.is_in_process, meta.engine_args
    unknown = "" if is_ours else "unknown: the server's; of this client: "
    each = f", {system.gpu_memory_gib} GiB each" if system.gpu_memory_gib else ""
    run = {
        "label": meta.label,
        "model": f"{answer.model(summary)}, {answer.scenario(summary)} ({meta.category})",
        "GPU" if summary.gpus else "machine": answer.machine(summary),
        "precision": meta.weights or f"{meta.precision}, quantization {meta.quantization}" if is_ours else "unknown",
        "engine": answer.engine(summary),
        "rules": f"MLPerf v{meta.mlperf_version}{' and its seeds' * (report.facts.config.seed is None)}",
        "workload": plan.request_set.name if plan.request_set else "",
        "data": f"{meta.data}, prompts of {number(meta.mean_prompt_tokens)} tokens on average" * bool(meta.data),
        "date": f"{meta.started[:10]}, run {meta.run}",
        "answers": f"at most {meta.max_new_tokens} new tokens, {'greedy' if is_ours else 'temperature 0'}",
        "checkpoint": meta.checkpoint or "",
    }
    engine = {
        "KV cache": meta.kv_cache_dtype,
        "kernels": listed(meta.kernels),
        "parallel": f"tensor {meta.tensor_parallel_size}, data {meta.data_parallel_size}",
        "context": f"{meta.max_model_len} tokens, prefix caching {'on' if meta.prefix_caching else 'off'}",
    }
    server = {
        "model it serves": str(served.get("serves")),
        "endpoints": ", ".join(meta.endpoints),
        "exchange": str(served.get("exchange")),
        "requests in flight": f"at most {number(served.get('max_in_flight'))} at each endpoint",  # type: ignore[arg-type]
        "client processes": str(served.get("client_processes", "")),
    }
    machine = {
        "GPUs": f"{unknown}{', '.join(system.gpus) or 'none (CPU)'}{each}",
        "driver, CUDA": f"{system.driver}, {system.cuda}" if system.driver else "",
        "CPU": f"{system.cpu}, {system.cores} cores",
        "memory": f"{system.memory_gib} GiB",
        "OS": f"{system.os}{', in a container' if system.container else ''}",
        "software": f"Python {system.python}, {listed(system.packages)}",
        "this repository": system.git_revision or "not a git checkout",
    }
    variables = " ".join(f"`{name}={code(value)}`" for name, value in system.variables.items())
    blocks = report.picture("overview")
    blocks += [facts_table(run | (engine if is_ours else server) | machine), Code(meta.command)]
    blocks += [facts_table({"environment": cell(Finished(variables))}, "environment")] if variables else []
    yield Section("Measured with", meta.weights or meta.precision, [*blocks, Finished("[All settings](config.json).")])


def bounds(report: RunReport) -> Iterator[Section]:
    if test := report.summary.result:
        yield Section(
            "What limits the speed, and what to try", answer.bound_by(test), [advice.findings(report.summary)]
        )


def loads(report: RunReport) -> Iterator[Section]:
    summary, tests, drawn = report.summary, report.summary.tests, report.loads
    if not tests:
        return
    words = Counter("queue grew" if each.valid and each.has_grown else each.verdict.word for each in tests)
    outcome = ", ".join(f"{count} {word}" for word, count in words.most_common())
    blocks = list[Block]()
    if "search" in report.pictures:
        blocks += [*report.picture("search"), answer.tested(summary)]
        if tests[0].unit == ClosedLoop.unit:
            blocks.append(
                "This program took these times: LoadGen issues one Offline query and cannot know when each request of "
                "it is sent. Each row excludes both ramps of its test. Trend is the second half's speed divided by the "
                "first half's; speed per user is 1,000 / TPOT p90."
            )
        if drawn and drawn.best and drawn.rate:
            within = " on a busy machine" if drawn.best.doubt else " within the limits" * any(drawn.limits.values())
            blocks.append(
                f"A replica answers {number(drawn.rate)} requests/s{within} ({drawn.best.name}"
                f"{', by a probe alone' * (not drawn.best.is_full)}); a peak of P requests/s takes ceil(P / "
                f"{number(load_view.SHARE * drawn.rate)}) replicas."
            )
        attempts = " and `Attempts/`" * bool(summary.run.attempts)
        blocks.append(f"Each is a separate LoadGen test; its logs are in `Probes/`{attempts}.")
    yield Section("Tests at each load", outcome, blocks)


def numbers(report: RunReport) -> Iterator[Section]:
    summary, test = report.summary, report.summary.result
    if not test:
        return
    blocks = report.picture("tokens_per_sec")
    if not test.details.is_whole:
        blocks.append(f"The whole test, ramps included: {number(test.details.whole.tokens_per_sec)} output tokens/s.")
    rows = {metric.label: value for metric, value in metrics.rows(summary)}
    if summary.is_in_process:
        size = summary.meta.batch_size
        if size:
            rows["batching"] = f"fixed batches of {size}, one after the other"
        elif answer.engine(summary).startswith("vLLM"):
            rows["batching"] = "continuous batching"
    outcome = f"{number(test.tokens_per_sec)} output tokens/s, {number(test.details.duration_s)} s"
    yield Section("Numbers", outcome, [*blocks, facts_table(rows)])
    yield from latencies(report, test)
    if said := [*remarks(summary, test)]:
        yield Section("Remarks", plural(len(said), "remark"), [said])


def latencies(report: RunReport, test: Outcome) -> Iterator[Section]:
    details = test.details
    if not details.whole.ttft_ms:
        return
    part = details.counted
    middles = {"TTFT": part.ttft_ms, "TPOT": part.tpot_ms, "whole answer": part.latency_ms}
    outcome = ", ".join(f"{name} p50 {number(found.p50)} ms" for name, found in middles.items() if found)
    blocks: list[Block] = [*report.picture("latency_cdf"), answer.latencies(report.summary)]
    if details.is_whole and (between := answer.intervals(test)):
        said = "95 % intervals, ms, of the requests of this test (results scatter more from run to run)"
        blocks.append(f"{said}: {'; '.join(between)}.")
    if details.arrivals:
        rate = number(details.target_qps)
        blocks.append(
            f"Arrivals followed `--arrivals {code(details.arrivals)}`: a mean of {rate} a second, "
            f"the times between them with a coefficient of variation of {number(details.arrivals_cv, 3)} (0 is "
            "clockwork, 1 pure chance, more is bursts). Each latency counts from the time at which its request was "
            "due."
        )
    source = "This program" if details.concurrency or details.arrivals else "LoadGen"
    yield Section("Latency", outcome, [*blocks, f"{source} took these times; `{test.folder}/requests.csv` has them."])


def remarks(summary: Summary, test: Outcome) -> Iterator[str]:
    """What is odd about the answers, by LoadGen's, the server's or this program's count."""
    details = test.details
    if details.single_token:
        few = " The others are too few to be sure of TPOT p99: VALID or INVALID, the verdict does not cover TPOT."
        yield (
            f"**{number(details.single_token)} of {number(details.samples)} answers have one token**: TTFT and latency "
            f"count them, TPOT does not.{few * (not details.tpot_judged)}"
        )
    if details.server and details.server.prompt_tokens is not None:
        cached = details.server.cached_percent
        share = (
            "it does not report how many came from its cache"
            if cached is None
            else f"{number(cached, 3)} % of them from its cache"
        )
        yield (
            f"By the server's own count (`usage`): {number(details.server.prompt_tokens)} prompt tokens, {share}; "
            f"{number(details.server.output_tokens)} output tokens."
        )
    if details.longer:
        yield (
            f"**{number(details.longer)} of {number(details.samples)} answers are longer than the "
            f"{summary.meta.max_new_tokens} tokens that were allowed**: the server ignores `max_tokens`, or its text "
            "has more tokens here than it counted."
        )
    yield from (f"LoadGen warning: {warning}" for warning in details.warnings)


def workload(report: RunReport) -> Iterator[Section]:
    if found := report.facts.plan.request_set:
        most = (
            "exactly the given lengths"
            if found.exact
            else f"at most {found.max_new_tokens} tokens, as each request says"
        )
        said = (
            f"{found.name} ({found.about}), not MLPerf's: {number(report.summary.meta.samples)} of "
            f"{number(found.samples)} requests, answers of {most}; digest {found.digest}."
        )
        yield Section("Workload", found.name, [said, *[found.notes] * bool(found.notes)])


def accuracy(report: RunReport) -> Iterator[Section]:
    score = report.summary.accuracy
    if not score:
        return
    first = ", ".join(f"{check.name} {number(check.score)}" for check in score.checks[:3])
    columns: dict[str, TableColumn] = {
        "score": lambda check: f"{check.name}{' (approximate)' * (check.name in score.approximate)}",
        "this run": ("score", 6),
        "reference": ("reference", 6),
        "must be": lambda check: (
            range_text(check.low, check.high) if check.high else f"at least {number(check.low, 6)}"
        ),
    }
    if not score.full_set:
        columns["95 % interval"] = lambda check: range_text(*check.interval)
    part = " (part of the set; since the reference covers all of it, bootstrap intervals decide the verdict)"
    version = f" of NLTK {score.splitter_version}" * bool(score.splitter_version)
    about = (
        f"{number(score.samples)} samples{part * (not score.full_set)}, {number(score.generated_tokens)} generated "
        f"tokens, {number(score.characters)} characters; {percent(score.at_token_limit / score.samples, 0)} % of the "
        f"answers end at the token limit. Sentences split by: {score.splitter}{version}."
    )
    worst = "[The ten worst](Accuracy/worst.md), with article and reference; [every sample](Accuracy/samples.csv)."
    yield Section(
        "Accuracy",
        f"{score.verdict}: {first}; {number(score.samples)} samples",
        [*report.picture("scores"), Table.of(score.checks, columns | {"verdict": "verdict"}), about, Finished(worst)],
    )


def range_text(low: float, high: float) -> str:
    return f"{number(low, 6)} to {number(high, 6)}"


def compliance(report: RunReport) -> Iterator[Section]:
    found, asked = report.summary.run.compliance, report.facts.config.compliance
    if found:
        said = []
        for name, test in found.items():
            words = {True: "yes", False: "no", None: "not required in Offline"}
            checks = "; ".join(f"{check}: {words[verdict]}" for check, verdict in test.checks.items())
            said.append(
                f"**{name.upper()}: {test.verdict}** – {checks}. {test.facts['samples']} answers of a performance "
                "test, compared with what was reported to LoadGen while it ran."
            )
        yield Section("Compliance", ", ".join(f"{name.upper()} {test.verdict}" for name, test in found.items()), [said])
    elif asked != "none":
        verdict = f"{asked.upper()}: no verdict"
        yield Section("Compliance", verdict, [f"**{verdict}** – it did not finish."])


def profile(report: RunReport) -> Iterator[Section]:
    found = report.summary.run.profile
    if not found:
        return
    if found.failure:
        said = f"The profiler failed: {found.failure} The measured results are unaffected."
        yield Section("Profile", "the profiler failed", [said])
        return
    idle = ""
    if found.idle_percent is not None:
        idle = f", no kernel ran for {number(found.idle_percent, 3)} % of the time"
    if found.active_s is not None:
        gaps = f", {number(found.gaps)} gaps, {number(found.mean_gap_ms, 3)} ms each on average" * bool(found.gaps)
        kernel = f"a kernel took {number(found.mean_kernel_ms, 3)} ms on average"
        idle += f" (active {number(found.active_s, 3)} s; {kernel}{gaps})"
    about = (
        "After the tests the same load ran again for a while under torch's profiler; it measured nothing above. In the "
        f"{number(found.seconds)} s that it recorded{idle}:"
    )
    of, time = ("kernels", "kernel time") if found.device == "GPU" else ("operators", "operators' self time")
    parts: dict[str, TableColumn] = {f"{time}, ms": "ms", "%": ("percent", 3), "calls": "calls"}
    name: TableColumn = lambda each: Finished(f"`{code(each.name)}`".replace("|", "\\|"))  # noqa: E731
    largest = {f"the largest {of}": name, "kind": "kind", **parts}
    if found.device == "GPU":
        largest |= {"bytes a token": "bytes_per_token", "TB/s": ("tb_per_s", 2), "% of memory's": ("memory_percent", 2)}
    links = ", ".join(f"[{path.rpartition('/')[2]}]({path})" for path in found.traces)
    yield Section(
        "Profile",
        found.headline,
        [
            about,
            *report.picture("profile"),
            Table.of(found.kinds, {"kind": "name"} | parts),
            Table.of(found.largest, largest),
            Finished(f"Open in [Perfetto](https://ui.perfetto.dev): {links}."),
        ],
    )


def machine(report: RunReport) -> Iterator[Section]:
    meta, test = report.summary.meta, report.summary.result
    if meta.notes:
        yield Section("How `auto` was resolved", plural(len(meta.notes), "setting"), [meta.notes])
    if timeline := report.picture("timeline"):
        yield Section(
            "Where the time went",
            f"{plural(len(meta.stages), 'stage')} in {number(meta.stages[-1].start_s)} s",
            timeline,
        )
    if not (test and test.details.usage):
        return
    usage, known = test.details.usage, telemetry.QUANTITY_BY_NAME
    outcome = ", ".join(
        f"{known[name].text} {number(usage[name].mean)}"
        for name in ("requests_running", "requests_waiting", "gpu_load_percent", "cpu_percent")
        if name in usage
    )
    rows = [
        [quantity.text, *(number(getattr(usage[name], point), quantity.digits) for point in ("mean", "max"))]
        for name, quantity in known.items()
        if name in usage
    ]
    unseen = [column.name for column in server_metrics.METRIC_COLUMNS if column.name not in usage]
    silent = f"; the engine's metrics have no counter for {', '.join(known[name].label for name in unseen)}"
    if len(unseen) == len(server_metrics.METRIC_COLUMNS):
        silent = "; the engine exposes no metrics"
    yield Section(
        "What the engine and the machine did",
        outcome,
        [
            *report.picture("machine"),
            Table(["performance test", "mean", "max"], rows),
            Finished(f"Sampled once a second ([machine.csv]({test.folder}/machine.csv)){silent * bool(unseen)}."),
        ],
    )


def files(report: RunReport) -> Iterator[Section]:
    printed = "the engine" if report.summary.is_in_process else "the client"
    said = (
        "[report.html](report.html): this page as one file; [summary.json](summary.json): every number above; "
        f"[engine.log](engine.log): what {printed} printed; of each test LoadGen's logs are in a folder. The terms are "
        "explained in `docs/reference/glossary.md` of the benchmark, the metrics in `docs/reference/metrics.md`."
    )
    yield Section("Files", "what else is in the run's folder", [Finished(said)])


SECTIONS = (measured_with, bounds, loads, numbers, workload, accuracy, compliance, profile, machine, files)
