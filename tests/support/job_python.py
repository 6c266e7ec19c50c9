"""In place of a job's Python: a call of vLLM's server starts a server that computes nothing, any other is Python's.

STAND_IN_DIES: after so many seconds, or "NODE SECONDS" for one node, the server ends with exit code 1.
"""

import argparse
import os
import sys
import time

SERVER = ["-m", "vllm.entrypoints.openai.api_server"]


def main(words: list[str]) -> None:
    if words[:2] != SERVER:
        os.execv(sys.executable, [sys.executable, *words])
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--served-model-name")
    given, _ = parser.parse_known_args(words[2:])
    node, _, seconds = os.environ.get("STAND_IN_DIES", "").rpartition(" ")
    dies_after = float(seconds) if seconds and node in ("", os.environ["SLURM_NODEID"]) else 3600.0
    print("server on port", given.port, flush=True)
    if dies_after:
        from tests.support.fake_servers import Fake, serving

        with serving(Fake(models=(given.served_model_name,), key=os.environ["VLLM_API_KEY"], port=given.port)):
            time.sleep(dies_after)
    sys.exit("out of memory")


if __name__ == "__main__":
    main(sys.argv[1:])
