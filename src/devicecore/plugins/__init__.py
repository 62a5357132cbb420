"""Device plugins in Python. Each plugin runs in memory, or against a real kubelet if an adapter serves the plugin."""
