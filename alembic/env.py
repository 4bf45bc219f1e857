"""Run the reference chain on ``-x url=...``, or else on ``BAUKIT_SYNC_DATABASE_URL``.

With ``--sql`` no database is needed, and the script goes to standard output.
"""

from __future__ import annotations

import os

import sqlalchemy as sa
from alembic import context
from alembic.util import CommandError
from reference import Base


def run_offline() -> None:
    context.configure(
        dialect_name="postgresql", dialect_opts={"paramstyle": "named"}, target_metadata=Base.metadata
    )
    with context.begin_transaction():
        context.run_migrations()


def run_online() -> None:
    url = context.get_x_argument(as_dictionary=True).get("url") or os.environ.get("BAUKIT_SYNC_DATABASE_URL")
    if not url:
        raise CommandError("which database? Give -x url=... or set BAUKIT_SYNC_DATABASE_URL")
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        context.configure(
            connection=connection, target_metadata=Base.metadata, transaction_per_migration=True
        )
        with context.begin_transaction():
            context.run_migrations()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
