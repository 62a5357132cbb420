"""`devicecore demo`: two nodes, plugins and pods on this machine, with real sockets and real processes.

Read `scenario` for the steps, `steps` for how a step is run and reported, and `cluster` for the nodes and plugins.
"""
