"""vLLM's AsyncLLM in this process, and its arguments; written for vLLM 0.32. Its types: `vllm_library`."""

import asyncio
import faulthandler
import itertools
import math
import threading
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import cache
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING

from harness.config.engine import EngineState
from harness.config.plan import Plan
from harness.core import nvml, processes, system
from harness.core.errors import BenchmarkError, EngineError, UsageError
from harness.core.message_text import first_line
from harness.engines import patches, sampling_of
from harness.engines.answer_delivery import Exchange
from harness.engines.protocol import ChoiceLogprobs, Engine, Sampling, TokenStream
from harness.engines.server_metrics import SOURCES
from harness.engines.vllm_arguments import check_quantization, engine_args_of, refusal
from harness.engines.vllm_library import AsyncEngine, EngineClient, RequestOutput

if TYPE_CHECKING:
    from vllm import SamplingParams

PROFILED_STEPS = 200  # the most steps of the engine: enough to see each kind of work, and a trace below some hundred MB


def profiler(traces: Path) -> dict[str, object]:
    """Return the arguments of vLLM's profiler, which costs nothing until `VLLM.profile` turns it on."""
    config = {
        "profiler": "torch",
        "torch_profiler_dir": str(traces.resolve()),
        "torch_profiler_with_stack": False,  # most of a trace would be stacks
        "torch_profiler_dump_cuda_time_total": False,  # vLLM's own table: the engine would wait for it
        "detailed_trace_annotation": True,  # how many tokens each step computes and reads
        "ignore_frontend": True,  # the workers' traces hold the kernels
        "max_iterations": PROFILED_STEPS,
    }
    return {"profiler_config": config}


SHUTDOWN_GRACE_S = 3.0  # the time in which vLLM may shut its processes down before they are killed
EXTENSION_ARGUMENT = "worker_extension_cls"  # the argument that names a class whose module each worker imports
WORKER_CLASS = "harness.engines.worker.Extension"
RPC_S = 10.0  # the time limit of a call to the workers
AMX_WARNING = (
    f"{EXTENSION_ARGUMENT} is yours, so nobody asks Linux for AMX: bf16 may end in SIGILL on this CPU unless your "
    "class's module calls torch.cpu._init_amx()"
)


def create(plan: Plan, traces: Path, may_score: bool = False) -> "VLLM":
    """Return the engine of a run. With --profile, its profiler writes traces to the folder `traces`.

    Only with `may_score` may `score_choices` of the engine be called.
    """
    args = engine_args_of(plan, may_score)
    if plan.config.profile:
        args |= profiler(traces)
    return VLLM(args, sampling_of(plan), plan.pattern.is_streamed, plan.config.engine_patch)


