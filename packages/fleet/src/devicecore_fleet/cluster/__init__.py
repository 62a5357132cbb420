"""A node of a cluster: its pods come from an API server, and their status is reported there.

Read `pods` for the life of a pod, `writer` for how requests are sent, and `registration` for the Node and its
Lease. The contents of the requests are in `words`.
"""
