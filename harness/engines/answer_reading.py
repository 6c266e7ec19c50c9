"""One answer as it comes over the wire: its tokens, and when its messages came."""

import time
from collections.abc import Callable, Sequence

from harness.engines.answer_delivery import RUSH_S
from harness.engines.completions import CompletionChunk
from harness.engines.server_usage import StatedUsage

REPORT_INTERVAL_S = 1.0  # an answer that goes on says so this often

# Returns the token ids of pieces, and half a character if the pieces end with one.
Encoder = Callable[[Sequence[CompletionChunk]], tuple[list[int], str]]


class AnswerReading:
    """The part of one answer that has come. `first` are the token ids that came at once with the first, `opening`
    counts those of the whole read of the connection that brought it, `messages` those with tokens, and `rushed` those
    that came less than RUSH_S after the one before.
    """

    def __init__(self, encode: Encoder, ids_out: bool) -> None:
        self.pieces: list[CompletionChunk] = []
        self.first: Sequence[int] = ()
        self.usage: StatedUsage | None = None
        self.has_text = False
        self.count = self.messages = self.rushed = self.opening = 0
        self._encode, self._ids_out = encode, ids_out
        self._new_messages = 0  # messages with tokens of this read
        self._last_message = self._last_report = time.monotonic()

    @property
    def end(self) -> CompletionChunk | None:
        """The message that ended the answer. None while the answer goes on."""
        for piece in self.pieces:
            if piece.end:
                return piece
        return None

    def add(self, piece: CompletionChunk) -> Sequence[int]:
        """Take a message. Return the answer's first token ids if this message brought them, else an empty list."""
        self.pieces.append(piece)
        if self._has_tokens(piece):
            self._new_messages += 1
            self.has_text = True
        self.count += max(1, len(piece.ids or ()))
        self.usage = piece.usage or self.usage  # the last `usage` covers the whole answer
        if self.first:
            return ()
        self.first, half = self._encode(self.pieces)
        if self.first:
            self.pieces = [CompletionChunk(text=half, end=piece.end, word=piece.word, model=piece.model)]
        return self.first

    def take_whole(self, piece: CompletionChunk) -> None:
        """Take an answer that came in one document."""
        self.pieces.append(piece)
        self.usage, self.has_text = piece.usage, self._has_tokens(piece)

    def _has_tokens(self, piece: CompletionChunk) -> bool:
        if self._ids_out:
            return bool(piece.ids)
        return bool(piece.text)

    def end_read(self, now: float) -> bool:
        """Note that all messages of a read were taken.

        The read was at `now`, by time.monotonic. Return whether the caller should report that the answer goes on.
        """
        if self._new_messages:
            is_rushed = self.messages > 0 and now - self._last_message < RUSH_S
            self.rushed += self._new_messages - 1 + is_rushed
            self.messages, self._last_message, self._new_messages = self.messages + self._new_messages, now, 0
        if self.first and not self.opening:
            self.opening = len(self.first) + len(self._encode(self.pieces)[0])
            return False
        if now - self._last_report <= REPORT_INTERVAL_S:
            return False
        self._last_report = now
        return True
