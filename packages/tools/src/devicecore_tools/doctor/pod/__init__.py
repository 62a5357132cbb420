"""Answers whether a pod can run on a node or in a cluster, and explains the messages of kubelets and schedulers."""
