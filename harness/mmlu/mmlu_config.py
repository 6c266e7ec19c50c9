"""The settings of an MMLU evaluation."""

from pathlib import Path
from typing import Literal

from harness.config.engine import ServerFlags
from harness.config.flags import BENCHMARK_TOPIC, DATA_TOPIC, ENGINE_TOPIC, MODEL_TOPIC, RESULTS_TOPIC, flag
from harness.config.run import RunConfig
from harness.config.setting_types import Auto, Context, Count, Seed
from harness.mmlu.question_data import chosen_subjects


class MMLUConfig(ServerFlags):
    """One evaluation, as its flags say."""

    backend: Literal["auto", "vllm", "openai"] = flag("auto", MODEL_TOPIC, "answers")
    """vllm: in this process; openai: a running vLLM server. auto: openai with --endpoint, else vllm."""
    max_model_len: Context | Auto = flag("auto", ENGINE_TOPIC, "answers")
    """Longest prompt plus answer, in tokens. auto: 4096; demo: 1024."""

    num_fewshot: Literal[0, 1, 2, 3, 4, 5] = flag(5, BENCHMARK_TOPIC, "answers")
    """Examples before each question, from the dev split."""
    total_sample_count: Count | None = flag(None, BENCHMARK_TOPIC, "answers")
    """Ask N questions, drawn with the seed from all subjects in proportion. Unset: every question."""
    subjects: str = flag("all", BENCHMARK_TOPIC, "answers")
    """Subjects with commas between them; or domains: stem, humanities, social_sciences, other."""
    seed: Seed = flag(0, BENCHMARK_TOPIC, "answers")
    """Seed of the sample of --total-sample-count, and of vLLM."""

    dataset_path: Path | None = flag(None, DATA_TOPIC, "answers")
    """Folder with the original CSVs, or parquet or `datasets` folders as in cais/mmlu. Unset: downloaded."""

    results_dir: Path = flag(Path("results"), RESULTS_TOPIC, "nothing")
    """Evaluations are written to PATH/mmlu/."""
    details: bool = flag(False, RESULTS_TOPIC, "nothing")
    """1: keep the text of each question beside its answer."""

    BASIC = """
        num_fewshot subjects model total_sample_count precision quantization kv_cache_dtype endpoint
        tensor_parallel_size gpu_memory_utilization max_num_seqs max_num_batched_tokens engine_arg dataset_path details
        results_dir
        """

    def implications(self, given: frozenset[str]) -> dict[str, object]:
        """Return the settings that follow from others. Raises UsageError for subjects that MMLU does not have.

        `given` has the names of the settings that the user gave.
        """
        chosen_subjects(self.subjects)  # only to raise the error before anything is loaded
        return super().implications(given)

    @property
    def engine_run(self) -> RunConfig:
        """The engine's settings as those of a benchmark run: the code that starts an engine takes such a run."""
        engine_settings = self.values(self.named_settings & set(ServerFlags.model_fields))
        # The mode is "performance", since the accuracy test of a benchmark run is not MMLU's and is not wanted here.
        return RunConfig.from_mapping(
            engine_settings | {"max_model_len": self.context, "seed": self.seed, "mode": "performance"}
        )

    @property
    def context(self) -> int:
        """The most tokens of a prompt and its answer together: the given number, or what auto means for the model."""
        if self.max_model_len == "auto":
            return self.model_spec.mmlu_context
        return self.max_model_len

    @property
    def folder(self) -> Path | None:
        """The folder of the questions: the given one or the model's own; None to download MMLU from the hub."""
        return self.dataset_path or self.model_spec.mmlu

    @property
    def runs(self) -> Path:
        """The folder of all MMLU evaluations."""
        return self.results_dir / "mmlu"
