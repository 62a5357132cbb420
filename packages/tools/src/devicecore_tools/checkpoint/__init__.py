"""What the files of a kubelet say, for people who examine or repair them: the functions of `devicecore checkpoint`.

Law: everything here is a value or a pure function.
"""
