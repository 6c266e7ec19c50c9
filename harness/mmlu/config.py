"""The settings of an MMLU evaluation."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from harness.config.endpoint import ServerFlags
from harness.config.flags import BENCHMARK, DATA, ENGINE, MODEL, OUTPUT, Auto, flag
from harness.config.run import RunConfig
from harness.mmlu.data import chosen_subjects


@dataclass(frozen=True, kw_only=True)
class MMLUConfig(ServerFlags):
    """One evaluation, as its flags say."""

    backend: Literal["auto", "vllm", "openai"] = flag("auto", MODEL, "answers")
    """vllm: in this process; openai: a running vLLM server. auto: openai with --endpoint, else vllm."""
    max_model_len: int | Auto = flag("auto", ENGINE, "answers", takes=10**8)
    """Longest prompt plus answer, in tokens. auto: 4096; demo: 1024."""

    num_fewshot: Literal[0, 1, 2, 3, 4, 5] = flag(5, BENCHMARK, "answers", rank=2)
    """Examples before each question, from the dev split."""
    total_sample_count: int | None = flag(None, BENCHMARK, "answers", takes=10**6, rank=6)
    """Ask N questions, drawn with the seed from all subjects in proportion. Unset: every question."""
    subjects: str = flag("all", BENCHMARK, "answers", rank=3)
    """Subjects with commas between them; or domains: stem, humanities, social_sciences, other."""
    seed: int = flag(0, BENCHMARK, "answers", takes="seed")
    """Seed of the sample of --total-sample-count, and of vLLM."""

    dataset_path: Path | None = flag(None, DATA, "answers", rank=19)
    """Folder with the original CSVs, or parquet or `datasets` folders as in cais/mmlu. Unset: downloaded."""

    results_dir: Path = flag(Path("results"), OUTPUT, "nothing", rank=23)
    """Evaluations are written to PATH/mmlu/."""
    details: Literal[0, 1] = flag(0, OUTPUT, "nothing", rank=22)
    """1: print every subject's score, and keep the text of each question beside its answer."""

    def implications(self, given: frozenset[str]) -> dict[str, object]:
        chosen_subjects(self.subjects)
        return super().implications(given)

    @property
    def run(self) -> RunConfig:
        """The engine's part of it as a run has it."""
        shared = {item.name: getattr(self, item.name) for item in fields(ServerFlags)}
        own = {"max_model_len": self.context, "seed": self.seed, "mode": "performance"}
        return RunConfig(**shared | own)

    @property
    def context(self) -> int:
        """Longest prompt plus answer, in tokens."""
        return self.model_spec.mmlu_context if self.max_model_len == "auto" else self.max_model_len

    @property
    def folder(self) -> Path | None:
        """Where the questions are; None for the hub."""
        return self.dataset_path or self.model_spec.mmlu

    @property
    def runs(self) -> Path:
        return self.results_dir / "mmlu"
