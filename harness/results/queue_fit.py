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

TIME_BLOCKS = 20  # blocks of the observed time; how much their completions vary shows how even the server's work is
LEAST_VARIANCE_SHARE = 0.1  # at least this share of the variance between blocks counts as lasting
LAG_BLOCKS = 6  # the number of blocks within which late completions come in
FEWEST_ARRIVALS = 20  # If fewer queries were sent in the second half, single ones decide on the growth.
EVEN_SHARE = 0.1  # Concurrency counts as constant if it changes by no more than this share.
INSTANT_S = 1e-9  # the time of an answer that comes at once; avoids a division by zero
FEWEST_ANSWERS = 30  # the fewest answers for a fit
# From the first third of a test to the last, the speed changes by as much through the arrivals alone.
LASTING_DRIFT = 0.06


class AnswerFit(NamedTuple):
    """The time that an answer takes after its first token, by a fit over many answers. Zero where nothing is known."""

    token_s: float = 0.0
    """Seconds of its own for each token."""
    each_s: float = 0.0
    """Seconds for each answer's worth of tokens that other answers were given meanwhile."""
    prompt_s: float = 0.0
    """Seconds for each prompt of mean length that was begun meanwhile, for which all answers wait."""
    prompts: float = 0.0
    """Share of a query's work that is its prompt's."""
    spread: float = 0.0
    """Variance of the prompts' lengths over their mean squared."""
    tokens: float = 0.0
    """Mean tokens of an answer after its first."""
    answer_s: float = 0.0
    """Mean seconds that these tokens take."""
    beside: float = 0.0
    """Mean number of queries whose work was done meanwhile."""
    scatter: float = 0.0
    """Standard deviation of the logarithm of an answer's time over the fitted one."""
    drift: float = 0.0
    """Change of the server's speed from the first third to the last, where it is beyond chance."""


