"""Profiles: traces made by hand, the window of load on an engine of our own, and what the report makes of both."""

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.config.engine import EngineState
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core import files
from harness.core.errors import EngineError, UsageError
from harness.engines.protocol import Engine
from harness.loadgen import senders, sending
from harness.report import report as rendering
from harness.results import kernel_profile, kernel_traffic
from harness.runner import profiling
from harness.runs.run_folder import RunFolder
from harness.workloads.sample_library import Library
from tests.conftest import tells
from tests.support import example_runs

NAME = "rank0.1.pt.trace.json.gz"
KINDS_BY_NAME = {
    "triton_red_fused__to_copy_clamp_cutlass_scaled_mm_fused_add_rms_norm_mul_reciprocal_2": (
        "normalization and activation"
    ),
    "triton_poi_fused__to_copy_clamp_cutlass_scaled_mm_mul_reciprocal_silu_slice_2": "normalization and activation",
    "triton_poi_fused__to_copy_clamp_cutlass_scaled_mm_mul_reciprocal_view_0": "quantization",
    "triton_tem_fused_mm_3": "matrix products",
    "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNN": "matrix products",
    "void cutlass::device_kernel<vllm::enable_sm90_or_later<cutlass::gemm::kernel::GemmUniversal<int>>>": (
        "matrix products"
    ),
    "void cublasLt::splitKreduce_kernel<32, 16, int, float>": "matrix products",
    "aten::linear": "matrix products",
    "aten::mm": "matrix products",
    "_C::onednn_mm": "matrix products",
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloop>>>": "attention",
    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>": "attention",
    "kernel_unified_attention_2d": "attention",
    "void vllm::rotary_embedding_kernel<c10::BFloat16, true>": "attention",
    "void vllm::rms_norm_static_fp8_quant_kernel<c10::BFloat16>": "normalization and activation",
    "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0": "normalization and activation",
    "void vllm::act_and_mul_kernel<c10::BFloat16>": "normalization and activation",
    "_C::silu_and_mul": "normalization and activation",
    "void vllm::dynamic_per_token_scaled_fp8_quant_kernel<c10::BFloat16>": "quantization",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "communication",
    "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>": "communication",
    "void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<(unsigned char)2, __nv_bfloat16>": "communication",
    "void flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport<__nv_bfloat16>": "communication",
    "triton_red_fused_all_reduce_add_rms_norm_3": "normalization and activation",
    "kernel_mha(unsigned int, float, float const*, Vec<__nv_bfloat16, 128u>*)": "attention",
    "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits>": "attention",
    "void flashinfer::PersistentVariableLengthMergeStatesKernel<8u, 16u>": "attention",
    "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>": "normalization and activation",
    "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u>": "sampling",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>": "sampling",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>": "other",
    "aten::copy_": "other",
}


def event(name: str, start: float, duration: float, cat: str = "kernel", thread: int = 7, device: int = 0) -> Any:
    known = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": duration}
    return known | ({"args": {"device": device, "stream": thread}} if cat == "kernel" else {})


