"""The verdicts in addition to LoadGen's, typed: of accuracy (rouge.json) and of compliance tests (result.json)."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue, computed_field

from harness.config.mlperf import GATE, ROUGE
from harness.core.schema import File, Model

SCORES_FILE = "rouge.json"
Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE", "NOT JUDGED"]
Count = Annotated[int, Field(ge=0)]


class Check(Model):
    """One score against what it must keep to; `interval` (bootstrap, 95 %) only where not all samples ran."""

    name: str
    score: float
    reference: float
    low: float
    high: float | None = None
    interval: tuple[float, float] | None = None
    verdict: Verdict


class Accuracy(Model):
    """The accuracy of a run. ROUGE is F1 x100, the mean over samples; gen_len is characters, summed over samples."""

    verdict: Verdict
    note: str = ""
    samples: Annotated[int, Field(ge=1)]
    full_set: bool
    high_accuracy: bool
    generated_tokens: Count
    characters: Count
    at_token_limit: Count
    splitter: str
    splitter_version: str = ""
    """NLTK's, whose versions split a few texts differently; empty for the built-in splitter, or not recorded."""
    approximate: list[str]  # scores that depend on the sentence splitter and were made without NLTK's
    checks: list[Check]

    @property
    def share_at_limit(self) -> float:
        """Of the answers, those that end at the token limit."""
        return self.at_token_limit / self.samples

    @property
    def headline(self) -> str:
        """The verdict and what it rests on, in one line."""
        rouge = ", ".join(
            f"{check.name} {check.score:.2f}{' (approximate)' if check.name in self.approximate else ''}"
            for check in self.checks
            if check.name in ROUGE
        )
        return f"{self.verdict}{f' ({self.note})' if self.note else ''}: {rouge}"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def scores(self) -> dict[str, Annotated[float, Field(ge=0)]]:
        """ROUGE is F1 x100, the mean over samples; gen_len is characters, summed over samples."""
        return {check.name: check.score for check in self.checks}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def rouge(self) -> dict[str, float]:
        """F1 x100."""
        return {name: score for name, score in self.scores.items() if name in ROUGE}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def passed(self) -> bool | None:
        """The gate's verdict; null where it is inconclusive, or switched off."""
        return {"PASS": True, "FAIL": False}.get(self.verdict)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def total_samples(self) -> int:
        return self.samples

    @computed_field  # type: ignore[prop-decorator]
    @property
    def run_gen_len(self) -> int:
        """Characters, summed over samples."""
        return self.characters

    @computed_field  # type: ignore[prop-decorator]
    @property
    def run_gen_num(self) -> int:
        """Answers."""
        return self.samples


class ScoresFile(Accuracy, File):
    """rouge.json; `log` is the SHA-256 of the accuracy log that was scored."""

    log: str | None = None

    def flat(self) -> dict[str, object]:
        """What the file holds: all of this, and scores, references and thresholds under their own names."""
        floors = {check.name: check for check in self.checks}
        return self.model_dump(mode="json") | {
            **self.rouge,
            "baseline": {name: check.reference for name, check in floors.items()},
            "gate_multiplier": GATE[self.high_accuracy],
            **{f"threshold_{name}": floors[name].low for name in self.rouge},
        }


class Compliance(Model):
    """result.json of a compliance test; each check's verdict, null where it has none."""

    test: str
    passed: bool
    checks: dict[str, bool | None]
    facts: dict[str, JsonValue]

    @property
    def verdict(self) -> Verdict:
        return "PASS" if self.passed else "FAIL"

    @property
    def headline(self) -> str:
        failed = ", ".join(name for name, passed in self.checks.items() if passed is False)
        return f"{self.test.upper()}: {self.verdict}{f' ({failed})' if failed else ''}"
