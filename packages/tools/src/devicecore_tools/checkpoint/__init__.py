"""Examining and repairing a kubelet's files: the functions behind `devicecore checkpoint`.

Law: everything here is a value or a pure function.
"""