def write(folder: Path, events: Sequence[Any], name: str = NAME) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"schemaVersion": 1, "traceEvents": [{"ph": "M", "name": "process_name"}, *events]}).encode()
    (folder / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return folder


ON_GPU = [
    event("nvjet_tst_1", 1000, 600),
    event("flash::FlashAttn", 1700, 200),  # 100 idle before it
    event("rms_norm", 1850, 50, thread=8),  # beside it, on another stream
    event("elementwise", 1900, 100),
    event("aten::mm", 0, 5000, "cpu_op"),  # operators that call kernels do not count
]
ON_CPU = [
    event("aten::linear", 0, 1000, "cpu_op"),
    event("aten::addmm", 100, 800, "cpu_op"),
    event("aten::copy_", 200, 300, "cpu_op"),
    event("aten::softmax", 1000, 100, "cpu_op"),
    event("aten::copy_", 500, 50, "cpu_op", thread=9),  # another thread is inside of nothing
    event("cudaLaunchKernel", 0, 9000, "cuda_runtime"),
]


@pytest.mark.parametrize(("name", "kind"), KINDS_BY_NAME.items())
def test_the_kind_of_a_kernel(name: str, kind: str) -> None:
    assert kernel_profile.kind_of(name) == kind


@pytest.mark.parametrize("name", [NAME, "rank0.1.pt.trace.json"])
def test_kernels_by_kind_and_the_idle_share(tmp_path: Path, name: str) -> None:
    found = kernel_profile.profile_of(write(tmp_path / "Profile", ON_GPU, name))
    assert (found.device, found.seconds, found.traces) == ("GPU", 0.001, [f"Profile/{name}"])
    assert found.idle_percent == pytest.approx(10)
    assert {kind.name: (kind.ms, kind.calls) for kind in found.kinds} == {
        "matrix products": (0.6, 1),
        "attention": (0.2, 1),
        "other": (0.1, 1),
        "normalization and activation": (0.05, 1),
    }
    assert found.kinds[0].name == found.largest[0].kind == "matrix products"
    assert sum(kind.percent for kind in found.kinds) == pytest.approx(100)
    assert (found.active_s, found.gaps, found.mean_gap_ms) == (pytest.approx(0.0009), 1, pytest.approx(0.1))
    assert found.mean_kernel_ms == pytest.approx(0.2375)
    assert (found.longest_gap_ms, found.long_gaps_ms) == (pytest.approx(0.1), 0)
    assert tells(found.headline, "matrix products 63 %, attention 21 %, other 11 %", "GPU idle 10 %")


def test_two_gpus_are_summed_and_their_idle_shares_averaged(tmp_path: Path) -> None:
    write(tmp_path, ON_GPU)
    write(tmp_path, [event("gemm", 0, 100), event("gemm", 300, 100)], "rank1.1.pt.trace.json.gz")
    found = kernel_profile.profile_of(tmp_path)
    assert found.idle_percent == pytest.approx((10 + 50) / 2)
    assert (found.kinds[0].name, found.kinds[0].calls) == ("matrix products", 3)
    assert len(found.traces) == 2


def test_operators_count_with_the_time_in_no_other(tmp_path: Path) -> None:
    found = kernel_profile.profile_of(write(tmp_path, ON_CPU))
    assert (found.device, found.idle_percent, found.seconds) == ("CPU", None, 0.0011)
    assert {kind.name: round(kind.ms, 6) for kind in found.kinds} == {
        "matrix products": 0.7,  # 200 of linear, 500 of addmm
        "other": 0.35,
        "sampling": 0.1,
    }


@pytest.mark.parametrize("length", [0, 10, 200])
def test_a_cut_trace_is_refused_by_name(tmp_path: Path, length: int) -> None:
    path = write(tmp_path, ON_GPU) / NAME
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(UsageError, match=NAME):
        kernel_profile.profile_of(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "3", '{"traceEvents": 1}', '{"traceEvents": [1]}', '{"other": []}'])
def test_what_is_no_trace_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.pt.trace.json").write_text(text)
    with pytest.raises(UsageError, match=r"a\.pt\.trace\.json: not a whole trace"):
        kernel_profile.profile_of(tmp_path)


@pytest.mark.parametrize("bad", [{"dur": "long"}, {"dur": None}, {"args": 1}, {"ts": None}])
def test_a_kernel_without_its_times_is_refused(tmp_path: Path, bad: dict[str, Any]) -> None:
    write(tmp_path, [event("gemm", 0, 1) | bad])
    with pytest.raises(UsageError, match=NAME):
        kernel_profile.profile_of(tmp_path)


