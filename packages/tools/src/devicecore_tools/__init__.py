"""The command `devicecore` and its parts: a node, a doctor, test kubelets, and conformance checks.

Law: the library devicecore imports nothing from this package.
"""

__version__ = "0.2.0"
