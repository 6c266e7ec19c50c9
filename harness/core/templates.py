"""Pages made from Jinja templates."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.formatting import cell, gpu_names, number, percent
from harness.core.locations import ROOT
from harness.core.markdown import block_quote, code_text, escape_markdown

if TYPE_CHECKING:
    from jinja2 import Environment

# The filters of the templates, by the names under which templates call them.
FILTERS: Mapping[str, Callable[..., str]] = {
    "number": number,
    "percent": percent,
    "cell": cell,
    "code": code_text,
    "block_quote": block_quote,
    "gpus": gpu_names,
}


def jinja_environment(
    *folders: Path, finalize: Callable[[object], object], autoescape: bool = False, keep_trailing_newline: bool = False
) -> "Environment":
    """Return the environment of the templates in these folders. A template that uses an undefined name is an error.

    `finalize` is applied to each value that a template prints. With `autoescape`, values are escaped for HTML.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(folders),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
        autoescape=autoescape,
        keep_trailing_newline=keep_trailing_newline,
    )


def render(template: str, **values: object) -> str:
    """Return a template of templates/ or docs/ filled in with these values, as Markdown without the last line end.

    Values are escaped, so that a name cannot become a link or HTML.
    """
    environment = jinja_environment(
        ROOT / "templates", ROOT / "docs", finalize=escape_markdown, keep_trailing_newline=True
    )
    environment.filters |= FILTERS
    page = environment.get_template(template).render(**values)
    return str(page).removesuffix("\n")
