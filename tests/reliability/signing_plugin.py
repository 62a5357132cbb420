"""A program with one plugin that obeys lines on standard input.

This module imports little, because tests start the program many times.
"""

import os
import sys
from pathlib import Path

import grpc

from devicecore.wire import deviceplugin
from tests.adapters.peers import RawPlugin, register


class SigningPlugin(RawPlugin):
    """A plugin whose answers contain its process id."""

    def allocate(self, _: deviceplugin.AllocateRequest, __: grpc.ServicerContext) -> deviceplugin.AllocateResponse:
        """Answer with the process id."""
        return deviceplugin.AllocateResponse(container_responses=[{"envs": {"BY": str(os.getpid())}}])


def main(directory: str, name: str, *devices: str) -> None:
    """Serve a plugin that obeys lines on its input: `register`, `list` and ids, or `disconnect`."""
    raw = SigningPlugin(Path(directory) / name, devices)
    print("serving", flush=True)  # noqa: T201 - what the test waits for
    for line in sys.stdin:
        match line.split():
            case ["register"]:
                print(*register(Path(directory), name), flush=True)  # noqa: T201 - as above
            case ["list", *ids]:
                raw.report(*ids)
            case _:
                raw.end_stream()


if __name__ == "__main__":
    main(*sys.argv[1:])
