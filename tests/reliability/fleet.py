"""A process with many plugins whose lists change all the time.

`python -m tests.reliability.fleet DIRECTORY FIRST LAST` prints a line when a kubelet has registered all plugins, and
serves the plugins until the process is killed or its input ends.
"""

import itertools
import sys
import threading
from contextlib import ExitStack

from devicecore import Health
from devicecore.adapters.grpc_unix import serve_plugin
from devicecore.plugins.simulated import SimulatedPlugin
from tests.reliability.pods import plugin
from tests.reliability.scale import PATIENCE

DEVICES = 4
EVERY = 0.05  # seconds


def main(directory: str, first: str, last: str) -> None:
    """Serve the plugins until the input ends."""
    plugins = [plugin(f"acme.io/fleet-{number}", DEVICES) for number in range(int(first), int(last))]
    ended = threading.Event()
    with ExitStack() as stack:
        for served in [stack.enter_context(serve_plugin(each, directory, poll_interval=5.0)) for each in plugins]:
            served.wait_registered(PATIENCE)
        changing = threading.Thread(target=change, args=(plugins, ended))
        changing.start()
        print("ready", flush=True)  # noqa: T201 - what the storm waits for
        sys.stdin.read()
        ended.set()
        changing.join()


def change(plugins: list[SimulatedPlugin], ended: threading.Event) -> None:
    """Make one device of each plugin unhealthy, then healthy again, and so on."""
    for health in itertools.cycle((Health.UNHEALTHY, Health.HEALTHY)):
        for each in plugins:
            if ended.wait(EVERY):
                return
            each.set_health("gpu-0", health)


if __name__ == "__main__":
    main(*sys.argv[1:])
