"""Servers in virtual time: when each request's first token and last token is there, and which requests are refused.

An engine computes in steps: a step gives every running request a token and reads the prompts of the requests that
begin. Its length is a base, a cost of each running request, and a cost of each prompt (`Engine`). Speeds and loads
change as `Pace` says. Times are in seconds of virtual time. An array has one value for each request, or one speed for
each tenth of a second.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
SPEEDS_PER_S = 10  # A speed is constant for a tenth of a second.
LEAST_SPEED = 1e-6  # A lower speed is a standstill.
UNLIMITED = 10**9  # a limit that no test reaches


class RequestSizes(NamedTuple):
    """The work of each request's prompt, as a share of the mean, and the number of tokens of its answer."""

    prompt_work: Array
    tokens: Array


class Answers(NamedTuple):
    """When each request's first token and last token is there, or when it was refused instead.

    `replicas` is the number of replicas that an autoscaler has in the end.
    """

    first: Array
    last: Array
    is_refused: Array
    replicas: float = 1.0


@dataclass(frozen=True)
class Pace:
    """How a server's speed changes over time; 1 is its full speed. The age counts from the beginning of a search."""

    noise: float = 0.0  # standard deviation of a second's speed
    warm_up_s: float = 0.0  # the age at which the speed has risen from 0.7 to 1
    stall_s: float = 0.0  # seconds of a standstill at the end of every `stall_every_s` of a test
    stall_every_s: float = math.inf
    hot_after_s: float = math.inf  # seconds of a test after which the speed is `hot_speed`
    hot_speed: float = 1.0
    neighbor_s: float = 0.0  # seconds in which another tenant runs, at the end of every `neighbor_every_s` of the age
    neighbor_every_s: float = 90.0
    neighbor_speed: float = 0.5  # the speed while the other tenant runs
    wave: float = 0.0  # amplitude of a sine over the age
    wave_s: float = 600.0  # its period
    heat: float = 0.0  # share of the speed that heat takes in the end, as the card's clock shows
    heat_s: float = 120.0  # time constant of the heat

    def speeds(self, seconds: int, age_s: float, random: np.random.Generator) -> Array:
        """Return the speed in each tenth of a second of a test that begins at the age `age_s`."""
        speed = np.repeat(random.normal(1, self.noise, seconds), SPEEDS_PER_S).clip(0.1)
        times = np.arange(SPEEDS_PER_S * seconds) / SPEEDS_PER_S
        ages = age_s + times
        if self.warm_up_s:
            speed *= np.minimum(1, 0.7 + 0.3 * ages / self.warm_up_s)
        if self.neighbor_s:
            has_neighbor = ages % self.neighbor_every_s >= self.neighbor_every_s - self.neighbor_s
            speed[has_neighbor] *= self.neighbor_speed
        speed[times >= self.hot_after_s] *= self.hot_speed
        speed *= 1 + self.wave * np.sin(2 * np.pi * ages / self.wave_s)
        speed *= self.clock(ages)
        if self.stall_s:
            is_stalled = times % self.stall_every_s >= self.stall_every_s - self.stall_s
            speed[is_stalled] = LEAST_SPEED / 2
        return speed

    def clock(self, ages: Array) -> Array:
        """Return the clock of the card at each age, as a share of its clock when it is cool."""
        return np.asarray(1 - self.heat * (1 - np.exp(-ages / self.heat_s)))


@dataclass(frozen=True)
class Prefill:
    """A server that is limited by its prompts: it reads one after the other, `rate` a second.

    After its prompt, each request gets `tokens` tokens, `token_s` seconds each, however many requests run.
    """

    rate: float
    tokens: int = 16
    token_s: float = 0.004

    def requests(self, count: int) -> RequestSizes:
        return RequestSizes(np.ones(count), np.full(count, self.tokens))

    def answer(self, arrivals: Array, speeds: Array, _in_flight: int = UNLIMITED, _replicas: float = 1.0) -> Answers:
        """Return the answers to requests that arrive at these times. This server has no limit and no replicas."""
        first = prompt_ends(arrivals, speeds, self.rate)
        last = first + (self.tokens - 1) * self.token_s
        return Answers(first, last, np.zeros(len(arrivals), bool))


