"""The shape of a model, as its own config.json says it."""

import pytest

from harness.config import checkpoint, pretrained
from harness.config.run import RunConfig
from harness.core.errors import UsageError


def test_a_model_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = pretrained.load_shape(RunConfig(model="demo"))
    monkeypatch.setattr(pretrained, "load_shape", lambda config: shape)
    monkeypatch.setattr(shape, "num_hidden_layers", 10**18)
    with pytest.raises(UsageError, match=r"--model demo: .* 1,000,000,000,000,000,000 layers"):
        checkpoint.weight_bytes(RunConfig(model="demo"))
    monkeypatch.setattr(shape, "num_hidden_layers", 10_000)
    monkeypatch.setattr(shape, "intermediate_size", 10**12)
    with pytest.raises(UsageError, match=r"--model demo: .* \d[\d,.]* TiB"):
        checkpoint.weight_bytes(RunConfig(model="demo"))
