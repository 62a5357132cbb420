"""What it takes to serve on a unix socket, whatever is served: where it may lie, and how often callers may call.

Law: nothing here knows what is said on a socket, or an adapter.
"""
