"""The sections of a report on what the machine did: the profile, the run's stages, the telemetry and its files."""

from collections.abc import Iterator

from harness.core.document import Block, Section
from harness.core.formatting import joined_text, number, plural
from harness.core.markdown import MarkdownText, code_text
from harness.core.tables import Table, TableColumn
from harness.engines import server_metrics
from harness.report.run_report import RunReport
from harness.results import telemetry
from harness.results.kernel_profile import Profile, Share
from harness.results.test_details import TestDetails

PROFILE_NOTE = (
    "After the tests the same load ran again for a while under torch's profiler; it measured nothing above. In the "
)
HEADLINE_QUANTITIES = ("requests_running", "requests_waiting", "gpu_load_percent", "cpu_percent")


def profile(report: RunReport) -> Iterator[Section]:
    """Yield the section on the profiled kernels or operators, of a run that was profiled.

    If the profiler failed, the section only says why, and that the results do not depend on it.
    """
    profiled = report.summary.run.profile
    if not profiled:
        return
    if profiled.failure:
        text = f"The profiler failed: {profiled.failure} The measured results are unaffected."
        yield Section("Profile", "the profiler failed", [text])
        return
    links = ", ".join(f"[{path.rpartition('/')[2]}]({path})" for path in profiled.traces)
    blocks: list[Block] = [
        f"{PROFILE_NOTE}{number(profiled.seconds)} s that it recorded{idle_text(profiled)}:",
        *report.picture("profile"),
        *steps_text(profiled),
        *profile_tables(profiled),
        MarkdownText(f"Open in [Perfetto](https://ui.perfetto.dev): {links}."),
    ]
    yield Section("Profile", profiled.headline, blocks)


def idle_text(profiled: Profile) -> str:
    """Return how long no kernel ran, how long a kernel took, and how long the gaps between kernels were, in words.

    Figures that are not known are left out. Empty for a profile of a CPU, in which none are known.
    """
    text = ""
    if profiled.idle_percent is not None:
        text = f", no kernel ran for {number(profiled.idle_percent, 3)} % of the time"
    if profiled.active_s is None:  # Then nothing else is known of the kernels.
        return text
    kernel = f"a kernel took {number(profiled.mean_kernel_ms, 3)} ms on average"
    gaps = ""
    if profiled.gaps:
        gaps = f", {plural(profiled.gaps, 'gap')}, {number(profiled.mean_gap_ms, 3)} ms each on average"
    if profiled.longest_gap_ms is not None:
        long_gaps = number(profiled.long_gaps_ms, 3)
        gaps += f", the longest {number(profiled.longest_gap_ms, 3)} ms; those over 1 ms take {long_gaps} ms together"
    return f"{text} (active {number(profiled.active_s, 3)} s; {kernel}{gaps})"


def steps_text(profiled: Profile) -> Iterator[str]:
    """Yield a sentence on the number of the engine's steps and the time between them.

    Nothing if the trace shows no steps.
    """
    if not profiled.steps:
        return
    spacing = ""
    if profiled.step_spacing_ms is not None:
        spacing = f", {number(profiled.step_spacing_ms, 3)} ms from one to the next (median)"
    yield f"The engine made {plural(profiled.steps, 'step')}{spacing}."


def profile_tables(profiled: Profile) -> list[Table]:
    """Return a table of the time by kind, and one of the largest kernels or, on a CPU, operators.

    The table of kernels also has the bytes that each moved, as far as they are known.
    """
    is_gpu = profiled.device == "GPU"
    noun, time = "operators", "operators' self time"
    if is_gpu:
        noun, time = "kernels", "kernel time"
    # A pair is the attribute of a share, and its digits.
    shares: dict[str, TableColumn[Share]] = {f"{time}, ms": "ms", "%": ("percent", 3), "calls": "calls"}
    largest: dict[str, TableColumn[Share]] = {f"the largest {noun}": kernel_name, "kind": "kind", **shares}
    if is_gpu:
        largest |= {"bytes a token": "bytes_per_token", "TB/s": ("tb_per_s", 2), "% of memory's": ("memory_percent", 2)}
    return [Table.from_items(profiled.kinds, {"kind": "name"} | shares), Table.from_items(profiled.largest, largest)]


