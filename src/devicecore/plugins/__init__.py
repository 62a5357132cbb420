"""Device plugins in Python. A plugin runs in memory, or serves a real kubelet through an adapter."""
