"""What the requests of a test tell of the server: how its queue grew, and how its answers held each other up."""

from collections.abc import Iterable
from math import hypot, sqrt
from typing import Any

from harness.loadgen.requests import Request
from harness.results.outcome import SURE, Queue

TIME_BLOCKS = 20  # of the time looked at; their completions tell how even the server's work is
LEAST_VARIANCE_SHARE = 0.1  # of their variance, however one makes up for the other
LAGS = 6  # blocks over which completions that were late come in after all
FEW_IN_FLIGHT = 20  # queries in flight at the middle and end together, below which growth is a matter of single queries
EVEN = 0.1  # of the answers that are made at once: as many at the end of the time looked at as at its beginning
INSTANT_S = 1e-9  # of an answer that comes at once
ENOUGH = 30  # answers that ended before the last query came, which a fit takes
LASTING_DRIFT = 0.06  # of the speed, from the first third to the last: below it, arrivals alone can make it


def queue_of(requests: Iterable[Request]) -> Queue | None:
    """The queue of a test whose requests were issued at times of their own. None where there are too few of them, or
    their times are not known.
    """
    timed = [each for each in requests if each.done_s is not None and not each.failure]
    rows = [
        (each.begin_s, (each.ttft_ms or 0.0) / 1e3, each.done_s, each.prompt_tokens, each.output_tokens)
        for each in timed
    ]
    return from_times(*zip(*rows, strict=True)) if rows else None


def from_times(*columns: Any) -> Queue | None:
    """The same from each request's times, in seconds, until it was issued, from then until its first token, and until
    it was done, and from the tokens of its prompt and its answer.
    """
    import numpy as np

    came, ttft, left, prompts, tokens = (np.asarray(column, float) for column in columns)
    if len(came) < 2 * TIME_BLOCKS or came.max() <= came.min():
        return None
    middle, end = (came.min() + came.max()) / 2, came.max()
    seconds = float(end - middle)
    edges, first = np.linspace(middle, end, TIME_BLOCKS + 1), came + ttft
    counts, _ = np.histogram(left, edges)
    sent, ended = int((came > middle).sum()), int(counts.sum())
    variance = lasting_variance(counts)
    error = sqrt(variance * TIME_BLOCKS) / seconds
    growth, chance = (sent - ended) / seconds, hypot(sqrt(max(sent, FEW_IN_FLIGHT)) / seconds, error)
    company = fit(came, first, left, prompts, tokens - 1)
    if growth > SURE * chance:  # then its completions tell its speed
        third = TIME_BLOCKS // 3
        early, late = (max(int(part.sum()), 1) for part in (counts[:third], counts[-third:]))
        beyond = SURE * sqrt(2 * variance * third)
        company["drift"] = late / early - 1 if abs(late - early) > max(beyond, LASTING_DRIFT * early) else 0.0
    completed, running = float(ended), [(first <= at).sum() - (left <= at).sum() for at in (middle, end)]
    if abs(running[1] - running[0]) <= EVEN * running[0]:  # each is made at one pace, whenever it ends
        parts = np.diff([np.clip((edge - first) / np.maximum(left - first, INSTANT_S), 0, 1).sum() for edge in edges])
        completed, variance = float(parts.sum()), lasting_variance(parts)
    return Queue(
        sent=sent / seconds,
        completed=completed / seconds,
        completed_error=sqrt(variance * TIME_BLOCKS) / seconds,
        growth=growth,
        chance=chance,
        dispersion=TIME_BLOCKS * variance / completed if completed else 0.0,
        **company,
    )


def lasting_variance(counts: Any) -> float:
    """The blocks' variance that adds up over time: what one lacks because it came late, a later one has.

    Autocorrelations by Bartlett's weights, each a little too low by chance, as its mean is that of the same blocks.
    """
    off, variance = counts - counts.mean(), float(counts.var(ddof=1))
    whole = float((off**2).sum())
    if not whole:
        return 0.0
    sums = (
        (1 - lag / (LAGS + 1)) * (float((off[lag:] * off[:-lag]).sum()) / whole + 1 / len(off))
        for lag in range(1, LAGS + 1)
    )
    return variance * min(1.0, max(LEAST_VARIANCE_SHARE, 1 + 2 * sum(sums)))


def fit(came: Any, first: Any, left: Any, prompts: Any, tokens: Any) -> dict[str, float]:
    """How long an answer takes after its first token, by least squares over those that ended before the last query
    came: seconds of its own for each token, those for each answer's worth of tokens that others were given meanwhile,
    and those for each mean prompt that was begun meanwhile, for which all answers wait.

    A step of the engine gives every running answer a token, and computes what prompts it took: so an answer's time is
    a sum over its steps, exactly, and its two regressors are counts. Only the tokens of answers that overlap its ends
    are taken to come evenly.
    """
    import numpy as np

    took, mean, length = left - first, float(prompts.mean()), float(tokens.mean())
    used = (took > 0) & (tokens > 0)
    if used.sum() < ENOUGH or not mean:
        return {}
    speed = np.where(took > 0, tokens / np.maximum(took, 1e-9), 0.0)
    times, steps = np.concatenate((first, left)), np.concatenate((speed, -speed))
    order = np.argsort(times, kind="stable")
    times, given = times[order], np.cumsum(steps[order])
    total = np.concatenate(([0.0], np.cumsum(given[:-1] * np.diff(times))))
    others = (np.interp(left, times, total) - np.interp(first, times, total) - tokens) / length
    begun, work = np.sort(first), np.concatenate(([0.0], np.cumsum(prompts[np.argsort(first)])))
    read = (work[np.searchsorted(begun, left, "right")] - work[np.searchsorted(begun, first, "right")]) / mean
    terms = np.column_stack((tokens, others, read))[used]
    base, each, prompt = (float(value) for value in np.linalg.lstsq(terms, took[used], rcond=None)[0])
    share = min(1.0, max(0.0, prompt / (each + prompt))) if each + prompt > 0 else 0.0
    ratio = took[used] / np.maximum(terms @ (base, each, prompt), 1e-9)
    thirds = np.array_split(ratio[np.argsort(first[used])], 3)
    drift = float(thirds[0].mean() / thirds[2].mean()) - 1
    return {
        "token_s": base,
        "each_s": each,
        "prompt_s": prompt,
        "prompts": share,
        "spread": float(prompts.var() / mean**2),
        "tokens": length,
        "answer_s": float(took[used].mean()),
        "beside": float(((1 - share) * others + share * read)[used].mean()),
        "scatter": float(np.log(ratio[ratio > 0]).std()),
        "drift": drift if abs(drift) > LASTING_DRIFT else 0.0,
    }
