"""Reads a node without gRPC: the kubelet's directory, pods and the Node from files, and CDI files.

Laws: reading changes nothing. Each function returns a `Reading` for any content of the files: with a value, or with a
sentence that says why there is none. Sizes and the numbers of files and values are bounded.

Import the modules separately, because a command that reads one source does not need the other readers.
"""
