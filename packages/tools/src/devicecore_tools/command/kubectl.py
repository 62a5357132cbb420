"""`kubectl devicecore`: the commands that query a cluster, with the kubeconfig that kubectl uses.

Law: a call runs a `devicecore` command on the cluster in that kubeconfig, unless the call names other sources or needs
no cluster.
"""

import sys
from collections.abc import Sequence

from devicecore_tools.command.main import main as devicecore
from devicecore_tools.command.output import complain

_HELP = """\
Usage: kubectl devicecore COMMAND [OPTIONS] [ARGS]...

  Show the devices of the cluster in your kubeconfig.

  $ kubectl devicecore nodes --devices
  $ kubectl devicecore doctor
  $ kubectl devicecore doctor node-1
  $ kubectl devicecore why train
  $ kubectl devicecore fits train.yaml

Commands:
  doctor  Say what is wrong with the devices of every node, or of NODE.
  fits    Say on which nodes the pod in the manifest POD gets its devices.
  nodes   Show the devices of each node, and which pods hold them.
  why     Explain why a pod or a claim was refused or waits.

  Each command has the options of `devicecore COMMAND`: see kubectl devicecore
  COMMAND --help. Use --kubeconfig for a file other than $KUBECONFIG or
  ~/.kube/config.
"""
_COMMANDS = ("doctor", "fits", "nodes", "why")
_SOURCES = ("--kubeconfig", "--in-cluster", "--root", "--node", "--slices", "--checkpoint", "--pods", "--help", "-h")
_UNUSABLE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command with `arguments`, by default those of the process, and return the exit status."""
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    if not words or words[0] in {"-h", "--help", "help"}:
        sys.stdout.write(_HELP)
        return 0 if words else _UNUSABLE
    if words[0] not in _COMMANDS:
        complain("kubectl devicecore", f"expected one of {', '.join(_COMMANDS)}, got {words[0]!r:.100}")
        return _UNUSABLE
    return devicecore(_of_cluster(words[0], words[1:]))


def _of_cluster(command: str, words: list[str]) -> list[str]:
    """Return the `devicecore` call, which reads a cluster if nothing else is named."""
    named = {word.partition("=")[0] for word in words}
    if command == "doctor" and words and not words[0].startswith("-"):
        words = ["--node-name", *words]
        named.add("--node-name")
    # `nodes` finds the default kubeconfig by itself, and `why` explains a given message without a cluster.
    needs_none = command == "nodes" or (command == "why" and any(" " in word for word in words))
    if named.isdisjoint(_SOURCES) and not needs_none:
        from devicecore_tools.command.nodes import default_kubeconfig

        words = [*words, "--kubeconfig", default_kubeconfig()]
        named.add("--kubeconfig")
    asks_cluster = not named.isdisjoint({"--kubeconfig", "--in-cluster"})
    if command == "doctor" and asks_cluster and named.isdisjoint({"--node-name", "--all-nodes"}):
        words = [*words, "--all-nodes"]
    # `fits` tries a pod on nodes from files; `why` tries it on the nodes of a cluster
    if command == "fits" and asks_cluster:
        command = "why"
    return [command, *words]
