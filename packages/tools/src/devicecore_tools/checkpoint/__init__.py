"""Examining and repairing a kubelet's files: the functions behind `devicecore checkpoint`.

Law: everything here is either a value or a pure function.
"""
