"""The combined view of all sources: who holds what, what is served, and which source is trusted."""
