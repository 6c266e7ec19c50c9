"""The files of a checkpoint that an engine loads: those of its index, and no second copy of the weights."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from harness.core import files
from harness.core.errors import UsageError
from harness.core.file_limits import LARGEST_SETTINGS, MIB
from harness.core.formatting import plural
from harness.core.stored_text import LFS_POINTER, data_files, is_lfs_pointer

# Files by format, in the order in which engines look for them: the index of the shards, and the weights in one file.
FORMATS = (
    ("safetensors", "model.safetensors.index.json", "model.safetensors"),
    ("bin", "pytorch_model.bin.index.json", "pytorch_model.bin"),
    ("pt", "", ""),
)
SHARD_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.\w+")  # the model, the number of the shard, and how many there are
# Names of files beside the weights that are no weights: adapters, and what training leaves.
OTHER_FILES = re.compile(r"(adapter_model|training_args|optimizer|scheduler|scaler|rng_state|trainer_state).*")
SECOND_COPY = "consolidated"  # the beginning of the names of a second copy of the weights, in Mistral's format
LARGEST_INDEX = 16 * LARGEST_SETTINGS
LARGEST_HEADER = 100 * MIB  # the largest header of a safetensors file that the format's library reads


def weight_files(folder: Path, name: str, is_loaded: bool) -> list[Path]:
    """Return the existing files of a folder's weights that an engine would load: those of the first format found.

    If `is_loaded`, UsageError is raised for a file that is missing, cut short, or a pointer of Git LFS.
    """
    for suffix, index, whole in FORMATS:
        files_of_format = loaded_files(folder, suffix, index, whole)
        if not files_of_format:
            continue
        if is_loaded:
            check_files(files_of_format, name)
        return [path for path in files_of_format if path.exists()]
    return []


def loaded_files(folder: Path, suffix: str, index: str, whole: str) -> list[Path]:
    """Return the files of one format that an engine would load, with any that should exist but do not.

    The file `index` lists the shards: the parts of one set of weights.
    """
    if index and (folder / index).is_file():
        return [folder / shard for shard in shards_of(folder / index)]
    paths = [path for path in data_files(folder, f"*.{suffix}") if not OTHER_FILES.fullmatch(path.name)]
    # A folder may have the same weights a second time, in files whose names begin with SECOND_COPY. These count only if
    # there are no others.
    main_paths = [path for path in paths if not path.name.startswith(SECOND_COPY)]
    if not main_paths:
        main_paths = paths
    if folder / whole in main_paths:
        return [folder / whole]
    return all_shards(main_paths)


def shards_of(index: Path) -> list[str]:
    """Return the names of the files that an index of weights lists, sorted. Raises UsageError if it lists none."""
    match files.read_json(index, LARGEST_INDEX):
        case {"weight_map": {**weights}} if weights:
            return sorted(set(map(str, weights.values())))
    raise UsageError(f"{index}: it lists no files (no weight_map in it): copy it again.")


def all_shards(existing: Sequence[Path]) -> list[Path]:
    """Return the existing files of weights and the shards that are missing beside them, sorted.

    The name of a shard, such as model-00001-of-00002, says how many there are.
    """
    paths = list(existing)
    for path in existing:
        shard_name = SHARD_NAME.fullmatch(path.name)
        if not shard_name:  # The file is whole, or its name has another form.
            continue
        model, _, count = shard_name.groups()
        for number in range(1, int(count) + 1):
            shard = path.with_name(f"{model}-{number:05}-of-{count}{path.suffix}")
            if shard not in paths:
                paths.append(shard)
    return sorted(paths)


def check_files(paths: Sequence[Path], name: str) -> None:
    """Raise UsageError for the first file of weights that is missing, cut short, or a pointer of Git LFS.

    `name` is the user's name of the model, for the message.
    """
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise UsageError(
            f"{name}: {missing[0]} is missing, {len(missing):,} of {plural(len(paths), 'file')} of its weights: copy "
            "the folder again, or download the model again.",
            flag="--model",
        )
    for path in paths:
        if is_lfs_pointer(path):
            raise UsageError(f"{name}: {path.name} is {LFS_POINTER}.", flag="--model")
        if is_cut_short(path):
            raise UsageError(f"{name}: {path.name} is cut short: copy it again, or download it again.", flag="--model")


def is_cut_short(path: Path) -> bool:
    """Return whether a safetensors file is shorter than its own header says.

    False for a file of another format, and for a header that cannot be read, which the engine reports.
    """
    size = path.stat().st_size
    if path.suffix != ".safetensors":
        return False
    with path.open("rb") as file:
        # The first 8 bytes of the file are the length of the header.
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= LARGEST_HEADER:  # This is no header of safetensors, which the engine will report.
            return False
        if size < 8 + length:  # The file ends within its header.
            return True
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            # where each tensor's data end, counted from the end of the header
            ends = [tensor["data_offsets"][1] for tensor in header.values()]
            whole_size = 8 + length + max(ends, default=0)
            return size < whole_size
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return False
