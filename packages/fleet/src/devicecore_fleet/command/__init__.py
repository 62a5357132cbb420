"""The command `devicecore fleet`, which runs many nodes in one process. They are not machines.

Read `fleet` for the options and the main loop, `control` for commands to a fleet that runs, and `view` for what
people see. The fleet itself is `devicecore_fleet.fleet`.
"""
