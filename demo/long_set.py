"""The demo's evaluation set at any length: `python -m demo.long_set OUT.json [--count 13368]`.

The stories of cnn_eval.json and those that follow them, in the same shape: the same file every time. With it the
demo model runs at MLPerf's sample counts, as `--model demo/model --dataset-path OUT.json --max-model-len 1024`.
"""

import argparse
import json
from pathlib import Path

from tokenizers import Tokenizer

from demo.make import HERE, evaluation
from harness.config import mlperf


def main() -> None:
    parser = argparse.ArgumentParser(description="Write held-out stories in the shape of MLCommons' cnn_eval.json.")
    parser.add_argument("out", type=Path, metavar="OUT.json")
    parser.add_argument("--count", type=int, default=mlperf.OFFICIAL_TASKS["datacenter"].samples)
    arguments = parser.parse_args()
    records = evaluation(Tokenizer.from_file(str(HERE / "model" / "tokenizer.json")), arguments.count)
    with arguments.out.open("w") as file:
        file.write("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")


if __name__ == "__main__":
    main()
