"""The demo's evaluation set at any length: `python -m demo.long_set OUT.json [--count 13368]`.

It has the stories of cnn_eval.json and those of the seeds that follow, in the same shape, and is the same every time.
With it the demo model runs at MLPerf's sample counts, as
`--model demo/model --dataset-path OUT.json --max-model-len 1024`.
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
    tokenizer = Tokenizer.from_file(str(HERE / "model" / "tokenizer.json"))
    records = evaluation(tokenizer, arguments.count)
    with arguments.out.open("w") as file:
        file.write("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")


if __name__ == "__main__":
    main()