def kernel_name(kernel: Share) -> MarkdownText:
    """Return a kernel's name as code that may stand in a table cell, where a bar would end the cell."""
    return MarkdownText(f"`{code_text(kernel.name)}`".replace("|", "\\|"))


def machine(report: RunReport) -> Iterator[Section]:
    """Yield the sections on what the machine did, as far as the run has the data.

    The sections are on how `auto` settings were resolved, how long each stage took, and what was recorded once a
    second.
    """
    meta, test = report.summary.meta, report.summary.result
    if meta.notes:
        yield Section("How `auto` was resolved", plural(len(meta.notes), "setting"), [meta.notes])
    timeline = report.picture("timeline")
    if timeline:
        # The last stage, which writes this report, has only begun, so it has no bar.
        *finished_stages, last_stage = meta.stages
        duration = f"{plural(len(finished_stages), 'stage')} in {number(last_stage.start_s)} s"
        yield Section("Where the time went", duration, timeline)
    if test and test.details.usage:
        source = f"Sampled once a second ([machine.csv]({test.folder}/machine.csv)){silent_metrics(test.details)}."
        blocks: list[Block] = [*report.picture("machine"), table_of_usage(test.details), MarkdownText(source)]
        machine_name = "machine" if report.summary.is_in_process else "client's machine"
        yield Section(f"What the engine and the {machine_name} did", usage_text(test.details), blocks)


def usage_text(details: TestDetails) -> str:
    """Return the means of HEADLINE_QUANTITIES, as far as they were recorded, in words; empty if none was."""
    texts = []
    for name in HEADLINE_QUANTITIES:
        if name in details.usage:
            quantity = telemetry.QUANTITY_BY_NAME[name]
            texts.append(joined_text(" ", number(details.usage[name].mean), quantity.unit, quantity.label))
    if not texts:
        return ""
    return f"mean: {'; '.join(texts)}"


def table_of_usage(details: TestDetails) -> Table:
    """Return mean and maximum of each quantity that was recorded."""
    rows = []
    for name, quantity in telemetry.QUANTITY_BY_NAME.items():
        usage = details.usage.get(name)
        if usage:
            rows.append([quantity.text, number(usage.mean, quantity.digits), number(usage.max, quantity.digits)])
    return Table(["recorded once a second", "mean", "max"], rows)


def silent_metrics(details: TestDetails) -> str:
    """Return which of the engine's own metrics were not recorded, in words; empty if all were."""
    missing_names = [column.name for column in server_metrics.METRIC_COLUMNS if column.name not in details.usage]
    if not missing_names:
        return ""
    if len(missing_names) == len(server_metrics.METRIC_COLUMNS):
        return "; the engine exposes no metrics"
    labels = ", ".join(telemetry.QUANTITY_BY_NAME[name].label for name in missing_names)
    return f"; the engine does not report {labels}"


def files(report: RunReport) -> Iterator[Section]:
    """Yield the section on the other files in the run's folder, and on where the terms are explained."""
    printed = "the client"  # With an endpoint, engine.log is the output of this program.
    if report.summary.is_in_process:
        printed = "the engine"
    text = (
        "[report.html](report.html): this page as one file; [summary.json](summary.json): every number above; "
        f"[engine.log](engine.log): what {printed} printed; each test has its own folder with LoadGen's logs. The "
        "program's pages `docs/reference/glossary.md` and `docs/reference/metrics.md` explain the terms and metrics."
    )
    yield Section("Files", "what else is in the run's folder", [MarkdownText(text)])
