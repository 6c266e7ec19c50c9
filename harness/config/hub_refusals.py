"""The reason for which the Hugging Face hub did not give a model, in one line, by what its libraries raised."""

from collections.abc import Iterator, Sequence

from harness.config.hub_environment import hub_address, is_hub_reachable
from harness.core.message_text import first_line

UNAUTHORIZED, FORBIDDEN = 401, 403


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and then the exceptions that led to it."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def hub_refusal(name: str, error: BaseException, hint: str) -> str:
    """Return why the hub did not give the model `name`, and what the user can do.

    `error` is the exception of the hub's library. `hint` is the remedy if the reason is neither a licence nor a token.
    """
    from huggingface_hub import errors, get_token

    chain = list(causes(error))
    status = status_of(chain)
    is_gated = has_error(chain, errors.GatedRepoError)
    licence = f"accept its licence on huggingface.co/{name}"
    if is_gated and not get_token():
        return f"{name} is gated: {licence}, then set HF_TOKEN."
    if is_gated and status == FORBIDDEN:
        return f"{name} is gated, and the account of HF_TOKEN has no access: {licence}, and wait for it."
    if status == UNAUTHORIZED and get_token():
        return f"{name}: the Hugging Face Hub refuses HF_TOKEN: make a new one on huggingface.co/settings/tokens."
    return f"cannot load {name}: {missing_model_reason(chain)}. {hint}."


def has_error(chain: Sequence[BaseException], kind: type[BaseException]) -> bool:
    """Return whether an exception of type `kind` is in a chain of exceptions."""
    return any(isinstance(cause, kind) for cause in chain)


def status_of(chain: Sequence[BaseException]) -> int | None:
    """Return the HTTP status of the hub's first answer among these exceptions. None if the hub did not answer."""
    from huggingface_hub import errors

    for cause in chain:
        if isinstance(cause, errors.HfHubHTTPError) and cause.response is not None:
            return int(cause.response.status_code)
    return None


def missing_model_reason(chain: Sequence[BaseException]) -> str:
    """Return why a model cannot be loaded, if the hub did not refuse access to it.

    `chain` has the library's error and then the exceptions that led to it.
    """
    from huggingface_hub import constants, errors

    if has_error(chain, errors.HFValidationError):
        return "no such folder, and not a valid name on the Hugging Face Hub"
    if has_error(chain, errors.RepositoryNotFoundError):
        return "no such folder, and no public model on the Hugging Face Hub has this name; a private one needs HF_TOKEN"
    if constants.HF_HUB_OFFLINE:
        return f"HF_HUB_OFFLINE is set, and {constants.HF_HUB_CACHE} has no whole copy"
    if not is_hub_reachable():
        host = hub_address().hostname
        return f"no such folder, {host} cannot be reached, and {constants.HF_HUB_CACHE} has no whole copy"
    return first_line(chain[-1]).rstrip(".")
