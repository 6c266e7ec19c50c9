"""Waits until every server of a job answers, and refuses one that is another job's.

python wait_for_servers.py NAME ADDRESS...     the model name that the job's servers list, and their addresses
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request

LONGEST_S = 1800
PAUSE_S = 1


def names(address: str) -> list[str]:
    """The models that a server lists, asked for with the job's key. Raises OSError, ValueError, KeyError."""
    headers = {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(f"{address}/models", headers=headers), timeout=10) as answer:
        return [str(model["id"]) for model in json.load(answer)["data"]]


def fault(name: str, address: str, until: float) -> str:
    """Why the server at an address is not to be measured; empty once the job's own answers."""
    reason = "no answer"
    while time.monotonic() < until:
        try:
            found = names(address)
            return "" if name in found else f"it serves {', '.join(found)}, not {name}: it is not this job's server"
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                return f"it refuses this job's key ({error.code}): it is not this job's server"
            reason = str(error)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error)
        time.sleep(PAUSE_S)
    return f"not ready after {LONGEST_S} s: {reason}"


def main(name: str, *addresses: str) -> None:
    until = time.monotonic() + LONGEST_S
    for address in addresses:
        if why := fault(name, address, until):
            sys.exit(f"error: {address}: {why}. Set PORT to a port that is free on every node.")


if __name__ == "__main__":
    main(*sys.argv[1:])
