"""Compares a node's sources: which container holds which device, and what is wrong.

Law: everything outside `reading` is either a value or a pure function. The modules in `reading` read the sources, and a
`Look` holds their contents. `check` finds what is wrong according to one `Look`, `still_wrong` keeps what a later
`Look` confirms, and `report` combines the results. `state_of` returns the `NodeState` on which the domain's functions
base their decisions.
"""

DEFAULT_ROOT = "/var/lib/kubelet"
"""The root directory of a kubelet whose `--root-dir` is not set."""
