"""The story that ``baukit-sync demo`` plays: a small notes product on the kit, which checks itself.

To see how a product uses the kit, read :mod:`~baukit_sync.demo.models` (its tables and its migration),
:mod:`~baukit_sync.demo.product` (its server) and :mod:`~baukit_sync.demo.device` (its client). The other
modules tell the story. Needs the extra ``demo``.
"""

from importlib import import_module

from baukit_sync.errors import MissingExtraError

try:
    for needed in ("alembic", "psycopg", "rich"):
        import_module(needed)
except ImportError:
    raise MissingExtraError("demo") from None

from baukit_sync.demo.chapters import play
from baukit_sync.demo.place import UnusableDatabaseError
from baukit_sync.demo.report import Audience, Report

__all__ = ["Audience", "Report", "UnusableDatabaseError", "play"]
