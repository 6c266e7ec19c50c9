"""Find and mask secrets, by the name of a setting or by pattern. Nothing else hides them."""

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from os import environ
from pathlib import Path
from typing import overload
from urllib.parse import urlsplit

from harness.core.reading import setting_text, yaml_value
from harness.core.vllm_source import enumerations
from harness.core.word_list import names_in

MASK = "***"
SHELL_FOLDERS = ("PWD", "OLDPWD")  # environment variables in which PWD is the shell's current folder, not a password
HEADERS_VARIABLE = "ENDPOINT_HEADERS"  # the environment variable of further headers for every request to an endpoint
noted_secrets: set[str] = set()  # secrets in addresses and engine arguments that this process was given
PLAIN_PART = r"[a-z][a-z-]{0,23}[0-9.]{0,4}"  # a part of a path that is no key, as in /openai/v1
PACKAGES_SETTING = "packages"  # versions by the names of packages, such as google-auth: no name of a setting
SHORTEST_SECRET = 8  # characters of a secret in the environment: shorter ones are words, such as EMPTY
SHORTEST_NOTED_SECRET = 4  # characters of a secret in engine arguments


# A setting is secret if its name has one of SECRET_WORDS anywhere, one of SECRET_ENDINGS as its last word, or one of
# PAIRS as two words that follow each other.
SECRET_WORDS = names_in(
    "secret password passwd passphrase pwd authorization bearer credential credentials cred creds cookie signature jwt "
    "apikey accesskey accountkey privatekey"
)
SECRET_ENDINGS = names_in("token auth pass pin sig pat dsn")
KEYS = names_in("api private access account session encryption ssh signing")
PAIRS = frozenset({("connection", "string"), ("basic", "auth"), *((word, "key") for word in KEYS)})
ASSIGNMENT = (
    r"(?is)((?:token(?![\w])|secret|passw(?:or)?d|passphrase|\bpwd\b|api[_-]?key|authorization|bearer|credential|creds\b"
    r"|private[_-]?key|access[_-]?key|account[_-]?key|cookie|signature)[\w-]*[\"']?\s*[:=]\s*).*"
)
CREDENTIALS_IN_ADDRESS = r"(?s)^((?:--[\w-]+=)?[A-Za-z][\w+.-]*:/+).*@"  # the part of an address up to its last at sign
SECRET_FORMS = (
    (r"(?s)-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", MASK),
    (r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}", rf"\1 {MASK}"),
    (r"\b(?:hf_[A-Za-z0-9]{16,}|(?:glpat-|github_pat_)[\w-]{16,})", MASK),
    (r"\b(?:(?:sk-|gh[a-z]_|xox[a-z]-)[\w-]{16,}|AKIA[A-Z0-9]{16})", MASK),
    (r"\beyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*", MASK),  # a JWT
    # The user and password in an address, or in a path made of an address. A password may hold any character, so the
    # last `@` ends it.
    (r"(//|\b[A-Za-z][\w+.-]+:/)(?!/)[^\s\"'<>|]*@", rf"\1{MASK}@"),
    (r"(?i)([?&][\w-]*(?:token|key|secret|password|sig|signature)=)[^&\s\"']+", rf"\1{MASK}"),
    (r"(?i)\b((?:password|pwd|accountkey|sharedaccesskey)=)[^;\s\"']+", rf"\1{MASK}"),
)
PLAIN_QUERY = names_in("api-version version gpu host")  # keys of an address's query that hold no secret
QUERY = r"(?i)\b(https?:/+[^\s\"'<>?]+\?)([^\s\"'<>#]+)"
# Settings of other programs, such as arguments of vLLM and environment variables, that are known to hold no secret. The
# texts of all their other settings are masked.
HARMLESS_NAMES = names_in(
    """
    model served_model_name tokenizer revision tokenizer_revision dtype quantization kv_cache_dtype load_format
    tokenizer_mode hf_config_path download_dir runner convert config_format method mode backend attention_backend
    mm_encoder_attn_backend data_parallel_backend data_parallel_address distributed_executor_backend all2all_backend
    moe_backend mamba_cache_dtype scheduling_policy logprobs_mode worker_cls worker_extension_cls scheduler_cls
    reasoning_parser kv_connector kv_role cudagraph_mode splitting_ops custom_ops rope_type architectures model_type
    engine_patch profiler torch_profiler_dir prefix_caching_hash_algo generation_config server serves endpoints exchange
    metrics
    vllm_attention_backend vllm_worker_multiproc_method vllm_logging_level vllm_host_ip vllm_target_device
    vllm_cpu_omp_threads_bind vllm_cache_root vllm_config_root
    cuda_visible_devices cuda_home cuda_path cuda_version cuda_device_order cuda_module_loading cuda_cache_path
    torch_home torch_logs torch_cuda_arch_list pytorch_cuda_alloc_conf pytorch_alloc_conf
    nccl_socket_ifname nccl_ib_hca nccl_debug nccl_debug_subsys nccl_algo nccl_proto nccl_version nccl_topo_file
    omp_places omp_proc_bind omp_schedule omp_wait_policy
    """
)
# Enumerations and lists of numbers, whatever they are called.
PLAIN_VALUE = r"auto|none|(?:bf|fp|int|float)[a-z0-9_]{1,12}|[A-Z][A-Z_]{1,15}|[0-9][0-9.,:-]{0,40}"


