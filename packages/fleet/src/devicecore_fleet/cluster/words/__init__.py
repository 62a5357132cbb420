"""What a kubelet says to an API server: the objects and patches, as functions of what the node knows.

Law: nothing here does I/O or knows the time. A patch is the difference between the object as the server has it and what
it has to be, so an object that is as it has to be needs no patch.
"""
