"""The error for a missing library that an extra installs.

Law: the error names the missing module, the extra, and a command for each of the two ways to install devicecore.
"""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """A context manager for imports that need an extra.

    If an import fails, the context manager raises a ModuleNotFoundError that names the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        message = (
            f"{error}: in a clone of the repository, run pip install '.[{extra}]'; "
            f"elsewhere, install the extra `{extra}`: pip install 'devicecore[{extra}]'"
        )
        raise ModuleNotFoundError(message, name=error.name) from None
