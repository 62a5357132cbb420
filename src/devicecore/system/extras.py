"""What to say if a module needs a library that an extra installs.

Law: the error names the missing module, the extra, and a command for each of the two ways to install devicecore.
"""


def missing_extra(error: ModuleNotFoundError, extra: str) -> ModuleNotFoundError:
    """Return the error to raise in the place of `error`: it says which extra installs the missing module."""
    message = (
        f"{error}: in a clone of the repository, run pip install '.[{extra}]'; "
        f"elsewhere, install the extra `{extra}`: pip install 'devicecore[{extra}]'"
    )
    return ModuleNotFoundError(message, name=error.name)