@cache
def sampling_params(sampling: Sampling, is_whole: bool, choices: tuple[int, ...] = ()) -> "SamplingParams":
    """Return vLLM's sampling parameters.

    The answer comes in one output at the end if `is_whole`, else in one for each step. With `choices`, the answer must
    be one of these tokens, and their log-probabilities are returned.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    output_kind = RequestOutputKind.FINAL_ONLY if is_whole else RequestOutputKind.DELTA
    return SamplingParams(
        temperature=sampling.temperature,
        max_tokens=sampling.max_new_tokens,
        min_tokens=sampling.min_new_tokens,
        ignore_eos=sampling.exact,
        allowed_token_ids=list(choices) or None,  # None: any token
        logprobs=len(choices) or None,  # None: not returned
        detokenize=False,  # Only the token ids are used.
        output_kind=output_kind,
    )


class VLLM(Engine):
    name = "vLLM"

    def __init__(
        self,
        args: dict[str, object],
        sampling: Sampling,
        streaming: bool,
        patch_names: tuple[str, ...],
    ) -> None:
        """Prepare the engine; `start` loads it. `args` are those of vLLM's AsyncEngineArgs.

        `streaming` says that the time of each first token is taken. `patch_names` are those of --engine-patch.
        """
        super().__init__(args, sampling)
        self.streaming, self.patch_names = streaming, patch_names
        self._ids = itertools.count()  # numbers for vLLM's requests
        self._llm: AsyncEngine | None = None  # vLLM's engine, from `load` on
        self._links: RemoteEngineConnections | None = None  # to the engines on other hosts, if there are any

    def _prepare_process(self) -> None:
        """Set what vLLM and its processes read from the environment when they begin, and note a caution for each patch.

        Also let processes that vLLM leaves behind become children of this one, so that `close` ends them.
        """
        processes.adopt_orphans()
        environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        nvml.use_order_of_nvml()  # so that a GPU has the same number for vLLM as in this program's readings
        # A process that dies by a signal writes its stack to engine.log. The first line is for this process and its
        # forks, the second for Python programs that it starts.
        faulthandler.enable(2)
        environ.setdefault("PYTHONFAULTHANDLER", "1")
        environ[patches.VARIABLE] = ",".join(self.patch_names)
        for name in self.patch_names:
            self.cautions.append(f"vLLM is patched, {name}: {patches.PATCHES[name].effect}")

    async def load(self) -> None:
        """Start vLLM's engine, on the loop, and note the kernels that it runs.

        Raises UsageError if vLLM refuses the settings or a patch changes nothing, EngineError if vLLM does not start.
        """
        self._prepare_process()
        import vllm
        from vllm import AsyncEngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        self.version = vllm.__version__
        if self._leaves_amx_unused():
            self.cautions.append(AMX_WARNING)
        # Nobody looks at an answer between its first token and its end. With an interval as long as the longest answer,
        # vLLM gives two outputs: one at the first token, and one at the end. The user's own arguments replace both.
        added_args = {"stream_interval": self.sampling.max_new_tokens, EXTENSION_ARGUMENT: WORKER_CLASS}
        args = added_args | self.args
        try:
            # vLLM's default batch sizes depend on the usage: for latency if answers are streamed, else for throughput.
            usage = UsageContext.OPENAI_API_SERVER if self.streaming else UsageContext.LLM_CLASS
            settings = AsyncEngineArgs(**args).create_engine_config(usage)
            check_quantization(settings.model_config)
            quiet = self.args["disable_log_stats"]
            llm: AsyncEngine = AsyncLLM.from_vllm_config(settings, usage_context=usage, disable_log_stats=quiet)
            self._llm = llm
            self.kernels = await self._kernels()
            patches.check(self.patch_names, self.kernels)
            if "data_parallel_size_local" in self.args:  # There are engines on other hosts.
                self._links = RemoteEngineConnections(llm.engine_core)
        except BenchmarkError:  # by this program's own checks above
            raise
        except (TimeoutError, ConnectionError) as error:  # These are OSErrors, too, but no fault of the settings.
            raise EngineError(f"vLLM did not start: {first_line(error)}") from error
        except (ValueError, TypeError, OSError) as error:  # raised by vLLM's own checks of the settings and the model
            traceback.print_exception(error)  # to engine.log
            raise UsageError(f"vLLM refuses these settings: {refusal(error)}") from error
        except Exception as error:
            raise EngineError(f"vLLM did not start: {first_line(error)}") from error

    def _leaves_amx_unused(self) -> bool:
        """Return whether the CPU has a matrix unit (AMX), but the workers will not ask for it.

        This program's worker extension asks for it. A class of the user's own takes the place of this extension.
        """
        from vllm.platforms import current_platform

        has_own_extension = EXTENSION_ARGUMENT in self.args
        return has_own_extension and current_platform.is_cpu() and "amx_tile" in system.cpu_flags()

    @property
    def llm(self) -> AsyncEngine:
        """vLLM's own engine. Must only be read after it was started and before it was closed."""
        assert self._llm is not None
        return self._llm

    async def _kernels(self) -> dict[str, str]:
        """Return the kernels that the first worker says it runs.

        Empty if vLLM has engines on other hosts, if the user gave a worker extension in place of this program's, or if
        the workers do not answer.
        """
        if "data_parallel_size_local" in self.args or EXTENSION_ARGUMENT in self.args:
            return {}
        try:
            worker_kernels = await self.llm.collective_rpc("chosen_kernels", timeout=RPC_S)
        except Exception as error:  # kernels are only recorded, so no run fails without them
            traceback.print_exception(error)  # to engine.log
            return {}
        if not worker_kernels:
            return {}
        return dict(worker_kernels[0])

    async def stream(
        self,
        prompt: list[int],
        max_new_tokens: int | None = None,
        exchange: Exchange | None = None,
        is_whole: bool = False,
    ) -> TokenStream:
        """Yield the new token ids of an answer, as many at a time as vLLM has ready; with `is_whole`, all at once.

        `exchange` is not used: there is no server.
        """
        params = sampling_params(self.sampling.for_request(max_new_tokens), is_whole)
        async for output in self._outputs(prompt, params):
            yield output.outputs[0].token_ids

    async def score_choices(self, prompt: list[int], choices: list[int]) -> ChoiceLogprobs:
        """Return the log-probabilities of the ids in `choices` as the next token, in the same order.

        A single token is generated, which can only be one of the choices. Raises EngineError if a log-probability is
        missing or no number.
        """
        one_token = Sampling(max_new_tokens=1, min_new_tokens=0)
        params = sampling_params(one_token, is_whole=True, choices=tuple(choices))
        outputs = [output async for output in self._outputs(prompt, params)]
        by_token = outputs[-1].outputs[0].logprobs[0]
        logprobs = [by_token[token].logprob for token in choices if token in by_token]
        if len(logprobs) < len(choices) or any(map(math.isnan, logprobs)):
            raise EngineError("the model's probabilities are not numbers (NaN): broken weights, or too coarse a format")
        return ChoiceLogprobs(tuple(logprobs), outputs[-1].num_cached_tokens or 0)

    async def _outputs(self, prompt: list[int], params: "SamplingParams") -> AsyncIterator[RequestOutput]:
        """Yield vLLM's outputs for a prompt, and note when each came.

        Raises EngineError. If the engine is gone, the error says why.
        """
        from vllm.inputs.engine import tokens_input

        try:
            async for output in self.llm.generate(tokens_input(prompt), params, str(next(self._ids))):
                self.last_response_at = time.monotonic()
                yield output
        except Exception as error:
            if self.failure:  # The engine is gone, for a reason that the error itself may not tell.
                raise EngineError(self.failure) from error
            raise EngineError(f"vLLM failed while answering: {first_line(error)}") from error

    @property
    def engine_state(self) -> EngineState:
        """The settings that vLLM resolved, some of them only from the checkpoint."""
        settings = self.llm.vllm_config
        model, cache, scheduler = settings.model_config, settings.cache_config, settings.scheduler_config
        speculation = kv_connector = None
        if settings.speculative_config:
            speculation = str(settings.speculative_config.method)
        if settings.kv_transfer_config:
            kv_connector = str(settings.kv_transfer_config.kv_connector)
        return EngineState(
            quantization=model.quantization or "none",
            quantized_checkpoint=model.is_quantized,
            kv_cache_dtype=cache.cache_dtype,
            prefix_caching=bool(cache.enable_prefix_caching),
            speculation=speculation,
            effective_max_num_seqs=scheduler.max_num_seqs,
            effective_max_num_batched_tokens=scheduler.max_num_batched_tokens,
            block_size=cache.block_size,
            kv_connector=kv_connector,
        )

    async def reset_prefix_cache(self) -> None:
        """Empty the prefix cache between tests. Raises EngineError if vLLM does not empty it within some seconds.

        vLLM refuses while a request still holds a part of the cache, so it is asked several times.
        """
        for _ in range(10):
            if await self.llm.reset_prefix_cache():
                return
            await asyncio.sleep(0.5)
        raise EngineError("vLLM did not empty its prefix cache between two tests")

    async def profile(self, on: bool) -> None:
        """Turn torch's profiler on in vLLM's workers, or off. When it is turned off, the workers write their traces.

        Raises EngineError.
        """
        try:
            if on:
                await self.llm.start_profile()
            else:
                await self.llm.stop_profile()
        except Exception as error:
            raise EngineError(f"vLLM's profiler: {first_line(error)}") from error

    @property
    def concurrency(self) -> int:
        """The most requests that all copies of the model together compute at once."""
        setup = self.llm.vllm_config
        return int(setup.scheduler_config.max_num_seqs * setup.parallel_config.data_parallel_size)

    def prometheus_metrics(self) -> list[str]:
        """Return vLLM's own metrics, which it keeps in this process, as one text. No text if statistics are off."""
        if self.args["disable_log_stats"]:
            return []
        from prometheus_client import REGISTRY, generate_latest

        return [generate_latest(REGISTRY.restricted_registry(SOURCES)).decode()]

    @property
    def failure(self) -> str | None:
        """The reason why vLLM can answer no more, with the signals by which its processes died. None while it can."""
        if self._links and self._links.is_broken:
            return "an engine on another host broke its connection off"
        if self._llm is None or not self._llm.errored:
            return None
        text = "vLLM's engine process ended unexpectedly"
        with suppress(AttributeError):  # not every vLLM has these attributes
            exit_codes = self._llm.engine_core.resources.engine_manager.finished_procs()
            for name, code in exit_codes.items():
                if code < 0:
                    text += f": {name} {processes.signal_text(-code)}"
        return text

    @property
    def failure_text(self) -> str:
        """The text of `failure`, with a name that says which engine failed."""
        is_connection_broken = self._links is not None and self._links.is_broken
        if is_connection_broken:  # The text of `failure` is of a connection, and does not name vLLM.
            return super().failure_text
        return self.failure or ""

    def close(self) -> None:
        """Shut vLLM down, for at most SHUTDOWN_GRACE_S, then end every process that is left, and the loop."""
        if self._llm is not None:
            handler = self._llm.output_handler
            if handler:  # A running handler would log the engine's end as a failure.
                self.loop.call_soon_threadsafe(handler.cancel)
            # vLLM may hang while it shuts down, so a thread does it, which is waited for only for some time.
            closing = threading.Thread(target=shut_down, args=(self._llm,), daemon=True)
            closing.start()
            closing.join(SHUTDOWN_GRACE_S)
            self._llm = None
        processes.end_children()
        self.stop_loop()


def shut_down(llm: AsyncEngine) -> None:
    """Shut vLLM down. Errors are ignored, since all of its processes are ended afterwards anyway."""
    with suppress(Exception):
        llm.shutdown()


class RemoteEngineConnections:
    """The connections between vLLM's client in this process and its engines. To be created once all are connected."""

    def __init__(self, client: EngineClient) -> None:
        """Watch the socket of vLLM's client for connections that end."""
        import zmq

        # The client's socket is asynchronous: only its event loop may use it. Its shadow, a plain object for the same
        # socket, gives a monitor socket, on which ZeroMQ reports ended connections.
        shadow: zmq.Socket[bytes] = zmq.Socket.shadow(client.resources.input_socket)
        # The monitor socket is asynchronous, too. Any thread may read its shadow, while the socket itself is kept open.
        self._monitor = shadow.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._events: zmq.Socket[bytes] = zmq.Socket.shadow(self._monitor)

    @property
    def is_broken(self) -> bool:
        """Tell whether a connection has ended. An engine does not end one while it lives."""
        return bool(self._events.poll(0))
