"""The kubelet's CPU manager and memory manager, and the admission of a pod by all three managers.

Law: neither the library devicecore nor its tools import anything of this package at their start. Whoever needs it
imports it where it is used, and says what was not looked at if it is not installed.
"""

__version__ = "0.2.0"
