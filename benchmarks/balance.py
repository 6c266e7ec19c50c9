"""Which of two servers gets the next request: the fewest in flight, or those without a first token weighed more.

    python -m benchmarks.balance                            # simulated servers
    python -m benchmarks.balance URL URL --model MODEL --rate 5 --rounds 3    # real ones

Simulated servers: each prefills one prompt after the other and streams answers beside that, which slows the prefill as
more of them run. Arrivals are random, lengths are uneven. Times are the simulation's own. Real ones are sent the same
Server test by either rule in turn, from run.py; its other flags may follow.
"""

import argparse
import heapq
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from benchmarks.start import start
from harness.core.files import read
from harness.core.locations import ROOT
from harness.engines.discovery import UNSTARTED_WEIGHT
from harness.results.summary import Summary

REQUESTS, SERVERS, SEEDS = 20_000, 2, 5
PREFILL, TOKEN_S, SLOWER = 20_000.0, 0.02, 0.004  # prompt tokens/s; s a token; of the prefill for each that streams
Rule = Callable[["Server"], float]
RULES: dict[str, Rule] = {
    "fewest in flight": lambda server: server.in_flight,
    f"in flight + {UNSTARTED_WEIGHT} x without a first token": lambda server: (
        server.in_flight + UNSTARTED_WEIGHT * server.unstarted
    ),
}


@dataclass
class Server:
    """Requests in flight, those of them without a first token, and until when it prefills."""

    in_flight: int = 0
    unstarted: int = 0
    busy_until: float = 0.0
    ends: list[tuple[float, int]] = field(default_factory=list)  # time, and whether a first token (0) or an answer (1)

    def until(self, now: float) -> None:
        while self.ends and self.ends[0][0] <= now:
            _, answer = heapq.heappop(self.ends)
            self.unstarted -= not answer
            self.in_flight -= answer

    def take(self, now: float, prompt: float, tokens: int) -> float:
        """The seconds to the first token."""
        streaming = self.in_flight - self.unstarted
        self.busy_until = max(now, self.busy_until) + prompt / PREFILL * (1 + SLOWER * streaming)
        self.in_flight += 1
        self.unstarted += 1
        heapq.heappush(self.ends, (self.busy_until, 0))
        heapq.heappush(self.ends, (self.busy_until + tokens * TOKEN_S, 1))
        return self.busy_until - now


def first_tokens(rule: Rule, share: float, seed: int) -> list[float]:
    """The times to the first token, in order, at a share of what the servers prefill without streaming."""
    random, servers, now, found = Random(seed), [Server() for _ in range(SERVERS)], 0.0, []
    rate = share * SERVERS * PREFILL / 1000
    for _ in range(REQUESTS):
        now += random.expovariate(rate)
        for server in servers:
            server.until(now)
        prompt = random.choice((250.0, 250.0, 500.0, 3000.0))  # 1,000 on average
        found.append(min(servers, key=rule).take(now, prompt, random.choice((8, 32, 128, 512))))
    return sorted(found)


def simulated() -> None:
    print("| load | rule | TTFT p50, ms | TTFT p99, ms |\n|---|---|---|---|")
    for share in (0.4, 0.6, 0.7):
        for name, rule in RULES.items():
            runs = [first_tokens(rule, share, seed) for seed in range(SEEDS)]
            p50, p99 = (1000 * sum(run[int(q * REQUESTS)] for run in runs) / SEEDS for q in (0.5, 0.99))
            print(f"| {100 * share:.0f} % | {name} | {p50:,.0f} | {p99:,.0f} |")


def measured(weight: int, flags: Sequence[str], folder: Path) -> Summary:
    """One Server test of run.py, with this weight of a request that has no first token."""
    weighed = f"import harness.engines.discovery as rule; rule.UNSTARTED_WEIGHT = {weight}"
    code = f"{weighed}; import runpy; runpy.run_path('run.py', run_name='__main__')"
    words = [sys.executable, "-c", code, *flags, "--results-dir", str(folder)]
    subprocess.run(words, check=True, cwd=ROOT, stdout=sys.stderr)
    return read(folder / "latest" / "summary.json", Summary)


def real(urls: Sequence[str], rate: float, rounds: int, more: Sequence[str]) -> None:
    flags = [word for url in urls for word in ("--endpoint", url)]
    flags += ["--scenario", "server", "--mode", "performance", "--server-target-qps", f"{rate:g}", *more]
    print("| round | rule | requests | TTFT p50, ms | TTFT p99, ms |\n|---|---|---|---|---|", flush=True)
    for round_ in range(1, rounds + 1):
        for name, weight in list(zip(RULES, (0, UNSTARTED_WEIGHT), strict=True))[:: 1 if round_ % 2 else -1]:
            with TemporaryDirectory() as folder:
                test = measured(weight, flags, Path(folder)).run.performance
            assert test is not None and test.ttft_ms is not None
            first = test.ttft_ms
            print(f"| {round_} | {name} | {test.details.samples:,} | {first.p50:,.0f} | {first.p99:,.0f} |", flush=True)


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("urls", nargs="*", metavar="URL")
    flags.add_argument("--rate", type=float, default=5.0, help="queries/s of real servers [5]")
    flags.add_argument("--rounds", type=int, default=3, help="of both rules on real servers [3]")
    return flags


def main() -> None:
    flags, more = parser().parse_known_args()
    real(flags.urls, flags.rate, flags.rounds, more) if flags.urls else simulated()


if __name__ == "__main__":
    start(main)
