"""A synced table, and a child that is synced for its parent's owner."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from baukit_sync import migrations as sync

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table("lists", *sync.columns(), sa.Column("name", sa.Text, nullable=False))
    sync.create_indexes(op, "lists")
    op.create_index(
        "lists_name_key",
        "lists",
        ["owner_id", "name"],
        unique=True,
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_table(
        "list_items",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("list_id", sa.Uuid, sa.ForeignKey("lists.id"), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
        sa.Column("revision", sa.BigInteger, nullable=False),
    )
    sync.create_indexes(op, "list_items", owner="list_id")


def downgrade() -> None:
    op.drop_table("list_items")
    op.drop_table("lists")
