"""Keep a real control plane running, for trying things by hand. Ctrl-C ends the control plane and removes its files."""

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from tests.real_cluster.control_plane import CONTROL_PLANE, ControlPlane, say
from tests.real_cluster.programs import Programs, RealClusterError


def main() -> int:
    """Run the control plane until a signal arrives, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.real_cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start a control plane and print its kubeconfigs")
    up.add_argument("--node", action="append", default=[], metavar="NAME", help="also write a kubeconfig for this node")
    up.add_argument("--keep", type=Path, metavar="DIR", help="use this directory and keep it")
    option = "an option of one of the programs, such as kube-scheduler=--kube-api-qps=500"
    up.add_argument("--option", action="append", default=[], metavar="PROGRAM=OPTION", help=option)
    options = parser.parse_args()
    arguments: dict[str, list[str]] = {}
    for one in options.option:
        program, _, word = one.partition("=")
        if program not in CONTROL_PLANE or not word:
            parser.error(f"--option {one}: expected PROGRAM=OPTION, with one of {', '.join(CONTROL_PLANE)}")
        arguments.setdefault(program, []).append(word)
    signal.signal(signal.SIGTERM, _end)
    try:
        with ControlPlane(arguments=arguments, keep=options.keep) as plane:
            lines = [f"export KUBECONFIG={plane.kubeconfig()}"]
            lines += [f"# node {name}: {plane.node_kubeconfig(name)}" for name in options.node]
            lines += [f"# kubectl: {Programs.built().path('kubectl')}"]
            sys.stdout.write("\n".join((*lines, "")))
            sys.stdout.flush()
            say("running until Ctrl-C or SIGTERM")
            signal.pause()
    except RealClusterError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        say("ended")
    return 0


def _end(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
