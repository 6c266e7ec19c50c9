"""A list of names, written as one text."""


def names_in(text: str) -> tuple[str, ...]:
    """A list of names that is written as text, with spaces between them."""
    return tuple(text.split())
