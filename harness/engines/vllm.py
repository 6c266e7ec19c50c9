"""vLLM's AsyncLLM in this process. With `vllm_args` the one file that knows its API; written for vLLM 0.32."""

import asyncio
import faulthandler
import itertools
import math
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from os import environ
from pathlib import Path
from typing import Any

from harness.config.engine import EngineState
from harness.config.plan import Plan
from harness.core.errors import BenchmarkError, EngineError, UsageError, first_line
from harness.core.processes import adopt_orphans, end_children
from harness.core.system import cpu_flags
from harness.engines import patches, sampling_of, vllm_args
from harness.engines.prometheus import SOURCES
from harness.engines.protocol import GREEDY, ChoiceLogprobs, Engine, Exchange, Sampling
from harness.runs.ending import by_signal

# Other processes of the engine that may still be ending when it is closed get this long before they are killed.
GRACE_S = 3.0
ENGINE_ENDED = "vLLM's engine process ended unexpectedly"
CONNECTION_LOST = "an engine on another host broke its connection off"
EXTENSION = "worker_extension_cls"  # of --engine-arg: a class whose module each worker imports
WORKER = "harness.engines.worker.Extension"
RPC_S = 10.0
AMX_LOST = (
    f"{EXTENSION} is yours, so nobody asks Linux for AMX: bf16 may end in SIGILL on this CPU unless your class's "
    "module calls torch.cpu._init_amx()"
)


def create(plan: Plan, traces: Path, choosing: bool = False) -> "VLLM":
    """The engine of a run; with --profile, one that leaves its profiler's traces in that folder."""
    args = vllm_args.args_for(plan, choosing) | (vllm_args.profiler(traces) if plan.config.profile else {})
    return VLLM(args, sampling_of(plan), plan.pattern.is_streamed, plan.config.engine_patch)