def test_a_trace_without_work_is_no_profile(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no kernel and no operator"):
        kernel_profile.profile_of(write(tmp_path, [event("sync", 0, 1, "cuda_runtime")]))
    with pytest.raises(UsageError, match="left no trace"):
        kernel_profile.profile_of(tmp_path / "nothing")


def test_long_names_are_cut_after_their_kind_is_known(tmp_path: Path) -> None:
    found = kernel_profile.profile_of(write(tmp_path, [event("x" * 3000 + "gemm", 0, 1)]))
    assert (len(found.largest[0].name), found.largest[0].kind) == (kernel_profile.NAME_LENGTH, "matrix products")


ACT_0_32 = "void vllm::act_and_mul_quant_kernel<c10::BFloat16, &(c10::BFloat16 vllm::silu_kernel<c10::BFloat1..."
WRITE = "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char, (vllm::Fp8KVCacheDataType..."
NORM = "triton_red_fused__scaled_mm__to_copy_clamp_fused_add_rms_norm_mul_reciprocal_view_2"
XQA = "kernel_mha(unsigned int, float, float const*, Vec<__nv_bfloat16, 128u>*, Vec<__nv_bfloat16, 128u>*..."
PRODUCT = "nvjet_sm90_qqtst_128x160_128x5_2x1_v_bz_coopA_algo2_TNT"
ACT_0_24 = "triton_poi_fused__to_copy_clamp_cutlass_scaled_mm_mul_reciprocal_silu_slice_2"
H200 = {  # Offline on one, Llama-3.1-8B in static fp8, its KV cache too: ms, % of GPU time, calls
    "0.32.0": {
        PRODUCT: (7300.81, 67.4, 2752),
        ACT_0_32: (1132.0885, 10.451, 736),
        XQA: (650.36, 6.004, 736),
        WRITE: (278.611, 2.572, 736),
        NORM: (228.809, 2.112, 713),
    },
    "0.24.0": {ACT_0_24: (537.0088, 5.197, 1184)},
}
Moves = dict[str, tuple[int | None, float | None, float | None]]


@pytest.fixture
def llama(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is known of kernels that ran on an H200, by plan."""

    def known(version: str, plan: Any = None, card: str = "NVIDIA H200", **steps: float) -> kernel_profile.Profile:
        monkeypatch.setattr(kernel_traffic.nvml, "gpus", lambda: [SimpleNamespace(name=card)])
        told = resolve(RunConfig(model="demo", mode="performance"), [], 0)
        fp8 = replace(told.engine_state, quantization="compressed-tensors", kv_cache_dtype="fp8")
        told = replace(told, reference_model=True, engine_state=fp8)
        largest = [
            kernel_profile.Share(name=name, kind=kernel_profile.kind_of(name), ms=ms, percent=percent, calls=calls)
            for name, (ms, percent, calls) in H200[version].items()
        ]
        return kernel_traffic.with_traffic(
            kernel_profile.Profile(device="GPU", largest=largest, **steps), replace(told, **(plan or {}))
        )

    return known


def moves(found: kernel_profile.Profile) -> Moves:
    return {each.name: (each.bytes_per_token, each.tb_per_s, each.memory_percent) for each in found.largest}


def test_what_kernels_move_and_which_are_slow(llama: Any) -> None:
    found = llama("0.32.0", tokens_per_step=28000.0)
    size, speed, percent = moves(found)[ACT_0_32]
    assert (size, round(speed, 1), round(percent)) == (71_680, 1.3, 27)
    assert size / speed / 1000 == pytest.approx(54.9, abs=0.05)  # ns a token and layer
    assert moves(found)[WRITE] == (6144, pytest.approx(0.454, abs=0.001), pytest.approx(9.5, abs=0.1))
    assert moves(found)[NORM] == (28_672, pytest.approx(2.50, abs=0.01), pytest.approx(52, abs=1))
    assert moves(found)[XQA] == moves(found)[PRODUCT] == (None, None, None)
    assert found.slow == [
        "activation: 10.5 % of GPU time at 1.3 of 4.8 TB/s",
        "KV cache write: 2.57 % of GPU time at 0.45 of 4.8 TB/s",
    ]
    assert found.headline.endswith("; ".join(found.slow))


def test_a_report_has_what_kernels_move_and_names_the_slow(llama: Any, tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run")
    found = llama("0.32.0", tokens_per_step=28000.0)
    (folder / "Profile").mkdir()
    files.write_json(folder / "Profile" / "profile.json", found.model_dump(mode="json") | {"seconds": 10.9})
    rendering.build_report(folder)
    report = (folder / "report.md").read_text()
    assert "| 71,680 | 1.3 | 27 |" in report and "| 2,752 | – | – | – |" in report
    assert "Activation: 10.5 % of GPU time at 1.3 of 4.8 TB/s." in report  # what limits the speed
    assert "KV cache write: 2.57 % of GPU time at 0.45 of 4.8 TB/s." in report


def test_the_kernel_of_inductor_was_twice_as_fast(llama: Any) -> None:
    found = llama("0.24.0", tokens_per_step=16384.0)
    assert (round(moves(found)[ACT_0_24][1] or 0, 1), found.slow) == (2.6, [])


def test_attention_of_decode_moves_the_cache_that_it_reads(llama: Any) -> None:
    found = llama("0.32.0", read_per_step=1e6)
    assert moves(found)[XQA] == (2048, pytest.approx(2048e6 * 736 / 0.65036 / 1e12), pytest.approx(48.3, abs=0.1))
    assert moves(found)[ACT_0_32] == (None, None, None)


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"tokens_per_step": 28000.0, "card": "another"},
        {"tokens_per_step": 28000.0, "plan": {"reference_model": False}},
        {"tokens_per_step": 28000.0, "plan": {"tensor_parallel_size": 2}},
    ],
)
def test_where_bytes_tokens_or_memory_are_not_known_nothing_is_said(llama: Any, case: dict[str, Any]) -> None:
    found = llama("0.32.0", **case)
    assert (set(moves(found).values()), found.slow) == ({(None, None, None)}, [])


def test_values_of_16_bits_are_two_bytes(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {
        "act_and_mul_kernel": (1.0, 1.0, 32),
        "fused_add_rms_norm": (1.0, 1.0, 32),
        "reshape_and_cache": (1.0, 1.0, 32),
    }
    monkeypatch.setitem(H200, "bf16", plain)
    found = llama("bf16", {"engine_state": EngineState()}, tokens_per_step=1.0)
    assert [size for size, *_ in moves(found).values()] == [3 * 2 * 14336, 4 * 2 * 4096, 4 * 2 * 1024]


def test_the_tokens_of_steps_are_in_their_names(tmp_path: Path) -> None:
    steps = [
        event(f"execute_{tokens}_context_1(sq9sk9sqsq81sqsk81)_generation_2(sq2sk{read}sqsq2sqsk9)", 0, 9, category)
        for category, tokens, read in [
            ("user_annotation", 300, 0),
            ("user_annotation", 100, 5000),
            ("gpu_user_annotation", 7, 7),  # the same steps again
        ]
    ]
    found = kernel_profile.profile_of(write(tmp_path, [*ON_GPU, *steps]))
    assert (found.tokens_per_step, found.read_per_step) == (200, 5000)
    assert {kind.name for kind in found.kinds} == {
        "matrix products",
        "attention",
        "normalization and activation",
        "other",
    }
    without = kernel_profile.profile_of(
        write(tmp_path / "b", [*ON_GPU, event("execute_context_1(9)", 0, 9, "user_annotation")])
    )
    assert (without.tokens_per_step, without.read_per_step) == (None, None)


def test_one_gap_of_a_second_is_seen_among_a_thousand_short_ones(tmp_path: Path) -> None:
    kernels = [event("gemm", 1000 * place, 990) for place in range(1000)]
    late = [event("gemm", 2_000_000 + 1000 * place, 990) for place in range(1000)]
    found = kernel_profile.profile_of(write(tmp_path, [*kernels, *late]))
    assert found.mean_gap_ms == pytest.approx(0.51, rel=0.01)
    assert found.longest_gap_ms == found.long_gaps_ms == pytest.approx(1000.01)


def test_steps_are_those_of_one_thread_and_the_median_tells_their_spacing(tmp_path: Path) -> None:
    starts = (0, 10_000, 20_000, 32_000, 900_000)
    steps = [event(f"execute_{n}_context_0", start, 9, "user_annotation") for n, start in enumerate(starts)]
    again = [event("execute_1_context_0", start, 9, "user_annotation", thread=9) for start in starts[:3]]
    other = event("gpu_model_runner: forward", 5, 9, "user_annotation")
    found = kernel_profile.profile_of(write(tmp_path, [*ON_GPU, *steps, *again, other]))
    assert (found.steps, found.step_spacing_ms) == (5, pytest.approx(11))
    without = kernel_profile.profile_of(write(tmp_path / "b", [*ON_GPU, other]))
    assert (without.steps, without.step_spacing_ms) == (None, None)


@dataclass
class FakeEngine:
    """Answers after a moment, and notes when its profiler is on."""

    fails: bool = False
    trace: Callable[[], Any] = lambda: None
    running_now: int = 0
    most: int = 0
    asked: list[list[int]] = field(default_factory=list)
    profiled: list[bool] = field(default_factory=list)
    asked_then: list[int] = field(default_factory=list)
    concurrency: int = 4

    async def stream(self, prompt: list[int], most: int | None, *_: object) -> AsyncIterator[Sequence[int]]:
        assert most in (None, len(prompt) + 1)  # each prompt with its own length of answer
        self.asked.append(prompt)
        self.running_now += 1
        self.most = max(self.most, self.running_now)
        try:
            await asyncio.sleep(0.01)
        finally:
            self.running_now -= 1
        if self.fails:
            raise EngineError("vLLM's engine process ended unexpectedly")
        yield [1]

    async def profile(self, on: bool) -> None:
        self.profiled.append(on)
        self.asked_then.append(len(self.asked))
        if not on:
            self.trace()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A bench with a fake engine, after a measured test of these flags."""
    monkeypatch.setattr(profiling, "WINDOW_S", 0.1)
    loop = Engine()
    loop.start()

    def make(engine: FakeEngine, **flags: Any) -> tuple[Any, Any]:
        example_runs.run(tmp_path / "run", **flags, profile=True)
        plan = resolve(RunConfig(**{"model": "demo", "mode": "performance", "profile": True} | flags), [], 0)
        return plan, SimpleNamespace(
            folder=RunFolder(tmp_path, "run"),
            engine=engine,
            library=Library([[n] * (n + 1) for n in range(16)], "", [n + 2 for n in range(16)]),
            display=SimpleNamespace(stage=lambda *said: None),
            run_watched=lambda work: loop.run(work, lambda: None),
        )

    yield make
    loop.stop_loop()
    assert threading.current_thread() is threading.main_thread()


LOADS: list[tuple[dict[str, Any], int | None]] = [
    ({}, sending.QUEUE_FACTOR * 4),
    ({"batch_size": 3}, 3),
    ({"scenario": "server", "server_target_qps": 200.0}, None),
    ({"category": "edge", "scenario": "singlestream"}, 1),
    ({"scenario": "multistream", "samples_per_query": 3}, 3),
]


@pytest.mark.parametrize(("flags", "in_flight"), LOADS, ids=str)
def test_the_window_has_the_load_of_its_scenario(bench: Any, flags: dict[str, Any], in_flight: int | None) -> None:
    engine = FakeEngine()
    plan, place = bench(engine, **flags)
    engine.trace = lambda: write(place.folder.path / "Profile", ON_GPU)
    found = profiling.run_profile(plan, place)
    assert (engine.profiled, engine.running_now, found.failure) == ([True, False], 0, "")
    assert 0 < engine.asked_then[0] < engine.asked_then[1]  # in the middle of the load
    assert engine.most == in_flight or (in_flight is None and engine.asked)
    summary = rendering.build_report(place.folder.path)
    assert summary.run.profile == found
    assert summary.plots["profile"] == "plots/profile.png"
    report = (place.folder.path / "report.md").read_text()
    assert tells(report, "no kernel ", "10 % of the time")
    assert "| matrix products | 0.6 | 63.2 | 1 |" in report
    assert f"(Profile/{NAME})" in report


def test_sorted_samples_are_sorted_in_the_window(bench: Any) -> None:
    engine = FakeEngine()
    plan, place = bench(engine, sort_by_length=True)
    profiling.run_profile(plan, place)
    assert [len(prompt) for prompt in engine.asked[:3]] == [16, 15, 14]


@pytest.mark.parametrize("flags", [flags for flags, _ in LOADS], ids=str)
def test_an_engine_that_fails_takes_nothing_from_the_measured_result(bench: Any, flags: dict[str, Any]) -> None:
    plan, place = bench(FakeEngine(fails=True), **flags)
    said = profiling.run_profile(plan, place).headline
    assert tells(said, "failed", "the load ended: ", "engine process ended")
    summary = rendering.build_report(place.folder.path)
    assert summary.run.performance is not None and summary.run.performance.tokens_per_sec == 1024
    assert "profile" not in summary.plots
    assert "profiler failed: the load ended" in (place.folder.path / "report.md").read_text()


def test_a_profiler_that_leaves_no_trace_is_a_failure_too(bench: Any) -> None:
    plan, place = bench(FakeEngine())
    assert "left no trace" in profiling.run_profile(plan, place).failure


def test_the_ramp_is_about_one_answer_long() -> None:
    log: Any = SimpleNamespace(latency_ms=SimpleNamespace(mean=1500), samples_per_sec=32.0)
    for flags, seconds in [
        ({}, 2.0),
        ({"batch_size": 16}, 0.5),
        ({"scenario": "server"}, 1.5),
    ]:
        plan = resolve(RunConfig(model="demo", **flags), [], 0)
        assert profiling.ramp_s(plan, log, 64) == seconds
    log.samples_per_sec = 0.001
    assert profiling.ramp_s(resolve(RunConfig(model="demo"), [], 0), log, 64) == profiling.LONGEST_RAMP_S


def test_arrivals_keep_to_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    gaps, wait = list[float](), asyncio.sleep
    plan = resolve(RunConfig(model="demo", scenario="server", server_target_qps=500.0), [], 0)

    async def noted(seconds: float) -> None:
        gaps.append(seconds)
        await wait(0)
        if len(gaps) == 2000:
            raise EngineError("enough")

    async def answer(item: object) -> None:
        await wait(0)

    monkeypatch.setattr(senders.asyncio, "sleep", noted)
    with pytest.raises(EngineError):
        asyncio.run(sending.pattern_sender(plan, 4).send(count(), answer))  # type: ignore[arg-type]
    assert sum(gaps) / len(gaps) == pytest.approx(1 / 500, rel=0.1)
    assert max(gaps) > 3 * min(gaps)  # random arrivals, not a metronome


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"mode": "accuracy"}, "--profile .*--mode accuracy"),
        ({"endpoint": ("http://127.0.0.1:1/v1",)}, "--profile: .*--endpoint"),
        ({"engine_arg": ("profiler_config={}",)}, "--profile sets it"),
    ],
)
def test_what_cannot_be_profiled_is_refused(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        RunConfig(model="demo", profile=True, **flags)


def test_a_damaged_profile_is_refused_by_name(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run")
    (folder / "Profile").mkdir()
    (folder / "Profile" / "profile.json").write_text('{"kinds": 3}')
    with pytest.raises(UsageError, match=r"profile\.json: kinds"):
        rendering.build_report(folder)
    files.write_json(folder / "Profile" / "profile.json", {"schema_version": 99})
    with pytest.raises(UsageError, match="newer version"):
        rendering.build_report(folder)
