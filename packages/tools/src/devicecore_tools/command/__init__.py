"""The `devicecore` command, which assembles the adapters.

Law: the modules of commands import click and nothing heavier at their top, so that `devicecore --help` does not wait
for gRPC. A command imports what it needs when it runs.

A new command is a module with a click command, added to the tree in `commands`. Use `output` for text and JSON,
`signals` to stop it, `stream` for output that may stall, `options` for shared options.
"""
