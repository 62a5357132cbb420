"""The command `devicecore` and what it is made of: a node, a doctor, kubelets for tests, and conformance checks.

Law: the library devicecore imports nothing of this package.
"""

__version__ = "0.2.0"
