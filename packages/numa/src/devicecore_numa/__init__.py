"""The kubelet's CPU manager and memory manager, and pod admission by all three managers.

Law: neither the library devicecore nor its tools import anything from this package when they start. The tools import
this package only where they use it, and if it is not installed, they report what they could not check.
"""

__version__ = "0.2.0"
