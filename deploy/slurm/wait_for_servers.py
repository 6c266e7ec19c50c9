"""Wait until every server of a job answers, and end with an error if one belongs to another job.

    python wait_for_servers.py NAME ADDRESS...

NAME is the model name that the job's servers list, and ADDRESS the address of one of them.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request

LONGEST_WAIT_S = 1800
PAUSE_S = 1  # between two requests to a server that does not answer
REQUEST_TIMEOUT_S = 10


def listed_models(address: str) -> list[str]:
    """Return the names of the models that a server lists, asked with the job's key.

    Raises OSError, ValueError, KeyError or TypeError if it does not answer with a list.
    """
    headers = {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}
    request = urllib.request.Request(f"{address}/models", headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # without a proxy
    with opener.open(request, timeout=REQUEST_TIMEOUT_S) as response:
        return [str(model["id"]) for model in json.load(response)["data"]]


def fault(name: str, address: str, deadline: float) -> str:
    """Wait for a server until the deadline, and return why it must not be measured; empty if it is the job's own.

    The deadline is a time of time.monotonic.
    """
    last_error = "no answer"
    while time.monotonic() < deadline:
        try:
            models = listed_models(address)
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                return f"it refuses this job's key ({error.code}): it is not this job's server"
            last_error = str(error)
        except (OSError, ValueError, KeyError, TypeError) as error:
            last_error = str(error)
        else:
            if name in models:
                return ""
            return f"it serves {', '.join(models)}, not {name}: it is not this job's server"
        time.sleep(PAUSE_S)
    return f"not ready after {LONGEST_WAIT_S} s: {last_error}"


def main(name: str, *addresses: str) -> None:
    """Wait for all servers, and end this process with an error at the first that must not be measured."""
    deadline = time.monotonic() + LONGEST_WAIT_S
    for address in addresses:
        reason = fault(name, address, deadline)
        if reason:
            sys.exit(f"error: {address}: {reason}. Set PORT to a port that is free on every node.")


if __name__ == "__main__":
    main(*sys.argv[1:])
