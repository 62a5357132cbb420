"""`devicecore api-server`: the test API server as a separate process.

Law: an existing file is not replaced, and the kubeconfig is deleted when the server stops.
"""

import sys
from pathlib import Path

import click

from devicecore_tools.command.options import PLACE
from devicecore_tools.command.signals import Signals

_HOW_TO_USE_IT = """\
{url} serves Nodes, Pods and the kinds of dynamic resource allocation, from memory. SIGTERM or Ctrl-C stops the server.
  kubectl --kubeconfig {file} get nodes
  kubectl --kubeconfig {file} apply --validate=false -f FILE   # the server has no schemas for validation
"""


@click.command(short_help="Serve an API server for tests, without a cluster.")
@click.argument("kubeconfig", type=PLACE)
def api_server(*, kubeconfig: str) -> int:
    """Serve an API server for tests on a free port of this machine, and write KUBECONFIG, a file for clients.

    The server has no scheduler and no controllers: a pod stays Pending until someone binds it. Objects are kept only in
    memory, and KUBECONFIG is deleted when the server stops. Every process on this machine can use the server.

    \b
    $ devicecore api-server kubeconfig
    $ devicecore fleet fleet.yaml --kubeconfig kubeconfig
    $ kubectl --kubeconfig kubeconfig create --raw /api/v1/namespaces/default/pods/train/binding -f binding.json
    """
    from devicecore_tools.testing.api_server import LocalApiServer

    file = Path(kubeconfig)
    if file.exists() or not file.parent.is_dir():
        message = f"{file} exists: name a new file" if file.exists() else f"there is no directory {file.parent}"
        raise click.UsageError(message)
    with Signals() as signals, LocalApiServer() as server:
        try:
            server.kubeconfig(file)
            sys.stdout.write(_HOW_TO_USE_IT.format(url=server.url, file=file))
            sys.stdout.flush()
            signals.wait_for_end()
        finally:
            file.unlink(missing_ok=True)
    return 0
