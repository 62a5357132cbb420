"""A node of a cluster: its pods come from an API server, and what became of them goes back there.

Read `pods` for what happens to a pod, `writer` for how requests are made, and `registration` for the Node and its
Lease. The words of the bodies are in `words`.
"""
