"""The meaning of the keys beside a request's prompt: how long its answer may be, its system prompt, and what is not
sent.

A key that would change the request but is not sent is refused by name. An unknown key is counted, and named in a note.
"""

from collections.abc import Iterable, Mapping
from itertools import islice

from harness.config.lengths import MOST_TOKENS
from harness.core import word_list
from harness.core.errors import UsageError
from harness.core.formatting import plural
from harness.core.plain_numbers import whole_number

# The longest answer by the names that OpenAI, vLLM's benchmarks, guidellm, llama.cpp, Ollama and others have for it.
LENGTH_KEYS = word_list.names_in(
    """
    max_tokens max_completion_tokens max_output_tokens max_new_tokens output_tokens output_tokens_count output_len
    output_length n_predict num_predict expected_output_len expected_output_tokens num_output_tokens max_output_len
    max_output_length max_out_len max_gen_len max_gen_toks max_gen_tokens max_generation_length max_decode_len
    max_decode_length max_tokens_to_sample max_answer_len max_answer_tokens max_response_tokens answer_len
    completion_len completion_length completion_tokens decode_len gen_len generation_length generation_len
    new_tokens num_new_tokens num_tokens_to_generate output_sequence_length osl output_token_count request_output_len
    response_len response_length response_tokens target_output_len target_output_tokens tokens_to_generate
    maxtokens maxoutputtokens maxnewtokens numpredict
    """
)
# The length of the answer in some programs, that of prompt and answer together in others.
AMBIGUOUS_LENGTHS = word_list.names_in("max_length max_len max_total_tokens max_seq_len max_sequence_length")
SYSTEM_KEYS = word_list.names_in("system system_prompt system_message system_instruction sys_prompt")
KEYS_BESIDE_A_PROMPT = (*LENGTH_KEYS, *SYSTEM_KEYS)
# Dictionaries of parameters, whose keys are read as if they stood beside the prompt.
PARAMETER_KEYS = word_list.names_in(
    "sampling_params sampling_parameters parameters options generation_config generation_kwargs gen_kwargs extra_body"
)
BODY_KEYS = word_list.names_in("body payload request")  # a request within a row, as OpenAI's batch files have it
# Names, notes and lengths of the prompt, which do not change a request. At temperature 0 a seed has no effect either.
HARMLESS_KEYS = frozenset(
    word_list.names_in(
        """
        id idx index uid uuid guid key hash name custom_id request_id conversation_id conv_id chat_id session_id
        question_id prompt_id sample_id qid row_id source category subcategory topic task task_type domain subject
        subset split dataset dataset_name language lang tag tags label labels license author date created
        created_at updated_at tstamp url method version difficulty metadata meta comment comments note notes
        user user_id seed stream stream_options store service_tier turn prompt_len prompt_length prompt_tokens
        input_len input_length input_tokens num_prompt_tokens input_sequence_length isl redacted openai_moderation
        toxic weight
        """
    )
)
# Settings that change an answer, by name, with the values that this program's requests have: answers are greedy and
# depend on nothing but the prompt.
NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(word_list.names_in("temperature presence_penalty frequency_penalty min_p epsilon_cutoff"), (0,)),
    **dict.fromkeys(word_list.names_in("top_p typical_p repetition_penalty length_penalty"), (1,)),
    **dict.fromkeys(word_list.names_in("n best_of num_return_sequences num_beams beam_width"), (1,)),
    **dict.fromkeys(word_list.names_in("min_tokens min_new_tokens min_length min_output_tokens"), (0, 1)),
    "top_k": (-1, 0),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "add_generation_prompt": (True,),
    "add_special_tokens": (True,),
    "skip_special_tokens": (True,),
    **dict.fromkeys(
        word_list.names_in(
            """
            stop stop_token_ids stop_sequences stop_strings bad_words logit_bias logprobs top_logprobs prompt_logprobs
            echo suffix do_sample use_beam_search no_repeat_ngram_size ignore_eos tools functions function_call
            parallel_tool_calls guided_json guided_regex guided_choice guided_grammar structured_outputs json_schema
            grammar reasoning_effort enable_thinking chat_template chat_template_kwargs
            continue_final_message image images image_url image_urls video videos audio audios
            multi_modal_data mm_processor_kwargs lora lora_name lora_request adapter adapter_id tool_calls tool_call_id
            """
        ),
        (),
    ),
}
MOST_NAMED_KEYS = 8  # keys that a note names


class UnsentKeyError(UsageError):
    """A key that would change a request but is not sent. The file then does not measure what its author meant."""


