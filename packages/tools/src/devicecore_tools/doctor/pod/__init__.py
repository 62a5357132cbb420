"""A pod's question to a node or a cluster, the answer, and what kubelets and schedulers say about it."""
