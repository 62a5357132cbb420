"""A node of a cluster: the node's pods come from an API server, and the status of the pods is reported to that server.

Read `pods` for the life of a pod, `writer` for the sending of requests, and `registration` for the Node and its Lease.
The contents of the requests are in `words`.
"""
