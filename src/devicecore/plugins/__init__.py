"""Device plugins in Python. Each runs in memory or, served by an adapter, against a real kubelet."""
