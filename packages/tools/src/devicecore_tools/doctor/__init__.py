"""A comparison of what a node's sources say: which container holds which device, and what is wrong.

Law: everything here is a value or a pure function. Adapters read the sources; a `Look` holds what each of them said.
`check` finds what is wrong in one look, `still_wrong` keeps what a later look says again, and `report` puts the result
together. `state_of` gives the `NodeState` that the domain's functions decide with.
"""

DEFAULT_ROOT = "/var/lib/kubelet"
"""The root directory of a kubelet whose `--root-dir` is not set."""
