"""The pull-cursor rule and the constants that client and server share.

Pure: no database, no framework. ``guard_pull_cursor`` applies the rule inside a pull's transaction.
"""

from __future__ import annotations

import re
from typing import Final

from baukit_sync.errors import (
    InvalidArgumentError,
    InvalidCursorError,
    NegativeCursorError,
    ResyncRequiredError,
)

FULL_RESYNC_CURSOR: Final = 0
"""The cursor of a client that has nothing: always served, in full."""

MAX_REVISION: Final = 9_007_199_254_740_991
"""The greatest revision or cursor that JavaScript keeps exactly."""

RESYNC_REQUIRED_STATUS: Final = 409
"""The HTTP status of the answer to a cursor below the horizon."""

RESYNC_REQUIRED_CODE: Final = "resync_required"
"""The error code of that answer."""

HORIZON_REVISION_DETAIL: Final = "horizonRevision"
"""The only key of its details."""

_DECIMAL = re.compile(r"0|[1-9][0-9]{0,15}")


def check_pull_cursor(cursor: int, horizon_revision: int | None) -> None:
    """Refuse a cursor that a purge has overtaken. Source: contract section 4.

    Args:
        cursor: The last revision the client has applied; 0 when it has nothing.
        horizon_revision: The owner's purge horizon; ``None`` or 0 when nothing was ever purged.

    Raises:
        InvalidCursorError: ``cursor`` is not an integer, or is above :data:`MAX_REVISION`.
        NegativeCursorError: ``cursor`` is below 0.
        ResyncRequiredError: ``0 < cursor < horizon_revision``. A cursor equal to the horizon is served: that
            client has already seen the purged tombstone.
        InvalidArgumentError: ``horizon_revision`` is neither ``None`` nor an integer >= 0.
    """
    check_cursor(cursor)
    horizon = 0 if horizon_revision is None else horizon_revision
    if not isinstance(horizon, int) or isinstance(horizon, bool) or horizon < 0:
        raise InvalidArgumentError("horizon_revision", "None or an integer >= 0")
    if FULL_RESYNC_CURSOR < cursor < horizon:
        raise ResyncRequiredError(horizon)


def check_cursor(cursor: int) -> None:
    """Refuse what cannot be a cursor of any client.

    Args:
        cursor: An integer in 0 to :data:`MAX_REVISION`; a bool, a float or a string is not one.

    Raises:
        InvalidCursorError: ``cursor`` is not an integer, or is above :data:`MAX_REVISION`.
        NegativeCursorError: ``cursor`` is below 0.
    """
    if not isinstance(cursor, int) or isinstance(cursor, bool) or cursor > MAX_REVISION:
        raise InvalidCursorError
    if cursor < 0:
        raise NegativeCursorError


def parse_cursor(text: str) -> int:
    """Read a cursor from a query string.

    Args:
        text: ASCII decimal digits without a sign, space or leading zero. A missing parameter is not a cursor:
            decide yourself whether it means :data:`FULL_RESYNC_CURSOR`.

    Returns:
        The cursor, 0 to :data:`MAX_REVISION`.

    Raises:
        InvalidCursorError: ``text`` is anything else.
    """
    if not isinstance(text, str) or _DECIMAL.fullmatch(text) is None:
        raise InvalidCursorError
    cursor = int(text)
    check_cursor(cursor)
    return cursor
