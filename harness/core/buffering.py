"""The sign of a buffer between an engine and this client. Needs no package."""


def is_buffered(messages: int, bundled: int, answers: int) -> bool:
    """Tell whether a buffer held back half of the answers or more, so that TTFT and TPOT are not the engine's.

    `messages` are those that held tokens, `bundled` are the answers whose tokens came in bursts, of all `answers`.
    """
    was_streamed = messages > 0
    return was_streamed and 2 * bundled >= answers
