"""The largest that a file of each kind can be, in bytes; a larger one is refused before it is read.

Each limit leaves several times what the longest honest run needs: a test of a month, a million requests.
"""

KIB, MIB, GIB = 2**10, 2**20, 2**30

UNITS = {"GiB": GIB, "MiB": MIB, "KiB": KIB}

LARGEST_LIST = MIB  # the largest list of checksums, or of the lines of .env
LARGEST_SETTINGS = 4 * MIB  # YAML of --config and of sweeps, and the JSON that describes a checkpoint
LARGEST_MODEL_JSON = 512 * MIB  # the largest tokenizer has some 35 MiB
LARGEST_PROFILE = 64 * KIB  # YAML of a workload's lengths
LARGEST_RUN_JSON = 256 * MIB  # the largest file of a run or a sweep; one of a thousand probes has some 5 MiB
LARGEST_RUN_FILE = GIB  # the largest table or text of a run, and history; a line of the history has some 4 KiB
LARGEST_RECORDING = 8 * GIB  # machine.csv: a month of a node of eight GPUs has some 2.5 GiB
LARGEST_REQUESTS = 8 * GIB  # requests.csv: some 70 bytes a request
LARGEST_LOADGEN_LOG = 64 * GIB  # LoadGen's detail log and trace: some 600 bytes a query, a day of 1,000 a second
LARGEST_ACCURACY_LOG = 4 * GIB  # LoadGen's answers: 8 characters a token
LARGEST_WORKLOAD = GIB  # requests of --workload: ShareGPT's published file has 0.64 GiB
LARGEST_ARRIVALS = GIB  # a trace of --arrivals: some 20 bytes a request
LARGEST_ARTICLES = 2 * GIB  # MLCommons' JSON of 13,368 articles has some 0.13 GiB
LARGEST_QUESTIONS = 256 * MIB  # a table of MMLU: all 14,042 questions have some 7 MiB


def size_text(size: int) -> str:
    """Return a number of bytes as text in the largest unit that fits."""
    for name, unit in UNITS.items():
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} bytes"
