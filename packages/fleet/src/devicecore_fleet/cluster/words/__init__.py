"""What a kubelet sends to an API server: the objects and patches, as functions of what the node knows.

Law: nothing in this package does I/O or reads the clock. A patch is the difference between the server's object and the
desired object, so an object that is already as desired needs no patch.
"""