def is_secret(name: str) -> bool:
    """Return whether a setting's value is secret, judged by the words of the setting's name, in camel or snake case."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    if not set(words).isdisjoint(SECRET_WORDS):
        return True
    if words and words[-1] in SECRET_ENDINGS:
        return True
    return not PAIRS.isdisjoint(pairwise(words))


def hide_text(text: str) -> str:
    """Return text with its secrets masked: everything that looks like a secret, and the secrets that are known.

    Known secrets are those of this process's environment and of `noted_secrets`.
    """

    def hidden_address(match: re.Match[str]) -> str:
        """Return an address with the values in its query masked."""
        return match[1] + hide_query(match[2])

    for pattern, replacement in SECRET_FORMS:
        text = re.sub(pattern, replacement, text)
    text = re.sub(QUERY, hidden_address, text)
    return hide_known(text)


def hide_query(query: str) -> str:
    """Return the query of an address with its values masked, except those of keys that are known to hold no secret.

    A word without a key is masked, too.
    """

    def masked(match: re.Match[str]) -> str:
        """Return one item of the query, KEY=VALUE or a word, with its value or the word masked."""
        key, equals = match[1], match[2]
        if not equals:
            return MASK
        if key.lower() in PLAIN_QUERY:
            return match[0]
        return f"{key}={MASK}"

    return re.sub(r"([^&;=]+)(=?)[^&;]*", masked, query)


def hide_known(text: str) -> str:
    """Return text in which the secrets of this process's environment, and `noted_secrets`, are masked.

    A server may, for example, repeat its key in an error message. Short values of the environment are not masked, since
    they may be ordinary words.
    """
    known_secrets = noted_secrets | {value for value in environment_secrets() if len(value) >= SHORTEST_SECRET}
    for secret in sorted(known_secrets, key=len, reverse=True):  # the longest first: it may contain a shorter one
        text = text.replace(secret, MASK)
    return text


def environment_secrets() -> Iterator[str]:
    """Yield the values of the environment's secret variables, and of all headers in ENDPOINT_HEADERS."""
    for name, value in environ.items():
        if name not in SHELL_FOLDERS and is_secret(name):
            yield value
    for line in environ.get(HEADERS_VARIABLE, "").splitlines():
        _, _, value = line.partition(":")
        yield value.strip()


def note_address(address: str) -> None:
    """Note the parts of an endpoint's path that may be a key, so that they are masked from now on.

    A part such as "openai" or "v1" is no key.
    """
    for part in urlsplit(address).path.split("/"):
        if part and not re.fullmatch(PLAIN_PART, part):
            noted_secrets.add(part)


