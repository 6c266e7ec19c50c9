"""A model's folder may hold anything: what a library would read without end, or wait for, is refused before."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.config import pretrained
from harness.config.models import DEMO
from harness.config.run import RunConfig
from harness.core.errors import UsageError

NAMES = sorted(path.name for path in (DEMO / "model").iterdir() if path.suffix == ".json")
NAMES += ["chat_template.jinja", "tokenizer.model", "special_tokens_map.json"]


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(600 * 2**20)


KINDS: dict[Callable[[Path], None], str] = {
    sparse: "larger than 512 MiB",
    os.mkfifo: "not a regular file",
    lambda path: path.symlink_to("/dev/zero"): "not a regular file",
    lambda path: path.mkdir(): "Is a directory",
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", KINDS)
def test_a_file_that_is_none_of_its_kind_is_refused_before_it_is_read(
    make: Callable[[Path], None], name: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(DEMO / "model", tmp_path / "m"))
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    for load in (pretrained.load_tokenizer, pretrained.load_shape):
        with pytest.raises(UsageError) as caught:
            load(RunConfig(model=str(folder)))
        line = str(caught.value)
        assert name in line and "\n" not in line
        assert KINDS[make] in line or "4 MiB" in line


@pytest.mark.parametrize(
    ("endpoint", "hint"), [((), pretrained.DEMO_HINT), (("http://127.0.0.1:1/v1",), pretrained.TOKENIZER_HINT)]
)
def test_beside_a_server_the_remedy_for_a_wrong_model_is_its_tokenizer(endpoint: tuple[str, ...], hint: str) -> None:
    text = pretrained.load_failure_text(RunConfig(model="no/such-model", endpoint=endpoint), OSError("no such model"))
    assert text.endswith(f"{hint}.") and "\n" not in text
