"""The `devicecore` command, which assembles the adapters.

Law: at module level, command modules import click and nothing heavier, so that `devicecore --help` does not wait for
gRPC. A command imports whatever else it needs when it runs.

A new command is a module with a click command, added to the tree in `commands`. Use `output` for text and JSON,
`signals` to stop the command, `stream` for output that may stall, and `options` for shared options.
"""