def prompt_ends(arrivals: Array, speeds: Array, rate: float) -> Array:
    """Return when each prompt has been read by a server that reads one after the other.

    It reads `rate` prompts a second at full speed.
    """
    # Work is counted in seconds at full speed. `work` has what the server can do until each edge between two speeds.
    work = np.concatenate(([0.0], np.cumsum(speeds) / SPEEDS_PER_S))
    edges = np.arange(len(work)) / SPEEDS_PER_S
    # The same in prompts: how many the server could have read when each request arrived, and when each is read.
    prompts_at_arrival = np.interp(arrivals, edges, work) * rate
    prompts_before = np.arange(len(arrivals))
    prompts_at_end = np.maximum.accumulate(prompts_at_arrival - prompts_before) + prompts_before + 1
    return np.asarray(np.interp(prompts_at_end / rate, work, edges))


@dataclass(frozen=True)
class Engine:
    """A server that computes in steps, of one or more replicas."""

    base_s: float  # seconds of a step without requests
    running_s: float  # seconds that a step takes longer for each running request
    prompt_s: float = 0.0  # seconds that a step takes longer for each prompt that it reads
    power: float = 1.0  # the power of the number of running requests by which a step takes longer
    most_running: int = UNLIMITED  # requests that run; others wait
    most_waiting: int = UNLIMITED  # requests that wait; more are refused
    prompt_spread: float = 0.0  # standard deviation over mean of a prompt's work
    long_prompt_share: float = 0.0  # share of prompts that are `long_prompt_factor` times as long
    long_prompt_factor: float = 1.0
    answer_tokens: tuple[int, int] = (128, 128)  # fewest and most tokens of an answer
    draft_chance: float = 0.0  # chance of each of two more tokens in a step
    replicas: int = 1
    is_random: bool = False  # whether requests go to a replica at random; else to each in turn
    is_static: bool = False  # whether the next batch begins only when the last one is answered
    step_tokens: int = UNLIMITED  # most prompt tokens and answer tokens of a step
    prompt_tokens: int = 782
    stair: int = 1  # A step takes as long as for the next multiple of this number of running requests.
    knee: int = UNLIMITED  # running requests beyond which memory is short
    knee_s: float = 0.0  # seconds that a step takes longer for each running request beyond the knee
    most_replicas: int = 0  # the most replicas of an autoscaler, which begins with one; 0 if the server is none
    scale_s: float = 60.0  # seconds of load before an autoscaler adds a replica
    scale_at: int = 32  # running requests of each replica beyond which an autoscaler counts as loaded

    def requests(self, count: int) -> RequestSizes:
        """Return the sizes of `count` requests. They are the same for the same number."""
        random = np.random.default_rng(count)
        prompt_work = np.ones(count)
        if self.prompt_spread:
            variance = self.prompt_spread**2
            prompt_work = random.gamma(1 / variance, variance, count)
        fewest_tokens, most_tokens = self.answer_tokens
        tokens = random.integers(fewest_tokens, most_tokens, count, endpoint=True)
        if self.long_prompt_share:
            is_long = random.random(count) < self.long_prompt_share
            mean_work = 1 + self.long_prompt_share * (self.long_prompt_factor - 1)
            prompt_work = np.where(is_long, self.long_prompt_factor, 1.0) / mean_work
        return RequestSizes(prompt_work, tokens)

    def answer(self, arrivals: Array, speeds: Array, in_flight: int = UNLIMITED, replicas: float = 1.0) -> Answers:
        """Return the answers to requests that arrive at these times.

        The client keeps at most `in_flight` requests at the server. An autoscaler begins with `replicas` replicas.
        """
        count = len(arrivals)
        sizes = self.requests(count)
        steps = self.steps(sizes.tokens)
        if self.most_replicas:
            return self.serve(arrivals, sizes.prompt_work, steps, speeds, in_flight, replicas)
        answers = Answers(np.empty(count), np.empty(count), np.zeros(count, bool))
        replica_of_request = self.replica_choices(count)
        for replica in range(self.replicas):
            requests = np.flatnonzero(replica_of_request == replica)
            if not requests.size:
                continue
            part = self.serve(
                arrivals[requests], sizes.prompt_work[requests], steps[requests], speeds, in_flight // self.replicas
            )
            answers.first[requests] = part.first
            answers.last[requests] = part.last
            answers.is_refused[requests] = part.is_refused
        return answers

    def replica_choices(self, count: int) -> Array:
        """Return the number of the replica to which each request goes."""
        if self.is_random:
            return np.random.default_rng(count + 2).integers(0, self.replicas, count)
        return np.arange(count) % self.replicas

    def steps(self, tokens: Array) -> Array:
        """Return the steps that each answer takes after its first token, at least 1.

        They are fewer than its tokens if draft tokens are accepted. Their number varies by chance, and is drawn from a
        normal distribution.
        """
        tokens_per_step = 1 + 2 * self.draft_chance
        variance = 2 * self.draft_chance * (1 - self.draft_chance) * tokens / tokens_per_step
        spread = np.sqrt(variance) / tokens_per_step
        chance = np.random.default_rng(len(tokens) + 1).normal(size=len(tokens))
        steps = np.rint((tokens - 1) / tokens_per_step + spread * chance)
        return np.asarray(np.maximum(1, steps).astype(np.int64))

    def serve(
        self, arrivals: Array, prompt_work: Array, steps: Array, speeds: Array, in_flight: int, replicas: float = 1.0
    ) -> Answers:
        """Return the answers of one replica, or of an autoscaler."""
        most_running, most_waiting = self.most_running, self.most_waiting
        if in_flight <= self.most_running + self.most_waiting:
            # The other requests wait in the client, which refuses none.
            most_running, most_waiting = min(self.most_running, in_flight), UNLIMITED
        first, last, is_refused, replicas_at_end = compiled_steps()(
            np.ascontiguousarray(arrivals),
            np.ascontiguousarray(prompt_work, dtype=np.float64),
            np.ascontiguousarray(steps),
            speeds,
            (self.base_s, self.running_s, self.prompt_s, float(self.power), self.knee_s, self.scale_s),
            (most_running, most_waiting, self.step_tokens, self.prompt_tokens, self.stair, self.knee),
            (replicas, self.most_replicas, self.scale_at),
            self.is_static,
        )
        return Answers(first, last, is_refused, replicas_at_end)


