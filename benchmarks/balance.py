"""Two rules for which of several servers gets the next request, compared by the time to the first token.

    python -m benchmarks.balance                            # simulated servers
    python -m benchmarks.balance URL URL --model MODEL --rate 5 --rounds 3    # real ones

The first rule takes the server with the fewest requests in flight. The second gives those without a first token more
weight. A simulated server prefills one prompt after the other and streams answers at the same time. Its prefill becomes
slower the more answers it streams. Arrivals are random, lengths are uneven, and times are those of the simulation. Real
servers are sent the same Server test with each rule in turn by run.py, whose other flags may follow.
"""

import argparse
import heapq
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Literal

from benchmarks.start import start
from harness.core.files import read
from harness.core.locations import ROOT
from harness.engines.discovery import UNSTARTED_WEIGHT
from harness.results.summary import Summary

REQUESTS, SERVERS, SEEDS = 20_000, 2, 5  # in each simulation; each runs with so many seeds
LOADS = (0.4, 0.6, 0.7)  # the rate of arrivals, as a share of the rate at which the servers prefill if none streams
PREFILL_TOKENS_PER_S = 20_000.0
TOKEN_S = 0.02  # seconds for each token of an answer
SLOWDOWN = 0.004  # A prefill takes longer by this share for each answer that streams.
PROMPT_TOKENS = (250.0, 250.0, 500.0, 3000.0)  # Each of these lengths is as likely as another.
MEAN_PROMPT_TOKENS = 1000
ANSWER_TOKENS = (8, 32, 128, 512)  # as above
# The rules by their names in the table: how much more a request without a first token weighs than another.
EXTRA_WEIGHTS = {
    "fewest in flight": 0,
    f"in flight + {UNSTARTED_WEIGHT} x without a first token": UNSTARTED_WEIGHT,
}
Event = Literal["first token", "answer"]


@dataclass
class Server:
    """A simulated server: its requests in flight, and what it will complete."""

    in_flight: int = 0
    unstarted: int = 0  # the requests in flight without a first token
    prefill_end: float = 0.0  # when it will have prefilled all prompts
    events: list[tuple[float, Event]] = field(default_factory=list)  # a heap of what it completes, by time

    def advance(self, now: float) -> None:
        """Complete what is due at the time `now`."""
        while self.events and self.events[0][0] <= now:
            _time, event = heapq.heappop(self.events)
            if event == "first token":
                self.unstarted -= 1
            else:
                self.in_flight -= 1

    def take(self, now: float, prompt_tokens: float, answer_tokens: int) -> float:
        """Take a request, and return the seconds to its first token."""
        streaming = self.in_flight - self.unstarted
        prefill_s = prompt_tokens / PREFILL_TOKENS_PER_S * (1 + SLOWDOWN * streaming)
        self.prefill_end = max(now, self.prefill_end) + prefill_s
        self.in_flight += 1
        self.unstarted += 1
        heapq.heappush(self.events, (self.prefill_end, "first token"))
        heapq.heappush(self.events, (self.prefill_end + answer_tokens * TOKEN_S, "answer"))
        return self.prefill_end - now

    def weight(self, extra_weight: int) -> int:
        """Return the weight of the requests in flight. The server with the least weight gets the next request."""
        return self.in_flight + extra_weight * self.unstarted


def simulated_ttfts(extra_weight: int, load: float, seed: int) -> list[float]:
    """Simulate the servers under a load, and return the seconds to the first token of all requests, shortest first."""
    random = Random(seed)
    servers = [Server() for _number in range(SERVERS)]
    rate = load * SERVERS * PREFILL_TOKENS_PER_S / MEAN_PROMPT_TOKENS
    now = 0.0
    ttfts = []
    for _request in range(REQUESTS):
        now += random.expovariate(rate)
        for server in servers:
            server.advance(now)
        prompt_tokens = random.choice(PROMPT_TOKENS)
        next_server = min(servers, key=lambda server: server.weight(extra_weight))
        ttfts.append(next_server.take(now, prompt_tokens, random.choice(ANSWER_TOKENS)))
    return sorted(ttfts)


def mean_quantile_ms(runs: Sequence[Sequence[float]], share: float) -> float:
    """Return the mean over runs of a quantile in milliseconds. Each run has its REQUESTS times in s, shortest first."""
    place = int(share * REQUESTS)
    return 1000 * sum(run[place] for run in runs) / len(runs)


def compare_simulated_servers() -> None:
    """Print the table for simulated servers."""
    print("| load | rule | TTFT p50, ms | TTFT p99, ms |\n|---|---|---|---|")
    for load in LOADS:
        for rule, extra_weight in EXTRA_WEIGHTS.items():
            runs = [simulated_ttfts(extra_weight, load, seed) for seed in range(SEEDS)]
            p50, p99 = mean_quantile_ms(runs, 0.5), mean_quantile_ms(runs, 0.99)
            print(f"| {100 * load:.0f} % | {rule} | {p50:,.0f} | {p99:,.0f} |")


def run_server_test(extra_weight: int, flags: Sequence[str], folder: Path) -> Summary:
    """Run one Server test by run.py with a rule, and return its summary. The run's folder is in `folder`."""
    set_weight = f"import harness.engines.discovery as rule; rule.UNSTARTED_WEIGHT = {extra_weight}"
    run_program = "import runpy; runpy.run_path('run.py', run_name='__main__')"
    command = [sys.executable, "-c", f"{set_weight}; {run_program}", *flags, "--results-dir", str(folder)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=sys.stderr)
    return read(folder / "latest" / "summary.json", Summary)


def compare_real_servers(urls: Sequence[str], rate: float, rounds: int, run_flags: Sequence[str]) -> None:
    """Send the servers a test with each rule in each round, and print the table. `run_flags` are those of run.py."""
    flags = []
    for url in urls:
        flags += ["--endpoint", url]
    flags += ["--scenario", "server", "--mode", "performance", "--server-target-qps", f"{rate:g}", *run_flags]
    print("| round | rule | requests | TTFT p50, ms | TTFT p99, ms |\n|---|---|---|---|---|", flush=True)
    for number in range(1, rounds + 1):
        rules = list(EXTRA_WEIGHTS.items())
        if number % 2 == 0:  # The order changes with each round, so that no rule is always the first.
            rules.reverse()
        for rule, extra_weight in rules:
            with TemporaryDirectory() as folder:
                test = run_server_test(extra_weight, flags, Path(folder)).run.performance
            assert test is not None and test.ttft_ms is not None
            p50, p99 = test.ttft_ms.p50, test.ttft_ms.p99
            print(f"| {number} | {rule} | {test.details.samples:,} | {p50:,.0f} | {p99:,.0f} |", flush=True)


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("urls", nargs="*", metavar="URL")
    flags.add_argument("--rate", type=float, default=5.0, help="queries/s of real servers [5]")
    flags.add_argument("--rounds", type=int, default=3, help="of both rules on real servers [3]")
    return flags


def main() -> None:
    arguments, run_flags = parser().parse_known_args()
    if arguments.urls:
        compare_real_servers(arguments.urls, arguments.rate, arguments.rounds, run_flags)
    else:
        compare_simulated_servers()


if __name__ == "__main__":
    start(main)
