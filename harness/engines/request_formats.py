"""The request formats of the completions and the chat API, by which servers take prompts."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

from pydantic_core import to_json

from harness.engines.protocol import Sampling

# A prompt as a server takes it: token ids, text, or messages of role and content.
Content = Sequence[int] | str | Sequence[Mapping[str, str]]


class RequestFormat(NamedTuple):
    """The form in which a server takes prompts and gives answers, found out with one small request."""

    ids_in: bool  # prompts are token ids, not text
    ids_out: bool  # answers have token ids beside their text
    min_tokens: bool  # the server takes min_tokens; whether it obeys is not known
    usage: bool  # the server takes stream_options, by which a stream ends with `usage`
    chat: bool = False  # the prompt is sent as messages, which the server puts into its chat template
    no_cache_fields: tuple[tuple[str, bool], ...] = ()  # fields of this server's own that turn its cache off
    accepted_fields: tuple[tuple[str, float], ...] = ()  # the NEUTRAL_FIELDS that the server takes

    @property
    def path(self) -> str:
        return "/chat/completions" if self.chat else "/completions"

    def body(self, prompt: Content, model: str, sampling: Sampling, stream: bool) -> bytes:
        """Return the JSON of a request with the prompt in this form.

        In the chat API, a prompt that is text becomes one message of the user. Fields that the server does not take are
        left out. `stream` asks for a streamed answer.
        """
        fields: dict[str, object] = {"model": model}
        if not self.chat:
            fields["prompt"] = prompt
        elif isinstance(prompt, str):
            fields["messages"] = [{"role": "user", "content": prompt}]
        else:
            fields["messages"] = prompt
        fields |= {"max_tokens": sampling.max_new_tokens, "temperature": sampling.temperature}
        if stream:
            fields["stream"] = True
            if self.usage:
                fields["stream_options"] = {"include_usage": True}
        if self.ids_out:
            fields["return_token_ids"] = True
        if self.min_tokens:
            fields["min_tokens"] = sampling.min_new_tokens
        if sampling.exact:
            fields["ignore_eos"] = True
        fields.update((*self.no_cache_fields, *self.accepted_fields))  # pairs of a field and its value
        return to_json(fields)  # ten times as fast as json for a prompt of 800 ids

    def __str__(self) -> str:
        """Describe the form, and what the server does not take, in words."""
        prompt = "token ids in" if self.ids_in else "text in"
        if self.chat:
            prompt = "chat messages in"
        answer = "token ids out" if self.ids_out else "text out, its tokens as `usage` or the model's tokenizer counts"
        phrases = [f"{prompt}, {answer}"]
        if not self.min_tokens:
            phrases.append("the server does not take min_tokens")
        if not self.usage:
            phrases.append("the server does not take stream_options")
        for name, value in self.no_cache_fields:  # These fields are sent, so JSON's words are used: false, true.
            phrases.append(f"{name} {str(value).lower()}")
        refused_fields = [name for name, value in NEUTRAL_FIELDS if (name, value) not in self.accepted_fields]
        if refused_fields:
            phrases.append(f"the server does not take {', '.join(refused_fields)}: its own defaults apply")
        return "; ".join(phrases)


# All combinations of the first four traits, from the best, which has them all, to the one that has none.
COMPLETIONS = tuple(RequestFormat(*traits) for traits in product((True, False), repeat=4))  # type: ignore[arg-type]
FORMATS_BY_API = {  # formats by `--endpoint-api`, the best first
    "completions": COMPLETIONS,
    "chat": tuple(form._replace(chat=True) for form in COMPLETIONS if not form.ids_in),
}
# Settings that do not change what the model answers greedily. Without them, the server would take settings from its
# generation_config.json.
NEUTRAL_FIELDS = (
    ("top_p", 1.0),
    ("presence_penalty", 0.0),
    ("frequency_penalty", 0.0),
    ("top_k", -1),
    ("min_p", 0.0),
    ("repetition_penalty", 1.0),
)