@cache
def compiled_steps() -> Callable[..., tuple[Array, Array, Array, float]]:
    """Return `run_steps`, compiled. vLLM cannot start in a process that has imported numba, so no module does."""
    from numba import njit

    compiled: Callable[..., tuple[Array, Array, Array, float]] = njit(cache=True, boundscheck=True)(run_steps)
    return compiled


# The loop is not split into several functions, since numba compiles this one function.
def run_steps(arrivals, prompt_work, steps, speeds, costs, limits, scaling, is_static):  # type: ignore[no-untyped-def]  # noqa: C901, PLR0915
    """Run an engine step by step, and return the values of `Answers`.

    `Engine.serve` passes an engine's settings as `costs`, `limits` and `scaling`. Raises IndexError if not all requests
    are answered at the end of `speeds`.
    """
    base_s, running_s, prompt_s, power, knee_s, scale_s = costs
    most_running, most_waiting, step_tokens, prompt_tokens, stair, knee = limits
    replicas, most_replicas, scale_at = scaling
    count = len(arrivals)
    first = np.zeros(count)
    last = np.zeros(count)
    is_refused = np.zeros(count, np.bool_)
    # The requests that end in the same step are a linked list, which -1 ends. The ring has the first request of
    # the list of each step to come.
    ring_size = steps.max() + 1
    ring = np.full(ring_size, -1)
    next_in_list = np.full(count, -1)
    # The requests waiting[head:tail] wait, in the order of their arrival.
    waiting = np.empty(count, np.int64)
    head = tail = 0
    arrived = running = 0  # numbers of requests
    step = 0  # the number of the current step
    now = 0.0
    prompt_room = 0.0  # prompt tokens that may be read
    loaded_s = 0.0  # seconds for which an autoscaler has been loaded
    last_step_end = 0.0
    while arrived < count or running or head < tail:
        # An idle engine waits for the next request.
        if not running and head == tail and arrivals[arrived] > now:
            now = arrivals[arrived]
            last_step_end = now
        # At a standstill, time goes on to the next tenth of a second.
        while speeds[int(SPEEDS_PER_S * now)] < LEAST_SPEED:
            now = (int(SPEEDS_PER_S * now) + 1.001) / SPEEDS_PER_S
        # Requests that have arrived wait, or are refused if too many wait already.
        while arrived < count and arrivals[arrived] <= now:
            free_places = max(most_running - running, 0)
            if tail - head >= free_places + most_waiting:
                is_refused[arrived] = True
                first[arrived] = last[arrived] = now
            else:
                waiting[tail] = arrived
                tail += 1
            arrived += 1
        if not running and head == tail:
            continue
        # Waiting requests begin. Tokens that a step had left for prompts count for the next one, up to `step_tokens`.
        prompt_room = min(prompt_room + step_tokens - running, float(step_tokens))
        old_head = head
        prompt_work_of_step = 0.0
        may_begin = not (is_static and running)
        while may_begin and head < tail and running < most_running and prompt_room >= prompt_tokens:
            prompt_work_of_step += prompt_work[waiting[head]]
            prompt_room -= prompt_tokens
            head += 1
            running += 1
        # The step is computed, for a number of requests that is rounded up to the next stair.
        computed = math.ceil(running / stair) * stair
        running_cost_s = running_s * (computed / replicas) ** power
        seconds = base_s + running_cost_s + prompt_s * prompt_work_of_step / replicas
        seconds += knee_s * max(running - knee, 0)
        now += seconds / speeds[int(SPEEDS_PER_S * now)]
        # An autoscaler adds a replica after some time of load.
        if most_replicas:
            is_loaded = running > scale_at * replicas
            loaded_s = loaded_s + now - last_step_end if is_loaded else 0.0
            if loaded_s > scale_s and replicas < most_replicas:
                replicas += 1.0
                loaded_s = 0.0
            last_step_end = now
        # Each request that began has its first token, and joins the list of the step in which it will end.
        for place in range(old_head, head):
            request = waiting[place]
            first[request] = now
            end = (step + steps[request]) % ring_size
            next_in_list[request] = ring[end]
            ring[end] = request
        # The requests of this step's list are answered.
        request = ring[step % ring_size]
        ring[step % ring_size] = -1
        while request >= 0:
            last[request] = now
            running -= 1
            request = next_in_list[request]
        step += 1
    return first, last, is_refused, replicas


