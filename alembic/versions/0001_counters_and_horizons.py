"""The owners, their counters and their purge horizons."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from baukit_sync import migrations as sync

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table("users", sa.Column("id", sa.Uuid, primary_key=True))
    sync.create_revisions(op, owner="users.id")
    sync.create_purge_horizons(op)


def downgrade() -> None:
    sync.drop_purge_horizons(op)
    sync.drop_revisions(op)
    op.drop_table("users")
