"""One answer as it comes over the wire: its tokens, and when its messages came."""

import time
from collections.abc import Callable, Sequence

from harness.engines.answer_delivery import RUSH_S
from harness.engines.completions import CompletionChunk
from harness.engines.server_usage import StatedUsage

REPORT_INTERVAL_S = 1.0  # the pause between two reports that an answer goes on

# A function that returns the token ids of pieces, and half a character if the pieces end with one.
Encoder = Callable[[Sequence[CompletionChunk]], tuple[list[int], str]]


class AnswerReading:
    """The part of one answer that has come. `ids_out` says whether the server sends token ids."""

    def __init__(self, encode: Encoder, ids_out: bool) -> None:
        """Begin an answer of which nothing has come.

        `encode` returns the token ids of messages, and the text of an unfinished character at their end. `ids_out` says
        whether the server sends token ids.
        """
        self.first: Sequence[int] = ()  # the token ids of the messages up to the first one that completed a token
        self.pieces: list[CompletionChunk] = []  # all messages after those
        self.first_read_tokens = 0  # how many tokens came in the same read of the connection as `first`
        self.usage: StatedUsage | None = None
        self.has_text = False  # a message had tokens
        # The length of the answer so far: its token ids, and one for each message without ids. It grows with every
        # message, so it shows an answer that does not end.
        self.length = 0
        self.messages = 0  # messages with tokens
        self.rushed = 0  # messages with tokens that came less than RUSH_S after the message before
        self._encode, self._ids_out = encode, ids_out
        self._new_messages = 0  # messages with tokens in the present read of the connection
        # When a message with tokens last came, and when `end_read` last asked for a report that the answer goes on.
        self._last_message = self._last_report = time.monotonic()

    @property
    def end(self) -> CompletionChunk | None:
        """The message that ended the answer. None while the answer goes on."""
        for piece in self.pieces:
            if piece.end:
                return piece
        return None

    def add(self, piece: CompletionChunk) -> Sequence[int]:
        """Take a message of a streamed answer. Return the first token ids if it completes them, else ().

        The first ids are returned only once: their time is that of the first token.
        """
        self.pieces.append(piece)
        if self._has_tokens(piece):
            self._new_messages += 1
            self.has_text = True
        self.length += max(1, len(piece.ids or ()))
        self.usage = piece.usage or self.usage  # the last `usage` covers the whole answer
        if self.first:  # The first ids came with an earlier message.
            return ()
        # A message may end in the middle of a character, whose bytes are encoded together with the next message.
        self.first, half_character = self._encode(self.pieces)
        if self.first:
            # These messages are done but for the half character, and for how the answer ended.
            self.pieces = [CompletionChunk(text=half_character, end=piece.end, word=piece.word, model=piece.model)]
        return self.first

    def take_whole(self, piece: CompletionChunk) -> None:
        """Take an answer that came whole, in one document instead of a stream, so that no first token is timed."""
        self.pieces.append(piece)
        self.usage, self.has_text = piece.usage, self._has_tokens(piece)

    def _has_tokens(self, piece: CompletionChunk) -> bool:
        """Tell whether a message has tokens: token ids if the server sends them, else text."""
        if self._ids_out:
            return bool(piece.ids)
        return bool(piece.text)

    def end_read(self, now: float) -> bool:
        """Count the messages of one read of the connection, and return whether to report that the answer goes on.

        The read was at `now`, by time.monotonic.
        """
        if self._new_messages:
            self._count_new_messages(now)
        if self.first and not self.first_read_tokens:  # This read brought the first tokens.
            further_tokens, _ = self._encode(self.pieces)
            self.first_read_tokens = len(self.first) + len(further_tokens)
            return False  # The first tokens are themselves reported.
        if now - self._last_report <= REPORT_INTERVAL_S:  # The last report is recent enough.
            return False
        self._last_report = now
        return True

    def _count_new_messages(self, now: float) -> None:
        """Count the messages of one read, which was at `now`, and those of them that are rushed.

        A rushed message came directly after the message before: a buffer may have held it back.
        """
        is_first_rushed = self.messages > 0 and now - self._last_message < RUSH_S
        if is_first_rushed:
            self.rushed += 1
        self.rushed += self._new_messages - 1  # All further messages of the read came at the same time.
        self.messages += self._new_messages
        self._last_message, self._new_messages = now, 0
