"""A table of ways to write, each a function of a session and the world, with what must come of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from sqlalchemy.orm import Session

from tests.integration.tracking.world import World

Path: TypeAlias = Callable[[Session, World], Any]


class Table(list[Any]):
    """The parameters of a test: paths and their outcomes, named by the functions."""

    def leads_to(self, outcome: Any) -> Callable[[Path], Path]:
        """Enter the decorated function."""

        def enter(path: Path) -> Path:
            self.append(pytest.param(path, outcome, id=path.__name__))
            return path

        return enter