def hide_word(word: str) -> str:
    """Return a word of a command line with its secrets masked."""
    engine_argument = re.fullmatch(r"(?s)((?:--engine-arg=)?([A-Za-z_]\w*)=)(.*)", word)
    if engine_argument:
        key_and_sign, key, text = engine_argument.groups()
        # The setting is another program's, so every value is masked that is not known to be harmless.
        value = yaml_value(text)
        hidden_value = hide_value(key, value, foreign=True)
        if hidden_value == value:  # Nothing was masked, so the word keeps the form in which it was given.
            return word
        return key_and_sign + setting_text(hidden_value)
    word = re.sub(CREDENTIALS_IN_ADDRESS, rf"\1{MASK}@", word)
    word = re.sub(ASSIGNMENT, rf"\1{MASK}", word)
    return hide_text(word)


@overload
def hide(settings: Mapping[str, object], foreign: bool = False, harmless: bool = False) -> dict[str, object]: ...
@overload
def hide(settings: object, foreign: bool = False, harmless: bool = False) -> object: ...
def hide(settings: object, foreign: bool = False, harmless: bool = False) -> object:
    """Return settings with their secrets replaced by `***`, at any depth.

    `foreign` says that the settings are another program's, and `harmless` that `settings` is the value of a setting in
    HARMLESS_NAMES.
    """
    if isinstance(settings, str):
        # Any text of another program may be a secret, unless its setting or its form shows that it is none.
        may_be_secret = foreign and not harmless and not is_plain_value(settings)
        return MASK if may_be_secret else hide_text(settings)
    if isinstance(settings, list | tuple):
        return [hide(item, foreign, harmless) for item in settings]
    if isinstance(settings, Mapping):
        return {key: hide_value(str(key), value, foreign) for key, value in settings.items()}
    return settings


def is_plain_value(text: str) -> bool:
    """Return whether a text is empty, a number, a number format, or a value of an enumeration, and so no secret."""
    return not text or bool(re.fullmatch(PLAIN_VALUE, text)) or text in enumerations()


def hide_value(name: str, value: object, foreign: bool) -> object:
    """Return the value of the setting `name` with its secrets masked, at any depth.

    `foreign` says that the setting is another program's, whose texts are masked unless they are known to be harmless.
    """
    if name == PACKAGES_SETTING and isinstance(value, Mapping):  # the keys are packages, not names of settings
        return {str(package): hide(version) for package, version in value.items()}
    is_number = isinstance(value, int | float)  # A number is no secret, even if the setting sounds like one.
    if value and is_secret(name) and not is_number:
        return MASK
    return hide(value, foreign, harmless=name.lower() in HARMLESS_NAMES)


def secrets_in(settings: object, has_secret_name: bool = False) -> set[str]:
    """Return the texts in `settings` that are secret by the setting's name or by their form.

    `has_secret_name` says that `settings` is the value of a setting with a secret name.
    """
    secret_texts = set[str]()
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            if key == PACKAGES_SETTING and isinstance(value, Mapping):  # Names of packages make no secrets.
                secret_texts |= secrets_in([*value.values()], has_secret_name)
            else:
                secret_texts |= secrets_in(value, has_secret_name or is_secret(str(key)))
    if isinstance(settings, list | tuple):
        for item in settings:
            secret_texts |= secrets_in(item, has_secret_name)
    # A noted secret is masked wherever its text occurs, and a short text occurs in ordinary words.
    if isinstance(settings, str) and len(settings) >= SHORTEST_NOTED_SECRET:
        has_secret_form = hide_text(settings) != settings
        if has_secret_name or has_secret_form:
            secret_texts.add(settings)
    return secret_texts


def scrub(path: Path) -> None:
    """Mask the secrets in a log that other programs wrote. A file that cannot be read is left alone."""
    try:
        before = path.read_bytes()
    except OSError:
        return
    after = hide_text(before.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    if after != before:
        path.write_bytes(after)
