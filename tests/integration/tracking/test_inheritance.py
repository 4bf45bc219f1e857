"""Classes whose rows are not one table's: each write is stamped where the sync columns are."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from baukit_sync import (
    HardDeleteError,
    OwnerChangedError,
    RevisionAssignedError,
    TrackingError,
    UnstampedWriteError,
)
from tests.integration.tracking.models import Document, Excerpt, Fax, Letter, Memo, Page, Renamed, Sheet
from tests.integration.tracking.paths import Path, Table
from tests.integration.tracking.store import Store, written
from tests.integration.tracking.world import World

WRITES = Table()
REFUSED = Table()


@pytest.mark.parametrize(("path", "tables"), WRITES)
def test_each_row_of_a_hierarchy_gets_a_fresh_revision(
    store: Store, world: World, path: Path, tables: list[str]
) -> None:
    """Exactly these rows are written, by the table that has the sync columns."""
    before = store.snapshot()
    with store.begin() as session:
        path(session, world)

    assert tables == written(before, store.snapshot())


@WRITES.leads_to(["documents", "documents", "documents", "faxes"])
def new_rows(session: Session, world: World) -> None:
    """Add one of each class."""
    session.add_all(model(owner_id=world.me) for model in (Document, Letter, Memo, Fax))


@WRITES.leads_to(["documents", "pages"])
def a_child_of_a_subclass(session: Session, world: World) -> None:
    """Add a row of a joined subclass with a child that the base class declares."""
    session.add(Letter(owner_id=world.me, pages=[Page(owner_id=world.me)]))


@WRITES.leads_to(["documents"])
def a_column_of_a_joined_subclass(session: Session, world: World) -> None:
    """Change a column of the table that has no sync columns."""
    world.get(session, "letter").to = "you"


@WRITES.leads_to(["documents"])
def a_column_of_the_base(session: Session, world: World) -> None:
    """Change a column of the table that has them."""
    world.get(session, "letter").title = "dear you"


@WRITES.leads_to(["documents"])
def a_column_through_the_base(session: Session, world: World) -> None:
    """Change a subclass's row that was loaded as the base class."""
    letter = session.scalars(sa.select(Document).where(Document.title == "dear")).one()
    letter.title = "dear you"


@WRITES.leads_to(["documents"])
def a_column_of_a_single_table_subclass(session: Session, world: World) -> None:
    """Change a column that only the subclass has."""
    world.get(session, "memo").priority = 1


@WRITES.leads_to(["faxes"])
def a_column_of_a_concrete_subclass(session: Session, world: World) -> None:
    """Change a column of the subclass's own table."""
    world.get(session, "fax").title = "new"


@WRITES.leads_to(["documents", "documents", "faxes", "sheets"])
def rows_of_all_classes(session: Session, world: World) -> None:
    """Change rows whose keys are of different types, in one flush."""
    for name in ("letter", "memo", "fax"):
        world.get(session, name).title = "new"
    world.get(session, "sheet").text = "new"


@pytest.mark.parametrize(("path", "refusal"), REFUSED)
def test_what_cannot_be_stamped_is_refused(
    store: Store, world: World, path: Path, refusal: type[TrackingError]
) -> None:
    """A typed error, and nothing is written."""
    before = store.snapshot()
    with pytest.raises(refusal), store.begin() as session:
        path(session, world)

    assert before == store.snapshot()


@REFUSED.leads_to(UnstampedWriteError)
def a_class_that_maps_only_some_columns(session: Session, world: World) -> None:
    """Change a synced row through a class that does not know the sync columns."""
    session.get_one(Excerpt, world.key("note")).title = "bread"


@REFUSED.leads_to(HardDeleteError)
def a_delete_through_a_class_that_maps_only_some_columns(session: Session, world: World) -> None:
    """Delete a synced row through a class that cannot make a tombstone."""
    session.delete(session.get_one(Excerpt, world.key("note")))


@REFUSED.leads_to(UnstampedWriteError)
def a_class_that_renames_the_sync_columns(session: Session, world: World) -> None:
    """Change a row whose revision has another name in Python."""
    session.scalars(sa.select(Renamed)).one().text = "new"


@REFUSED.leads_to(HardDeleteError)
def a_delete_in_a_class_that_renames_the_sync_columns(session: Session, world: World) -> None:
    """Delete such a row."""
    session.delete(session.scalars(sa.select(Renamed)).one())


@REFUSED.leads_to(HardDeleteError)
def another_key(session: Session, world: World) -> None:
    """Change the key in both tables of a joined subclass."""
    world.get(session, "letter").id = world.key("memo")


@REFUSED.leads_to(OwnerChangedError)
def another_owner_in_the_key(session: Session, world: World) -> None:
    """Change the owner that is part of a key."""
    world.get(session, "sheet").owner_id = world.you


@REFUSED.leads_to(OwnerChangedError)
def another_owner_with_another_parent(session: Session, world: World) -> None:
    """Give a child the parent of another owner."""
    session.add(Sheet(owner_id=world.you, number=1, cells=[world.get(session, "cell")]))


@REFUSED.leads_to(RevisionAssignedError)
def a_revision_in_the_base_table(session: Session, world: World) -> None:
    """Assign a revision to a row of two tables."""
    world.get(session, "letter").revision = 1_000
