"""Examines and repairs a kubelet's files: the functions behind `devicecore checkpoint`.

Law: everything in this package is either a value or a pure function.
"""