@dataclass(frozen=True)
class Disaggregated:
    """A server that reads prompts on one machine, one after the other, and makes answers on another one."""

    rate: float  # prompts that are read a second
    decode: Engine  # the machine that makes the answers

    def requests(self, count: int) -> RequestSizes:
        return self.decode.requests(count)

    def answer(self, arrivals: Array, speeds: Array, in_flight: int = UNLIMITED, _replicas: float = 1.0) -> Answers:
        """Return the answers to requests that arrive at these times.

        The client keeps at most `in_flight` requests at the machine that makes the answers.
        """
        first = prompt_ends(arrivals, speeds, self.rate)
        decoded = self.decode.answer(first, speeds, in_flight)
        return decoded._replace(first=first)


Server = Prefill | Engine | Disaggregated


def batching_engine(rate: float, base_s: float = 0.02, tpot_s: float = 0.085) -> Engine:
    """Return an engine whose steps take `tpot_s` seconds on average at this rate, with answers of 128 tokens."""
    return Engine(base_s, (1 - base_s / tpot_s) / (rate * 128))


def sharing_engine(capacity: float, lone_tpot_s: float = 0.0032, prompt_share: float = 0.0, **settings: Any) -> Engine:
    """Return an engine that is shared like a processor: mean TPOT = lone_tpot_s / (1 - rate / capacity).

    `prompt_share` is the share of a query's work that is its prompt's, for which all answers wait.
    """
    query_s = 1 / capacity
    running_s = (1 - prompt_share) * query_s / 128
    engine = Engine(lone_tpot_s - running_s, running_s, prompt_share * query_s)
    return replace(engine, **settings)
