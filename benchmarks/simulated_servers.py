"""Servers in virtual time: when each request's first token and last token is there, and which requests are refused.

An engine computes in steps: a step gives every running request a token and reads the prompts of the requests that
begin. Its length is a base, a cost of each running request, and a cost of each prompt (`Engine`). Speeds and loads
change as `Pace` says. Times are in seconds of virtual time.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

Times = Any  # an array of seconds
TENTHS = 10  # of a second, in which a speed is constant
STILL = 1e-6  # a lower speed is a standstill
UNLIMITED = 10**9


class Answers(NamedTuple):
    """When each request's first token and last token is there, and whether it was refused instead; and how many
    replicas an autoscaler has in the end.
    """

    first: Times
    last: Times
    is_refused: Times
    replicas: float = 1.0


@dataclass(frozen=True)
class Pace:
    """How a server's speed changes over time; 1 is its full speed. `age_s` counts from the beginning of a search."""

    noise: float = 0.0  # standard deviation of a second's speed
    slow_s: float = 0.0  # seconds of the age in which the speed rises from 0.7 to 1
    stall_s: float = 0.0  # seconds of a standstill at the end of every `every_s` of a test
    every_s: float = math.inf
    hot_s: float = math.inf  # seconds of a test after which the speed is `hot`
    hot: float = 1.0
    neighbor_s: float = 0.0  # seconds in which another tenant is there, in every `neighbor_every_s` of the age
    neighbor_every_s: float = 90.0
    neighbor_speed: float = 0.5  # what the other tenant leaves
    wave: float = 0.0  # amplitude of a sine over the age
    wave_s: float = 600.0  # its period
    heat: float = 0.0  # share of the speed that heat takes in the end, as its clock shows
    heat_s: float = 120.0  # time constant of the heat

    def speeds(self, seconds: int, age_s: float, random: Any) -> Times:
        """The speed in each tenth of a second of a test that begins at this age."""
        speed = np.repeat(random.normal(1, self.noise, seconds), TENTHS).clip(0.1)
        times = np.arange(TENTHS * seconds) / TENTHS
        ages = age_s + times
        if self.slow_s:
            speed *= np.minimum(1, 0.7 + 0.3 * ages / self.slow_s)
        if self.neighbor_s:
            is_there = ages % self.neighbor_every_s >= self.neighbor_every_s - self.neighbor_s
            speed[is_there] *= self.neighbor_speed
        speed[times >= self.hot_s] *= self.hot
        speed *= 1 + self.wave * np.sin(2 * np.pi * ages / self.wave_s)
        speed *= self.clock(ages)
        if self.stall_s:
            speed[times % self.every_s >= self.every_s - self.stall_s] = STILL / 2
        return speed

    def clock(self, ages: Times) -> Times:
        """The clock that a card with this heat shows at each age, 1 when it is cool."""
        return 1 - self.heat * (1 - np.exp(-ages / self.heat_s))


@dataclass(frozen=True)
class Prefill:
    """A server bound by its prompts: it reads one after the other, `rate` a second, and then gives `tokens` tokens,
    `token_s` seconds each, however many requests run.
    """

    rate: float
    tokens: int = 16
    token_s: float = 0.004

    def requests(self, count: int) -> tuple[Times, Times]:
        """The prompt's work of each request, as a share of the mean, and the tokens of its answer."""
        return np.ones(count), np.full(count, self.tokens)

    def answer(self, arrivals: Times, speeds: Times, in_flight: int = UNLIMITED, replicas: float = 1.0) -> Answers:
        first = prompts_read(arrivals, speeds, self.rate)
        last = first + (self.tokens - 1) * self.token_s
        return Answers(first, last, np.zeros(len(arrivals), bool))


def prompts_read(arrivals: Times, speeds: Times, rate: float) -> Times:
    """When each prompt is read by a server that reads one after the other, `rate` a second at full speed."""
    work = np.concatenate(([0.0], np.cumsum(speeds) / TENTHS))  # seconds at full speed until each edge
    edges = np.arange(len(work)) / TENTHS
    ready = np.interp(arrivals, edges, work) * rate
    order = np.arange(len(arrivals))
    finished = np.maximum.accumulate(ready - order) + order + 1
    return np.interp(finished / rate, work, edges)


