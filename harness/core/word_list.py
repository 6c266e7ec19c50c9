"""A list of names, written as one text."""


def names_in(text: str) -> tuple[str, ...]:
    """Return the names in a text that has spaces between them."""
    return tuple(text.split())