def queue_of(requests: Iterable[Request]) -> Queue | None:
    """Return what is known of the queue at the server in a test that sends requests by time.

    Requests that failed, or whose end is not known, are left out. None if too few are left.
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
    """Return the queue in the second half of the time in which requests were sent.

    The arguments have for each request: the second at which it was issued, the seconds to its first token, the second
    at which it was done, and its tokens. None for too few requests, and if all were sent at once.
    """
    import numpy as np

    issued, done = np.asarray(issued_s, float), np.asarray(done_s, float)
    are_all_issued_at_once = len(issued) > 0 and issued.max() == issued.min()
    if len(issued) < 2 * TIME_BLOCKS or are_all_issued_at_once:
        return None
    first_token = issued + np.asarray(ttft_s, float)
    middle, end = (issued.min() + issued.max()) / 2, issued.max()
    seconds = float(end - middle)
    edges = np.linspace(middle, end, TIME_BLOCKS + 1)  # the second half, divided into blocks of equal time
    completions, _edges = np.histogram(done, edges)  # the number of answers that ended in each block
    sent_count, completed_count = int((issued > middle).sum()), int(completions.sum())
    growth = (sent_count - completed_count) / seconds  # requests/s by which the queue grew
    error_of_growth = growth_error(sent_count, lasting_variance(completions), seconds)
    later_tokens = np.asarray(output_tokens, float) - 1  # of each answer, after its first token
    fit = fit_answers(first_token, done, np.asarray(prompt_tokens, float), later_tokens)
    if growth > SURE * error_of_growth:
        # The queue grew, so the server always had work, and its completions show how its speed changed.
        fit = fit._replace(drift=drift_of_completions(completions))
    # For the rate, an answer counts in each block by the part of it that was made there, if answers end in waves.
    answers_of_blocks = counted_answers(completions, edges, first_token, done)
    answers, variance = float(answers_of_blocks.sum()), lasting_variance(answers_of_blocks)
    return Queue(
        sent=sent_count / seconds,
        completed=answers / seconds,
        completed_error=error_of_rate(variance, seconds),
        growth=growth,
        chance=error_of_growth,
        dispersion=TIME_BLOCKS * variance / answers if answers else 0.0,  # variance over mean, both of a block
        **fit._asdict(),
    )


def counted_answers(completions: "Array", edges: "Array", first_token: "Array", done: "Array") -> "Array":
    """Return the number of answers that counts for each block of time, by which the rate of completions is measured.

    `completions` are the answers that ended in each block. The times between the blocks (`edges`) and of the answers
    are in seconds.
    """
    import numpy as np

    running_at_begin, running_at_end = (running_at(edge, first_token, done) for edge in (edges[0], edges[-1]))
    is_concurrency_constant = abs(running_at_end - running_at_begin) <= EVEN_SHARE * running_at_begin
    if not is_concurrency_constant:
        return completions
    # At a constant concurrency, answers end in waves, and the number that ends in a block depends on the wave. So the
    # parts of all answers count that were made in the block.
    made_by_edge = [made_until(edge, first_token, done) for edge in edges]
    parts_made: Array = np.diff(made_by_edge)
    return parts_made


def error_of_rate(variance_of_block: float, seconds: float) -> float:
    """Return the standard error of a rate over `seconds` seconds, by the variance of the count in a block of time."""
    return sqrt(variance_of_block * TIME_BLOCKS) / seconds  # The variances of the blocks add up.


def growth_error(sent_count: int, variance_of_completions: float, seconds: float) -> float:
    """Return the standard error of a queue's growth over `seconds` seconds, in requests/s.

    `sent_count` is the number of requests that were sent. `variance_of_completions` is that of the completions in a
    block of time.
    """
    # The variance of a random count is its mean. Of few queries, single ones decide on the growth, so the error is that
    # of FEWEST_ARRIVALS.
    error_of_arrivals = sqrt(max(sent_count, FEWEST_ARRIVALS)) / seconds
    return hypot(error_of_arrivals, error_of_rate(variance_of_completions, seconds))


def running_at(at_s: float, first_token: "Array", done: "Array") -> int:
    """Return how many answers had begun but not ended at a time.

    `first_token` and `done` are the seconds of all answers.
    """
    return int((first_token <= at_s).sum() - (done <= at_s).sum())


def made_until(at_s: float, first_token: "Array", done: "Array") -> float:
    """Return how many answers were made until a time. An unfinished answer counts as the fraction made so far.

    `first_token` and `done` are the seconds at which each answer began and ended; its pace in between is taken to be
    constant.
    """
    import numpy as np

    made_shares = (at_s - first_token) / np.maximum(done - first_token, INSTANT_S)
    return float(np.clip(made_shares, 0, 1).sum())


def drift_of_completions(completions: "Array") -> float:
    """Return the relative change of completions from the first third of the time blocks to the last.

    0 if the change is within chance or within LASTING_DRIFT. `completions` are those of each block.
    """
    third = TIME_BLOCKS // 3  # the number of blocks in a third
    # At least 1, since the change is relative to the first number.
    early = max(int(completions[:third].sum()), 1)
    late = max(int(completions[-third:].sum()), 1)
    variance_of_difference = 2 * lasting_variance(completions) * third  # The variances of both thirds' blocks add up.
    change_by_chance = SURE * sqrt(variance_of_difference)
    if abs(late - early) <= max(change_by_chance, LASTING_DRIFT * early):
        return 0.0
    return late / early - 1


def lasting_variance(counts: "Array") -> float:
    """Return the long-run variance of a count: the part of its variance that adds up over many blocks of time.

    `counts` has the completions of each block. A late completion is missing in one block and extra in a later one, so
    its variance cancels out. The correlations have Bartlett's weights. The result is at most the variance.
    """
    offsets = counts - counts.mean()
    square_sum = float((offsets**2).sum())
    if not square_sum:
        return 0.0
    correlation_sum = 0.0
    for lag in range(1, LAG_BLOCKS + 1):
        weight = 1 - lag / (LAG_BLOCKS + 1)
        estimate = float((offsets[lag:] * offsets[:-lag]).sum()) / square_sum
        correlation = estimate + 1 / len(offsets)  # The estimate is too low, as the mean is that of the same blocks.
        correlation_sum += weight * correlation
    lasting_share = min(1.0, max(LEAST_VARIANCE_SHARE, 1 + 2 * correlation_sum))
    return float(counts.var(ddof=1)) * lasting_share


def fit_answers(first_token: "Array", done: "Array", prompt_tokens: "Array", later_tokens: "Array") -> AnswerFit:
    """Fit by least squares how long an answer takes after its first token.

    The answer's own tokens, the tokens of other answers and the prompts that begin meanwhile each take time. The
    arguments have for each request: the seconds of its first token and of its end, the tokens of its prompt, and those
    of its answer after the first. The fit is empty with too few answers.
    """
    import numpy as np

    answer_s = done - first_token
    mean_prompt, mean_answer = float(prompt_tokens.mean()), float(later_tokens.mean())  # in tokens
    is_used = (answer_s > 0) & (later_tokens > 0)
    if is_used.sum() < FEWEST_ANSWERS or not mean_prompt:
        return AnswerFit()
    # What the server did for other requests meanwhile, in answers and in prompts of mean length.
    other_tokens = output_tokens_between(first_token, done, later_tokens) - later_tokens
    other_answers = other_tokens / mean_answer
    other_prompts = prompt_tokens_between(first_token, done, prompt_tokens) / mean_prompt
    terms = np.column_stack((later_tokens, other_answers, other_prompts))[is_used]
    token_s, other_answer_s, other_prompt_s = nonnegative_fit(terms, answer_s[is_used])  # seconds for one of each
    other_request_s = other_answer_s + other_prompt_s  # what another request of mean length costs an answer
    prompt_share = 0.0  # the share of a request's work that is its prompt's
    if other_request_s > 0:
        prompt_share = other_prompt_s / other_request_s
    # The work that was done meanwhile, in whole requests. An answer is a part of a request's work, its prompt the rest.
    other_requests = (1 - prompt_share) * other_answers + prompt_share * other_prompts
    fitted_s = terms @ (token_s, other_answer_s, other_prompt_s)
    ratio = answer_s[is_used] / np.maximum(fitted_s, INSTANT_S)  # of the measured time to the fitted time
    in_order_of_begin = np.argsort(first_token[is_used])
    return AnswerFit(
        token_s=token_s,
        each_s=other_answer_s,
        prompt_s=other_prompt_s,
        prompts=prompt_share,
        spread=float(prompt_tokens.var() / mean_prompt**2),  # how unequal the prompts' lengths are
        tokens=mean_answer,
        answer_s=float(answer_s[is_used].mean()),
        beside=float(other_requests[is_used].mean()),
        scatter=float(np.log(ratio[ratio > 0]).std()),
        drift=drift_of_ratios(ratio[in_order_of_begin]),
    )


def drift_of_ratios(ratios: "Array") -> float:
    """Return the change of the server's speed during a test, positive if it became faster; 0 if chance explains it.

    `ratios` has the measured time of each answer over the fitted time, in the order in which the answers began.
    """
    import numpy as np

    first_third, _middle_third, last_third = np.array_split(ratios, 3)
    drift = float(first_third.mean() / last_third.mean()) - 1
    return drift if abs(drift) > LASTING_DRIFT else 0.0


def nonnegative_fit(terms: "Array", sums: "Array") -> list[float]:
    """Return the non-negative factors of the columns of `terms` whose sum comes nearest to `sums`, by least squares."""
    import numpy as np

    factors = np.zeros(terms.shape[1])
    columns = np.arange(terms.shape[1])
    while len(columns):
        fitted = np.linalg.lstsq(terms[:, columns], sums, rcond=None)[0]
        lowest = int(fitted.argmin())
        if fitted[lowest] >= 0:
            factors[columns] = fitted
            break
        # The factors are times, so a negative one is chance. The others are fitted again without it.
        columns = np.delete(columns, lowest)
    return [float(factor) for factor in factors]


def output_tokens_between(first_token: "Array", done: "Array", later_tokens: "Array") -> "Array":
    """Return for each answer the tokens that all answers, itself included, got while it was made.

    `first_token` and `done` are the seconds of each answer's first token and end, `later_tokens` its tokens after the
    first.
    """
    import numpy as np

    answer_s = done - first_token
    # Each answer is assumed to be made at a constant speed.
    speeds = np.where(answer_s > 0, later_tokens / np.maximum(answer_s, INSTANT_S), 0.0)  # tokens/s of each answer
    # The speed of all answers together rises when an answer begins, and falls when one ends.
    change_times, changes = np.concatenate((first_token, done)), np.concatenate((speeds, -speeds))
    order = np.argsort(change_times, kind="stable")
    times = change_times[order]
    total_speeds = np.cumsum(changes[order])  # tokens/s of all answers together, from each of `times` to the next
    tokens_of_intervals = total_speeds[:-1] * np.diff(times)
    tokens_so_far = np.concatenate(([0.0], np.cumsum(tokens_of_intervals)))  # of all answers, at each of `times`
    tokens_until_end, tokens_until_begin = (np.interp(at_s, times, tokens_so_far) for at_s in (done, first_token))
    tokens_between: Array = tokens_until_end - tokens_until_begin
    return tokens_between


def prompt_tokens_between(first_token: "Array", done: "Array", prompt_tokens: "Array") -> "Array":
    """Return for each answer the tokens of the prompts that were begun while it was made.

    `first_token` and `done` are the seconds of each answer's first token and end.
    """
    import numpy as np

    # A prompt is taken to begin at the first token of its answer.
    order = np.argsort(first_token)
    begins = first_token[order]
    prompts_so_far = np.cumsum(prompt_tokens[order])
    tokens_of_first = np.concatenate(([0.0], prompts_so_far))  # the tokens of the first 0, 1, 2 ... prompts
    count_until_end = np.searchsorted(begins, done, "right")
    count_until_begin = np.searchsorted(begins, first_token, "right")
    tokens: Array = tokens_of_first[count_until_end] - tokens_of_first[count_until_begin]
    return tokens
