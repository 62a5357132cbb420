"""The environment variables that this process passes to the processes it starts.

Law: copying the variables succeeds even while another thread changes them.
"""

import os


def inherited_environment() -> dict[str, str]:
    """Return a copy of the environment.

    `{**os.environ}` fails if another thread removes a variable at the same time.
    """
    return {name: value for name in tuple(os.environ) if (value := os.environ.get(name)) is not None}
