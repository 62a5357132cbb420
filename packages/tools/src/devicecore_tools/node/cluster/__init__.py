"""A node of a real cluster: its pods come from an API server, and what becomes of them is reported there."""
