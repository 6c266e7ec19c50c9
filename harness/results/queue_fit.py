"""Model the server from a test's requests: how its queue grew, and how its answers held each other up."""

from collections.abc import Iterable, Sequence
from math import hypot, sqrt
from typing import TYPE_CHECKING, NamedTuple

from harness.loadgen.requests import Request
from harness.results.outcome import SURE, Queue

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

TIME_BLOCKS = 20  # The time looked at has so many; their completions tell how even the server's work is.
LEAST_VARIANCE_SHARE = 0.1  # Blocks make up for each other, but this share of their variance stays at least.
LAGS = 6  # Completions that were late come in within so many blocks.
FEW_IN_FLIGHT = 20  # With fewer queries at the middle and end together, growth is a matter of single queries.
EVEN_SHARE = 0.1  # As many answers are made at once at the end as at the beginning, within this share of them.
INSTANT_S = 1e-9  # An answer that comes at once takes this long.
FEWEST_ANSWERS = 30  # A fit takes so many answers that ended before the last query came.
# From the first third of a test to the last, the speed changes by as much through the arrivals alone.
LASTING_DRIFT = 0.06


class AnswerFit(NamedTuple):
    """The time that an answer takes after its first token, by a fit over many answers. Zero where nothing is known."""

    token_s: float = 0.0
    """Seconds of its own for each token."""
    each_s: float = 0.0
    """Seconds for each answer's worth of tokens that others were given meanwhile."""
    prompt_s: float = 0.0
    """Seconds for each prompt of mean length that was begun meanwhile, for which all answers wait."""
    prompts: float = 0.0
    """Share of a query's work that is its prompt's."""
    spread: float = 0.0
    """Variance of the prompts' lengths over their mean squared."""
    tokens: float = 0.0
    """Mean tokens of an answer after its first."""
    answer_s: float = 0.0
    """Mean seconds that they take."""
    beside: float = 0.0
    """Mean number of queries whose work was done meanwhile."""
    scatter: float = 0.0
    """Standard deviation of the logarithm of an answer's time over the fitted one."""
    drift: float = 0.0
    """Change of the server's speed from the first third to the last, where it is beyond chance."""


def queue_of(requests: Iterable[Request]) -> Queue | None:
    """Return the queue of a test whose requests were issued at times of their own.

    None where there are too few of them, or their times are not known.
    """
    issued_s, ttft_s, done_s = list[float](), list[float](), list[float]()
    prompt_tokens, output_tokens = list[int](), list[int]()
    for request in requests:
        if request.done_s is None or request.failure:
            continue
        issued_s.append(request.begin_s)
        ttft_s.append((request.ttft_ms or 0.0) / 1e3)
        done_s.append(request.end_s)
        prompt_tokens.append(request.prompt_tokens)
        output_tokens.append(request.output_tokens)
    return queue_from_times(issued_s, ttft_s, done_s, prompt_tokens, output_tokens)


def queue_from_times(
    issued_s: "Sequence[float] | Array",
    ttft_s: "Sequence[float] | Array",
    done_s: "Sequence[float] | Array",
    prompt_tokens: "Sequence[int] | Array",
    output_tokens: "Sequence[int] | Array",
) -> Queue | None:
    """Return the queue in the second half of the time in which requests were issued; None of too few requests.

    Of each request are known the seconds until it was issued, from then until its first token, and until it was done.
    """
    import numpy as np

    issued, done = np.asarray(issued_s, float), np.asarray(done_s, float)
    if len(issued) < 2 * TIME_BLOCKS or issued.max() <= issued.min():
        return None
    first = issued + np.asarray(ttft_s, float)
    middle, end = (issued.min() + issued.max()) / 2, issued.max()
    seconds = float(end - middle)
    edges = np.linspace(middle, end, TIME_BLOCKS + 1)
    counts, _ = np.histogram(done, edges)
    sent, ended = int((issued > middle).sum()), int(counts.sum())
    variance = lasting_variance(counts)
    growth = (sent - ended) / seconds
    error_of_arrivals = sqrt(max(sent, FEW_IN_FLIGHT)) / seconds
    error_of_completions = sqrt(variance * TIME_BLOCKS) / seconds
    chance = hypot(error_of_arrivals, error_of_completions)
    fit = fit_answers(issued, first, done, np.asarray(prompt_tokens, float), np.asarray(output_tokens, float) - 1)
    if growth > SURE * chance:  # More comes than is completed, so the completions tell the server's speed.
        fit = fit._replace(drift=drift_of_completions(counts, variance))
    completed = float(ended)
    running_at_middle, running_at_end = running_at(middle, first, done), running_at(end, first, done)
    if abs(running_at_end - running_at_middle) <= EVEN_SHARE * running_at_middle:
        # Each answer is made at one pace, so its parts count where they were made, whenever it ends.
        made_by_edge = [made_until(edge, first, done) for edge in edges]
        parts = np.diff(made_by_edge)
        completed, variance = float(parts.sum()), lasting_variance(parts)
    return Queue(
        sent=sent / seconds,
        completed=completed / seconds,
        completed_error=sqrt(variance * TIME_BLOCKS) / seconds,
        growth=growth,
        chance=chance,
        dispersion=TIME_BLOCKS * variance / completed if completed else 0.0,
        token_s=fit.token_s,
        each_s=fit.each_s,
        prompt_s=fit.prompt_s,
        prompts=fit.prompts,
        spread=fit.spread,
        tokens=fit.tokens,
        answer_s=fit.answer_s,
        beside=fit.beside,
        scatter=fit.scatter,
        drift=fit.drift,
    )


