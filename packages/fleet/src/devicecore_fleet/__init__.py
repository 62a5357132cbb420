"""Cluster nodes without machines: one node for `devicecore kubelet --register-node`, or many in `devicecore fleet`.

Law: neither the library devicecore nor devicecore_tools imports anything from this package. The command `devicecore`
finds this package through its entry points.
"""

__version__ = "0.2.0"
