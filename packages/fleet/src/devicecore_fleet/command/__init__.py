"""The command `devicecore fleet`, which runs many virtual nodes in one process.

Read `fleet` for the options and the main loop, `control` for commands to a running fleet, and `view` for the
live view. The fleet itself is `devicecore_fleet.fleet`.
"""