def running_at(at_s: float, first: "Array", done: "Array") -> int:
    """Return how many answers had begun at a time, and not ended."""
    return int((first <= at_s).sum() - (done <= at_s).sum())


def made_until(at_s: float, first: "Array", done: "Array") -> float:
    """Return how many answers were made until a time, in parts of answers that were under way."""
    import numpy as np

    return float(np.clip((at_s - first) / np.maximum(done - first, INSTANT_S), 0, 1).sum())


def drift_of_completions(counts: "Array", variance: float) -> float:
    """Return the change of the completions from the first third of the blocks to the last; 0 within chance."""
    third = TIME_BLOCKS // 3
    early, late = max(int(counts[:third].sum()), 1), max(int(counts[-third:].sum()), 1)
    by_chance = SURE * sqrt(2 * variance * third)
    if abs(late - early) <= max(by_chance, LASTING_DRIFT * early):
        return 0.0
    return late / early - 1


def lasting_variance(counts: "Array") -> float:
    """Return the blocks' variance that adds up over time: what one lacks because it came late, a later one has.

    The autocorrelations have Bartlett's weights. Each is a little too low by chance, as its mean is that of the same
    blocks, and is corrected by 1 / n.
    """
    off = counts - counts.mean()
    variance = float(counts.var(ddof=1))
    whole = float((off**2).sum())
    if not whole:
        return 0.0
    correlations = 0.0
    for lag in range(1, LAGS + 1):
        weight = 1 - lag / (LAGS + 1)
        correlations += weight * (float((off[lag:] * off[:-lag]).sum()) / whole + 1 / len(off))
    return variance * min(1.0, max(LEAST_VARIANCE_SHARE, 1 + 2 * correlations))


def fit_answers(issued: "Array", first: "Array", done: "Array", prompts: "Array", tokens: "Array") -> AnswerFit:
    """Fit by least squares how long an answer takes after its first token.

    A step of the engine gives every running answer a token, and computes what prompts it took. So the time of an answer
    is a sum over its steps, exactly, and two of its regressors are counts: the tokens that others were given meanwhile,
    and the prompts that were begun. Only the tokens of answers that overlap its ends are taken to come evenly.

    `tokens` are those after the first. Nothing is known of fewer than `FEWEST_ANSWERS` answers.
    """
    import numpy as np

    took = done - first
    mean_prompt, mean_tokens = float(prompts.mean()), float(tokens.mean())
    used = (took > 0) & (tokens > 0)
    if used.sum() < FEWEST_ANSWERS or not mean_prompt:
        return AnswerFit()
    tokens_of_others = (given_between(first, done, took, tokens) - tokens) / mean_tokens
    prompts_begun = begun_between(first, done, prompts) / mean_prompt
    terms = np.column_stack((tokens, tokens_of_others, prompts_begun))[used]
    token_s, each_s, prompt_s = nonnegative_fit(terms, took[used])
    work_s = each_s + prompt_s
    share = 0.0
    if work_s > 0:
        share = min(1.0, max(0.0, prompt_s / work_s))
    ratio = took[used] / np.maximum(terms @ (token_s, each_s, prompt_s), INSTANT_S)
    thirds = np.array_split(ratio[np.argsort(first[used])], 3)
    drift = float(thirds[0].mean() / thirds[2].mean()) - 1
    if abs(drift) <= LASTING_DRIFT:
        drift = 0.0
    return AnswerFit(
        token_s=token_s,
        each_s=each_s,
        prompt_s=prompt_s,
        prompts=share,
        spread=float(prompts.var() / mean_prompt**2),
        tokens=mean_tokens,
        answer_s=float(took[used].mean()),
        beside=float(((1 - share) * tokens_of_others + share * prompts_begun)[used].mean()),
        scatter=float(np.log(ratio[ratio > 0]).std()),
        drift=drift,
    )


def nonnegative_fit(terms: "Array", sums: "Array") -> list[float]:
    """Return the factors of the columns of `terms` that make its rows' sums, by least squares.

    No work takes less than no time. So a column whose factor comes out below zero, by chance, gets a factor of zero,
    and the others are fitted without it.
    """
    import numpy as np

    factors = np.zeros(terms.shape[1])
    columns = np.arange(terms.shape[1])
    while len(columns):
        fitted = np.linalg.lstsq(terms[:, columns], sums, rcond=None)[0]
        lowest = int(fitted.argmin())
        if fitted[lowest] >= 0:
            factors[columns] = fitted
            break
        columns = np.delete(columns, lowest)
    return [float(factor) for factor in factors]


def given_between(first: "Array", done: "Array", took: "Array", tokens: "Array") -> "Array":
    """Return the tokens that all answers were given while each answer was made, if each is made at one pace."""
    import numpy as np

    speed = np.where(took > 0, tokens / np.maximum(took, INSTANT_S), 0.0)
    times, changes = np.concatenate((first, done)), np.concatenate((speed, -speed))
    order = np.argsort(times, kind="stable")
    times, speeds = times[order], np.cumsum(changes[order])
    total = np.concatenate(([0.0], np.cumsum(speeds[:-1] * np.diff(times))))
    tokens_given: Array = np.interp(done, times, total) - np.interp(first, times, total)
    return tokens_given


def begun_between(first: "Array", done: "Array", prompts: "Array") -> "Array":
    """Return the tokens of the prompts that were begun while each answer was made."""
    import numpy as np

    order = np.argsort(first)
    begun, work = first[order], np.concatenate(([0.0], np.cumsum(prompts[order])))
    tokens: Array = work[np.searchsorted(begun, done, "right")] - work[np.searchsorted(begun, first, "right")]
    return tokens
