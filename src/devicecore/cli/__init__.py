"""The `devicecore` command: the place that knows every adapter and puts them together.

Law: modules in here import click and nothing heavier at their top, so that `devicecore --help` does not wait for gRPC;
what a command needs, it imports when it runs.
"""
