"""Compares a node's sources: which container holds which device, and what is wrong.

Law: everything here is either a value or a pure function. Adapters read the sources, and a `Look` holds their contents.
`check` finds what is wrong in one look, `still_wrong` keeps what a later look confirms, and `report` combines the
results. `state_of` gives the `NodeState` that the domain's functions decide with.
"""

DEFAULT_ROOT = "/var/lib/kubelet"
"""The root directory of a kubelet whose `--root-dir` is not set."""