@dataclass(frozen=True)
class Engine:
    """A server that computes in steps, of one or more replicas."""

    base_s: float  # seconds of a step
    running_s: float  # more for each running request
    prompt_s: float = 0.0  # more for each prompt that it reads
    power: float = 1.0  # of the number of running requests, by which a step takes longer
    at_once: int = UNLIMITED  # requests that run; others wait
    queue: int = UNLIMITED  # requests that wait; more are refused
    prompt_spread: float = 0.0  # standard deviation over mean of a prompt's work
    long_prompts: float = 0.0  # share of prompts that are `long_factor` times as long
    long_factor: float = 1.0
    answers: tuple[int, int] = (128, 128)  # tokens, least and most
    drafted: float = 0.0  # chance of each of two more tokens in a step
    replicas: int = 1
    is_random: bool = False  # whether requests take a replica at random; else in turn
    is_static: bool = False  # whether the next batch begins when the last one is answered
    step_tokens: int = UNLIMITED  # prompt tokens and answer tokens of a step
    prompt_tokens: int = 782
    stair: int = 1  # running requests are computed as the next multiple of this
    knee: int = UNLIMITED  # running requests beyond which memory is short
    knee_s: float = 0.0  # more of a step for each running request beyond the knee
    most_replicas: int = 0  # of an autoscaler, that begins with one; 0: no autoscaler
    scale_s: float = 60.0  # seconds of load before an autoscaler adds a replica
    scale_at: int = 32  # running requests of a replica, from which on another one is added

    def requests(self, count: int) -> tuple[Times, Times]:
        """The prompt's work of each request, as a share of the mean, and the tokens of its answer."""
        random = np.random.default_rng(count)
        prompts = np.ones(count)
        if self.prompt_spread:
            spread = self.prompt_spread**2
            prompts = random.gamma(1 / spread, spread, count)
        tokens = random.integers(self.answers[0], self.answers[1], count, endpoint=True)
        if self.long_prompts:
            is_long = random.random(count) < self.long_prompts
            prompts = np.where(is_long, self.long_factor, 1.0) / (1 + self.long_prompts * (self.long_factor - 1))
        return prompts, tokens

    def answer(self, arrivals: Times, speeds: Times, in_flight: int = UNLIMITED, replicas: float = 1.0) -> Answers:
        """The answers, where a client keeps at most `in_flight` requests at the server, and an autoscaler begins with
        so many replicas.
        """
        prompts, tokens = self.requests(len(arrivals))
        steps = self.steps(tokens)
        count = len(arrivals)
        if self.most_replicas:
            return self.serve(arrivals, prompts, steps, speeds, in_flight, replicas)
        found = Answers(np.empty(count), np.empty(count), np.zeros(count, bool))
        replica = np.arange(count) % self.replicas
        if self.is_random:
            replica = np.random.default_rng(count + 2).integers(0, self.replicas, count)
        for n in range(self.replicas):
            mine = np.flatnonzero(replica == n)
            if not mine.size:
                continue
            own = self.serve(arrivals[mine], prompts[mine], steps[mine], speeds, in_flight // self.replicas)
            for whole, part in zip(found[:3], own[:3], strict=True):
                whole[mine] = part
        return found

    def steps(self, tokens: Times) -> Times:
        """The steps that each answer takes after its first token: fewer than its tokens where some are drafted."""
        mean = 1 + 2 * self.drafted
        spread = np.sqrt(2 * self.drafted * (1 - self.drafted) * tokens / mean) / mean
        chance = np.random.default_rng(len(tokens) + 1).normal(size=len(tokens))
        return np.maximum(1, np.rint((tokens - 1) / mean + spread * chance)).astype(np.int64)

    def serve(
        self, arrivals: Times, prompts: Times, steps: Times, speeds: Times, in_flight: int, replicas: float = 1.0
    ) -> Answers:
        """The answers of one replica, or of an autoscaler."""
        at_once, queue = self.at_once, self.queue
        if in_flight <= self.at_once + self.queue:  # the rest waits in the client, which refuses nothing
            at_once, queue = min(self.at_once, in_flight), UNLIMITED
        return Answers(
            *compiled_steps()(
                np.ascontiguousarray(arrivals),
                np.ascontiguousarray(prompts, dtype=np.float64),
                np.ascontiguousarray(steps),
                speeds,
                (self.base_s, self.running_s, self.prompt_s, float(self.power), self.knee_s, self.scale_s),
                (at_once, queue, self.step_tokens, self.prompt_tokens, self.stair, self.knee),
                (replicas, self.most_replicas, self.scale_at),
                self.is_static,
            )
        )


@cache
def compiled_steps() -> Callable[..., tuple[Times, Times, Any, float]]:
    """Return `run_steps`, compiled. vLLM cannot start in a process that has imported numba, so no module does."""
    from numba import njit

    compiled: Callable[..., tuple[Times, Times, Any, float]] = njit(cache=True, boundscheck=True)(run_steps)
    return compiled


# numba compiles one function, so the loop is not cut into several.
def run_steps(came, work, steps, speeds, costs, limits, scaling, is_static):  # type: ignore[no-untyped-def]  # noqa: C901, PLR0915
    """Run an engine step by step. Raises IndexError where it has not answered all when `speeds` end."""
    base_s, running_s, prompt_s, power, knee_s, scale_s = costs
    at_once, queue, step_tokens, prompt_tokens, stair, knee = limits
    replicas, most_replicas, scale_at = scaling
    count = len(came)
    first, last, is_refused = np.zeros(count), np.zeros(count), np.zeros(count, np.bool_)
    size = steps.max() + 1
    ending = np.full(size, -1)  # the latest request that ends in each step, in a ring
    other = np.full(count, -1)  # another request that ends in the same step
    waiting = np.empty(count, np.int64)
    head = tail = arrived = running = step = 0
    now, room, loaded_s, before = 0.0, 0.0, 0.0, 0.0
    while arrived < count or running or head < tail:
        if not running and head == tail and came[arrived] > now:
            now = came[arrived]
            before = now
        while speeds[int(10 * now)] < 1e-6:
            now = (int(10 * now) + 1.001) / 10
        # Requests that came until now wait, or are refused where too many do.
        while arrived < count and came[arrived] <= now:
            free = max(at_once - running, 0)
            if tail - head >= free + queue:
                is_refused[arrived] = True
                first[arrived] = last[arrived] = now
            else:
                waiting[tail] = arrived
                tail += 1
            arrived += 1
        if not running and head == tail:
            continue
        room = min(room + step_tokens - running, float(step_tokens))
        begun, prompt_work, was_running = head, 0.0, running
        while head < tail and running < at_once and room >= prompt_tokens and not (is_static and was_running):
            prompt_work += work[waiting[head]]
            room -= prompt_tokens
            head += 1
            running += 1
        computed = math.ceil(running / stair) * stair
        seconds = base_s + running_s * (computed / replicas) ** power + prompt_s * prompt_work / replicas
        seconds += knee_s * max(running - knee, 0)
        now += seconds / speeds[int(10 * now)]
        if most_replicas:  # one more replica after a while of load
            loaded_s = loaded_s + now - before if running > scale_at * replicas else 0.0
            if loaded_s > scale_s and replicas < most_replicas:
                replicas += 1.0
                loaded_s = 0.0
            before = now
        for place in range(begun, head):
            request = waiting[place]
            first[request] = now
            ring = (step + steps[request]) % size
            other[request] = ending[ring]
            ending[ring] = request
        request = ending[step % size]
        ending[step % size] = -1
        while request >= 0:
            last[request] = now
            running -= 1
            request = other[request]
        step += 1
    return first, last, is_refused, replicas


@dataclass(frozen=True)
class Disaggregated:
    """Prompts are read on one machine, one after the other, `rate` a second; answers are made on another one."""

    rate: float
    decode: Engine

    def requests(self, count: int) -> tuple[Times, Times]:
        """As `Engine.requests`."""
        return self.decode.requests(count)

    def answer(self, arrivals: Times, speeds: Times, in_flight: int = UNLIMITED, replicas: float = 1.0) -> Answers:
        first = prompts_read(arrivals, speeds, self.rate)
        found = self.decode.answer(first, speeds, in_flight)
        return found._replace(first=first)


Server = Prefill | Engine | Disaggregated


def batching(rate: float, base_s: float = 0.02, tpot_s: float = 0.085) -> Engine:
    """An engine whose steps take `tpot_s` on average at this rate."""
    return Engine(base_s, (1 - base_s / tpot_s) / (rate * 128))


def shared(capacity: float, alone_s: float = 0.0032, prompts: float = 0.0, **more: Any) -> Engine:
    """An engine that is shared like a processor: mean TPOT = alone_s / (1 - rate / capacity). `prompts` is the share of
    a query's work that is its prompt's, for which all answers wait; `more` are settings of the engine.
    """
    query_s = 1 / capacity
    running_s = (1 - prompts) * query_s / 128
    return replace(Engine(alone_s - running_s, running_s, prompts * query_s), **more)
