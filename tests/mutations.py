"""Mutations: functions that each remove one protection, registered with the test or law that must notice it.

Law: a mutation patches the part that contains the protection, so all users of the part lose it.
"""

from collections.abc import Callable
from typing import Any

import pytest

Patch = pytest.MonkeyPatch


class Mutations(list[tuple[Any, ...]]):
    """Each mutation with the arguments of its decorator, which say what must notice the mutation."""

    def __call__(self, *notices: object) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
        """Return a decorator that registers a mutation."""

        def register(take_away: Callable[[Patch], None]) -> Callable[[Patch], None]:
            self.append((take_away, *notices))
            return take_away

        return register

    @property
    def names(self) -> list[str]:
        """Return the name of each mutation, and the name of the function that must notice it, if there is one."""
        return ["-".join(part.__name__ for part in one if hasattr(part, "__name__")) for one in self]
