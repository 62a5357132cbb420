"""Device plugins in Python. Each of them runs in memory, or against a real kubelet if an adapter serves it."""
