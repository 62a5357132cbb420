"""How a device plugin is tested.

Law: the defaults suit plugins that answer and return as slowly as real plugins do.
"""

from attrs import frozen


@frozen
class Settings:
    """How a plugin is tested. Times are in seconds.

    Args:
        resource: the resource to test; by default the first resource that registers.
        first: how long the first registration may take.
        timeout: how long every answer, the first list, and a provoked change of health may take.
        returning: how long the plugin may take to register again after a kubelet restart that deletes all sockets.
        noticing: how long the plugin may take to register again after a smaller event: a closed stream, or only a new
            kubelet.sock. A plugin that needed longer after a restart gets 1.3 times that duration.
        alone: how long the plugin is left alone after its registration.
        restarting: how long a restart of the kubelet takes.
        away: how long the kubelet is down in the checks for a longer absence.
        refusing: how long the kubelet refuses every registration.
        grace: how long the plugin may take to exit after SIGTERM.
        restart: whether a plugin that exits is restarted, as in Kubernetes.
        provoke_health: a shell command that changes a device's health.
        undo_health: a shell command that undoes this change.
        owns_children: whether all processes that become children of this one belong to the plugin, because this program
            starts no others. If so, daemons that have dropped the plugin's environment are also killed.
        excuses_load: whether a check that failed for lack of time on a busy machine counts as undecided.
        budget: how long everything after the first registration may take; it also limits the wait for that
            registration. Checks for which no time is left are skipped.
    """

    resource: str = ""
    first: float = 60.0
    timeout: float = 10.0
    returning: float = 20.0
    noticing: float = 8.0
    alone: float = 24.0
    restarting: float = 0.6
    away: float = 6.5
    refusing: float = 3.5
    grace: float = 10.0
    restart: bool = True
    provoke_health: str = ""
    undo_health: str = ""
    owns_children: bool = False
    excuses_load: bool = False
    budget: float = 300.0
