"""Many truthful nodes in one process: each has both managers, and none has a thread.

Read `description` for what a fleet's file says, `reading` for how it is read, `virtual_node` for one node, `commands`
and `schedule` for what may happen to it, and `fleet` for how they run together.
"""