class VLLM(Engine):
    name = "vLLM"
    _prompt: Callable[[list[int]], Any]  # vLLM's, once it is imported: token ids as a prompt
    _final: Callable[[int | None], Any]  # its sampling parameters, by the most tokens: one output at the end
    _delta: Callable[[int | None], Any]  # and one for each step

    def __init__(
        self,
        args: dict[str, object],
        sampling: Sampling = GREEDY,
        streaming: bool = False,
        patched: tuple[str, ...] = (),  # by which of `patches`
    ) -> None:
        super().__init__(args, sampling)
        self.streaming, self.patched = streaming, patched
        self._ids = itertools.count()
        self._llm: Any = None
        self._links: RemoteEngineConnections | None = None

    def start(self, watch: Callable[[], None] = lambda: None) -> None:
        adopt_orphans()
        super().start(watch)
        if "data_parallel_size_local" in self.args:
            self._links = RemoteEngineConnections(self._llm.engine_core)

    async def load(self) -> None:
        environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        faulthandler.enable(2)  # a process that dies by a signal says where, in engine.log: this one, what is forked,
        environ.setdefault("PYTHONFAULTHANDLER", "1")  # and what is begun anew
        environ[patches.VARIABLE] = ",".join(self.patched)
        self.cautions += map(patches.describe, self.patched)
        import vllm
        from vllm import AsyncEngineArgs
        from vllm.config import ProfilerConfig
        from vllm.inputs.engine import tokens_input
        from vllm.platforms import current_platform
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        self.version = vllm.__version__
        self.sample_with(self.sampling)
        self._prompt = tokens_input
        # Between the first token and the end nobody looks: one output each is enough.
        args: dict[str, object] = {"stream_interval": self.sampling.max_new_tokens, **self.args}
        if current_platform.is_cpu() and EXTENSION in args and "amx_tile" in cpu_flags():
            self.cautions.append(AMX_LOST)
        args = {EXTENSION: WORKER, **args}
        if isinstance(settings := args.get("profiler_config"), dict):
            args["profiler_config"] = ProfilerConfig(**settings)
        try:
            # vLLM's own defaults for batch sizes: for throughput where nobody streams, for latency where one does.
            usage = UsageContext.OPENAI_API_SERVER if self.streaming else UsageContext.LLM_CLASS
            settings = AsyncEngineArgs(**args).create_engine_config(usage)
            vllm_args.check_quantization(settings.model_config)
            quiet = self.args["disable_log_stats"]
            self._llm = AsyncLLM.from_vllm_config(settings, usage_context=usage, disable_log_stats=quiet)
            self.kernels = await self._kernels()
            patches.check(self.patched, self.kernels)
        except BenchmarkError:
            raise
        except (TimeoutError, ConnectionError) as error:
            raise EngineError(f"vLLM did not start: {first_line(error)}") from error
        except (ValueError, TypeError, OSError) as error:
            traceback.print_exception(error)  # to engine.log
            raise UsageError(f"vLLM refuses these settings: {vllm_args.refusal(error)}") from error
        except Exception as error:
            raise EngineError(f"vLLM did not start: {first_line(error)}") from error

    async def _kernels(self) -> dict[str, str]:
        """What the workers say that they run; nothing with other hosts, or a class of the user's."""
        if "data_parallel_size_local" in self.args or EXTENSION in self.args:
            return {}
        try:
            told = await self._llm.collective_rpc("chosen_kernels", timeout=RPC_S)
        except Exception as error:  # a name for the record: no run fails for want of it
            traceback.print_exception(error)  # to engine.log
            return {}
        return dict(told[0]) if told else {}

    def sample_with(self, sampling: Sampling) -> None:
        """How answers are generated from now on."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        @cache
        def params(kind: RequestOutputKind, max_new_tokens: int | None) -> SamplingParams:
            wanted = sampling.of(max_new_tokens)
            return SamplingParams(
                temperature=wanted.temperature,
                max_tokens=wanted.max_new_tokens,
                min_tokens=wanted.min_new_tokens,
                ignore_eos=wanted.exact,
                detokenize=False,
                output_kind=kind,
            )

        self.sampling = sampling
        self._final = partial(params, RequestOutputKind.FINAL_ONLY)
        self._delta = partial(params, RequestOutputKind.DELTA)

    async def stream(
        self,
        prompt: list[int],
        max_new_tokens: int | None = None,
        exchange: Exchange | None = None,
        is_whole: bool = False,
    ) -> AsyncIterator[Sequence[int]]:
        params = self._final if is_whole else self._delta
        async for output in self._outputs(prompt, params(max_new_tokens)):
            yield output.outputs[0].token_ids

    async def score_choices(self, prompt: list[int], choices: list[int]) -> ChoiceLogprobs:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            allowed_token_ids=choices,
            logprobs=len(choices),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        output = [output async for output in self._outputs(prompt, params)][-1]
        found = output.outputs[0].logprobs[0]
        logprobs = tuple(found[token].logprob if token in found else math.nan for token in choices)
        if any(map(math.isnan, logprobs)):
            raise EngineError("the model's probabilities are not numbers (NaN): broken weights, or too coarse a format")
        return ChoiceLogprobs(logprobs, output.num_cached_tokens or 0)

    async def _outputs(self, prompt: list[int], params: Any) -> AsyncIterator[Any]:
        try:
            async for output in self._llm.generate(self._prompt(prompt), params, str(next(self._ids))):
                self.last_response_at = time.monotonic()
                yield output
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except Exception as error:
            if self.failure:
                raise EngineError(self.failure) from error
            raise EngineError(f"vLLM failed while answering: {first_line(error)}") from error

    @property
    def engine_state(self) -> EngineState:
        setup = self._llm.vllm_config
        speculation = setup.speculative_config
        return EngineState(
            quantization=setup.model_config.quantization or "none",
            quantized_checkpoint=setup.model_config.is_quantized,
            kv_cache_dtype=setup.cache_config.cache_dtype,
            prefix_caching=bool(setup.cache_config.enable_prefix_caching),
            speculation=str(speculation.method) if speculation else None,
            effective_max_num_seqs=setup.scheduler_config.max_num_seqs,
            effective_max_num_batched_tokens=setup.scheduler_config.max_num_batched_tokens,
            block_size=setup.cache_config.block_size,
            kv_connector=str(setup.kv_transfer_config.kv_connector) if setup.kv_transfer_config else None,
        )

    async def reset_prefix_cache(self) -> None:
        """Empties the prefix cache, between tests. Raises EngineError where something holds on to it."""
        for _ in range(10):
            if await self._llm.reset_prefix_cache():
                return
            await asyncio.sleep(0.5)
        raise EngineError("vLLM did not empty its prefix cache between two tests")

    async def profile(self, on: bool) -> None:
        """Turns torch's profiler on in vLLM's workers, or off, which writes their traces. Raises EngineError."""
        try:
            await (self._llm.start_profile() if on else self._llm.stop_profile())
        except Exception as error:
            raise EngineError(f"vLLM's profiler: {first_line(error)}") from error

    @property
    def concurrency(self) -> int:
        setup = self._llm.vllm_config
        return int(setup.scheduler_config.max_num_seqs * setup.parallel_config.data_parallel_size)

    def prometheus_metrics(self) -> list[str]:
        """vLLM's own metrics, which it keeps in this process, if it was started with any."""
        if self.args["disable_log_stats"]:
            return []
        from prometheus_client import REGISTRY, generate_latest

        return [generate_latest(REGISTRY.restricted_registry(SOURCES)).decode()]

    @property
    def failure(self) -> str | None:
        if self._links and self._links.is_broken:
            return CONNECTION_LOST
        return f"{ENGINE_ENDED}{self._death()}" if self._llm is not None and self._llm.errored else None

    def _death(self) -> str:
        """By which signal, if vLLM can tell."""
        with suppress(AttributeError):
            ended = self._llm.engine_core.resources.engine_manager.finished_procs()
            return "".join(f": {name} {by_signal(-code)}" for name, code in ended.items() if code < 0)
        return ""

    def close(self) -> None:
        if self._llm is not None:
            if handler := self._llm.output_handler:  # else it logs the engine's end as a failure
                self.loop.call_soon_threadsafe(handler.cancel)
            closing = threading.Thread(target=shut_down, args=(self._llm,), daemon=True)
            closing.start()
            closing.join(GRACE_S)
            self._llm = None
        end_children()
        self.stop_loop()


def shut_down(llm: Any) -> None:
    with suppress(Exception):
        llm.shutdown()


class RemoteEngineConnections:
    """The connections between vLLM's client in this process and its engines; to be made once all are there."""

    def __init__(self, client: Any) -> None:
        import zmq

        # The client's sockets belong to its event loop; what ZeroMQ tells of them may be read on any one thread.
        self._socket: Any = zmq.Socket.shadow(client.resources.input_socket).get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._told: Any = zmq.Socket.shadow(self._socket)

    @property
    def is_broken(self) -> bool:
        """Whether a connection has ended; an engine never ends one while it lives."""
        return bool(self._told.poll(0))
