"""What it takes to serve on a unix socket, whatever is served: where it may lie, and how often callers may call.

Law: nothing here knows a protocol, or an adapter.
"""
