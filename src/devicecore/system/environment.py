"""The environment of this process, for the processes that it starts.

Law: another thread may change the environment meanwhile.
"""

import os


def inherited_environment() -> dict[str, str]:
    """Return a copy of the environment. `{**os.environ}` fails if another thread takes a variable away meanwhile."""
    return {name: value for name in tuple(os.environ) if (value := os.environ.get(name)) is not None}
