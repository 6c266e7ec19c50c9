"""The parts of a tokenizer that this program uses; transformers' tokenizers have them all."""

from collections.abc import Mapping, Sequence
from typing import Protocol, overload


class AddedToken(Protocol):
    """A token that was added to a vocabulary; `special` ones structure a text."""

    special: bool


class Tokenizer(Protocol):
    """Encodes text as token ids, and decodes them."""

    bos_token_id: int | None
    eos_token_id: int
    all_special_ids: Sequence[int]
    chat_template: str | None
    clean_up_tokenization_spaces: bool

    @property
    def added_tokens_decoder(self) -> Mapping[int, AddedToken]: ...

    def __len__(self) -> int: ...

    @overload
    def __call__(self, text: str) -> Mapping[str, list[int]]: ...
    @overload
    def __call__(self, text: list[str]) -> Mapping[str, list[list[int]]]: ...

    def clean_up_tokenization(self, text: str) -> str: ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...

    def batch_decode(self, sequences: Sequence[Sequence[int]], **options: bool) -> list[str]: ...

    def apply_chat_template(self, conversation: Sequence[Mapping[str, str]], **options: bool) -> list[int]: ...