def flat_request(item: Mapping[str, object]) -> dict[str, object]:
    """Return a row as one flat request: keys within a body or a dictionary of parameters are moved to the top level.

    They replace keys of the same name at the top level.
    """
    flat = dict(item)
    for name in (*BODY_KEYS, *PARAMETER_KEYS):  # first the bodies, which may hold a dictionary of parameters
        inner = flat.get(name)
        if isinstance(inner, dict):
            del flat[name]
            flat |= inner
    return flat


def answer_limit(item: Mapping[str, object], where: str) -> int | None:
    """Return the longest answer in tokens that a request asks for, under any of the names in LENGTH_KEYS, or None.

    Raises UsageError if a value is no usable length, or if two names disagree.
    """
    limits = {}
    for name, value in item.items():
        if value is not None and name.lower() in LENGTH_KEYS:
            length = whole_number(value)
            if not length or length > MOST_TOKENS:  # The length is None if the value is no whole number.
                raise UsageError(
                    f"{where}: {name} must be a whole number from 1 to {MOST_TOKENS:,}; it is {value!r:.40}."
                )
            limits[name] = length
    if len(set(limits.values())) > 1:
        lengths = [f"{name} {length:,}" for name, length in limits.items()]
        raise UsageError(f"{where}: {' and '.join(lengths)} disagree: keep one.")
    return next(iter(limits.values()), None)


def system_prompt(item: Mapping[str, object], where: str) -> str:
    """Return a request's system prompt, which stands under any of the names in SYSTEM_KEYS. Empty if there is none.

    `where` names the request in errors. Raises UsageError if the system prompt is no text, or if there are two that
    differ.
    """
    prompts = dict[str, str]()
    for name, value in item.items():
        if name.lower() not in SYSTEM_KEYS or value in (None, ""):
            continue
        if not isinstance(value, str):
            raise UsageError(f"{where}: {name} is not text.")
        prompts[name] = value
    if len(set(prompts.values())) > 1:
        raise UsageError(f"{where}: {' and '.join(prompts)} differ: keep one system prompt.")
    return next(iter(prompts.values()), "")


def refuse_unsent_keys(item: Mapping[str, object], where: str) -> None:
    """Raise UnsentKeyError for a key that would change the request but is not sent, or whose meaning is not clear.

    `where` names the request in errors.
    """
    for name, value in item.items():
        if value is not None and name.lower() in AMBIGUOUS_LENGTHS:
            raise UnsentKeyError(
                f"{where}: {name} is the length of an answer in some programs, of prompt and answer in others: name it "
                "max_tokens, or remove it."
            )
        neutral_values = NEUTRAL_VALUES.get(name.lower())
        if neutral_values is None:  # The key is no setting that this program knows.
            continue
        if is_neutral(value, neutral_values):  # Every request has this value anyway.
            continue
        raise UnsentKeyError(
            f"{where}: {name} {value!r:.40} is not sent: every answer is greedy, by its prompt alone: remove the key."
        )


def is_neutral(value: object, neutral: Iterable[object]) -> bool:
    """Return whether a setting's value changes nothing in a request: it is empty, off or one of the values `neutral`.

    A neutral number may be given as text, with or without ".0".
    """
    if value is None or value is False or value in ("", [], {}):
        return True
    for neutral_value in neutral:
        if value == neutral_value or str(value) in (str(neutral_value), f"{neutral_value}.0"):
            return True
    return False


def unread_keys(item: Mapping[str, object], read: Iterable[str]) -> list[str]:
    """Return the keys of an object that are not among `read`, except those that do not matter.

    Upper and lower case are the same.
    """
    unread = []
    for name, value in item.items():
        lower_name = name.lower()
        if value is None or name in read or lower_name in read or lower_name in HARMLESS_KEYS:
            continue
        if lower_name in NEUTRAL_VALUES and is_neutral(value, NEUTRAL_VALUES[lower_name]):  # a value without effect
            continue
        unread.append(name)
    return unread


def unread_note(counts: Mapping[str, int], unit: str) -> str:
    """Return a note that names the first MOST_NAMED_KEYS keys that were not read, and how many more there are.

    `counts` has the number of rows with each key, `unit` is what a row is called. Empty if there are no keys.
    """
    if not counts:
        return ""
    descriptions = []
    for name, count in islice(counts.items(), MOST_NAMED_KEYS):
        descriptions.append(f"{name!r} in {plural(count, unit)}")
    if len(counts) > MOST_NAMED_KEYS:
        descriptions.append(plural(len(counts) - MOST_NAMED_KEYS, "more key"))
    return f"not read: {', '.join(descriptions)}"
