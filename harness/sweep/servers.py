"""Compare servers under the same requests: a session with each server is kept in this process for all rounds."""

import time
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path

from harness.config.plan import Plan
from harness.config.run import RunConfig
from harness.core import processes
from harness.core.errors import BenchmarkError
from harness.core.progress import Display
from harness.engines.discovery import config_of_served_model
from harness.report import report as rendering
from harness.results import accuracy
from harness.runner import steps
from harness.runs.run_folder import TEST_FOLDERS, RunFolder, now, open_run
from harness.sweep.experiment import ExperimentRecord, Job, Watch, from_summary
from harness.sweep.file import Experiment
from harness.sweep.lanes import Lane

NO_MIN_DURATION_S = 0.001  # the minimum duration of a test that its number of queries ends


@dataclass
class Servers:
    """Runs the jobs of a comparison of servers in this process, instead of run.py.

    The servers' answers are compared with each other. So the accuracy gate, which compares answers with the reference,
    gives no verdict.
    """

    place: Path  # the sweep's folder
    display: Display
    # The first run of each server, whose session later runs use, by experiment and whether at full length.
    first_runs: dict[tuple[str, bool], steps.PreparedRun] = field(default_factory=dict)

    def __call__(self, job: Job, lane: Lane, watch: Watch) -> ExperimentRecord:
        """Run one job against its server in this process, and return its record. An interruption is recorded, too.

        Raises BenchmarkError if the test fails. `watch` is not asked, since LoadGen waits for every answer and cannot
        be stopped.
        """
        begin = time.monotonic()
        folder = open_run(self.place / job.item.name, str(job.round + 1))
        key = job.item.name, job.final
        try:
            if key not in self.first_runs:  # The server's first run opens the session that its later runs use.
                self.first_runs[key] = self.begin(job.item, folder)
            run_folder = measure_server(self.first_runs[key], folder)
            outcome = from_summary(rendering.build_report(run_folder))
            if outcome.verdict:  # Answers are compared between servers, so the gate on them gives no verdict.
                outcome = replace(outcome, verdict="NOT JUDGED")
        except KeyboardInterrupt:
            processes.ignore_signals()  # A second Ctrl-C must not prevent the record of the first.
            folder.fail("interrupted")
            return job.record(lane, "interrupted", "interrupted")
        except BenchmarkError as error:
            folder.fail("failed", str(error))
            raise BenchmarkError(f"{job.item.name}: {error}") from error
        folder.set_status("complete")
        seconds = round(time.monotonic() - begin, 1)
        return job.record(lane, "complete", seconds=seconds, run=f"{job.item.name}/{folder.name}", outcome=outcome)

    def begin(self, item: Experiment, folder: RunFolder) -> steps.PreparedRun:
        """Prepare the run that measures a server.

        Each further server gets the requests and the test length of the first one, so that their speeds can be
        compared.
        """
        # `first_runs` has the first run of each server so far, in the order of the servers.
        run_of_first_server = next(iter(self.first_runs.values()), None)
        session = run_of_first_server.session if run_of_first_server else None  # A session holds the requests.
        prepared = steps.prepare_run(config_of(item, self.place), folder, self.display, same_requests=session)
        # The first server's own plan stays as it is.
        first_plan = run_of_first_server.run.plan if run_of_first_server else prepared.run.plan
        prepared.run.adopt(match_length(prepared.run.plan, first_plan))
        return prepared


def config_of(item: Experiment, place: Path) -> RunConfig:
    """Return the settings of an experiment, with the model that its server offers. `place` is the sweep's folder."""
    return config_of_served_model(RunConfig(**item.settings | {"results_dir": place / item.name}))


def measure_server(first_run: steps.PreparedRun, folder: RunFolder) -> Path:
    """Run the tests of one run against a server, and return the path of its folder.

    `folder` is that of the server's first run, or of a later run, which has the plan and the session of the first.
    """
    session, plan = first_run.session, first_run.run.plan
    session.folder = folder  # The session writes the logs of its tests there.
    is_later_run = folder != first_run.run.folder
    if plan.config.mode == "both" and is_later_run:  # To repeat the accuracy test shows nothing new.
        plan = replace(plan, config=plan.config.with_settings(mode="performance"))
    facts = first_run.run.facts.model_copy(update={"plan": plan, "started": now()})
    first_run.run._replace(folder=folder, facts=facts).save()  # writes config.json of this run
    if plan.config.mode != "performance":
        accuracy.evaluate_answers(session.test("accuracy", plan), plan, session.library, first_run.tokenizer)
    if plan.config.mode != "accuracy":
        session.drive("performance", plan, folder.subfolder(TEST_FOLDERS["performance"]))
    return folder.path


def match_length(plan: Plan, first_plan: Plan) -> Plan:
    """Return the plan with the number of queries, the rate and the duration of the first server's plan."""
    if first_plan.target_qps is None:
        return plan
    fewest_queries = first_plan.fewest_queries
    min_duration_s = first_plan.min_duration_s
    if plan.concurrency and not fewest_queries:
        wanted_queries = max(first_plan.min_queries, first_plan.target_qps * min_duration_s)
        # A test that ends by time ends with some slots (requests in flight) empty, so the number of queries is fixed.
        queries_a_slot = ceil(wanted_queries / plan.concurrency)
        fewest_queries = queries_a_slot * plan.concurrency
        min_duration_s = NO_MIN_DURATION_S  # so that the number of queries alone ends the test
    return replace(plan, target_qps=first_plan.target_qps, fewest_queries=fewest_queries, min_duration_s=min_duration_s)
