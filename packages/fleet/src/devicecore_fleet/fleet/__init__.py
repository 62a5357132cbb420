"""Many realistic nodes in one process. Each node has both managers, and no node has its own thread.

Read `description` for the content of a fleet's file, `reading` for its parser, `virtual_node` for one node, `commands`
and `schedule` for what can happen to a node, and `fleet` for how the nodes run together.
"""
