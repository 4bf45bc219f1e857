"""The demo: its story holds, its checks can fail, and it leaves a database as it found it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.orm import Session

from baukit_sync import PullWindow, current_revision, guard_pull_cursor, next_revisions, pull_page
from baukit_sync.demo import Audience, Report, UnusableDatabaseError, models, play, product, purging
from baukit_sync.demo.api import Api
from baukit_sync.demo.device import Device, ProtocolError
from baukit_sync.demo.messages import Change, Pull, Push, Pushed, TableName
from baukit_sync.demo.place import Place, own_schema
from baukit_sync.demo.story import NIGHTLY
from baukit_sync.hlc import encode
from tests.support.ways import Admin

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
LARGE_PAGE = 200
NOW_MS = int(NOW.timestamp() * 1000)


def play_small(url: sa.URL) -> Report:
    """Play the whole story with a short ninth chapter."""
    return play(url, owners=2, rows=120, audience=Audience())


def schemas(admin: Admin) -> list[str]:
    """Return the names of the demo's schemas that are there."""
    rows = admin.sql("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'baukit_sync_demo%'")
    return [name for (name,) in rows]


def test_the_story_holds(database_url: sa.URL) -> None:
    """An unbroken product comes to the last chapter with every invariant intact."""
    report = play_small(database_url)

    assert [] == report.violated
    assert report.verified
    assert list(range(1, 11)) == [chapter.number for chapter in report.chapters]


class Broken:
    """Products with one mistake each, by the name of the mistake."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Patch with ``monkeypatch``, which puts everything back."""
        self._patch = monkeypatch.setattr

    def a_pull_ignores_the_end_of_its_window(self) -> None:
        """Read rows beyond ``through``."""

        def endless(session: Session, window: PullWindow, sources: Any, *, limit: int) -> Any:
            return pull_page(session, replace(window, through=window.through + 1), sources, limit=limit)

        self._patch(product, "pull_page", endless)

    def a_pull_skips_tombstones(self) -> None:
        """Return live rows only."""
        read_page = product.read_page

        def live(session: Session, window: PullWindow, limit: int) -> Any:
            page = read_page(session, window, limit)
            return page.model_copy(update={"changes": [c for c in page.changes if not c.deleted]})

        self._patch(product, "read_page", live)

    def a_pull_skips_a_row(self) -> None:
        """Leave the last row of some pages out."""
        read_page = product.read_page

        def short(session: Session, window: PullWindow, limit: int) -> Any:
            page = read_page(session, window, limit)
            return page.model_copy(update={"changes": page.changes[:-1]}) if limit == LARGE_PAGE else page

        self._patch(product, "read_page", short)

    def a_pull_has_no_guard(self) -> None:
        """Serve every cursor."""
        self._patch(product, "guard_pull_cursor", unguarded)

    def a_guard_takes_no_lock(self) -> None:
        """Let the purge come between the check and the rows."""
        self._patch(purging, "guard_pull_cursor", unguarded)

    def a_pull_forgets_that_a_device_rebuilds(self) -> None:
        """Hold a rebuild's half-way cursors against the horizon."""

        def forgetful(session: Session, owner_id: UUID, cursor: int, *, through: Any, rebuild: Any) -> Any:
            return guard_pull_cursor(session, owner_id, cursor, through=through)

        self._patch(product, "guard_pull_cursor", forgetful)

    def a_push_has_no_guard(self) -> None:
        """Accept edits from below the horizon."""
        self._patch(product, "guard_push_cursor", lambda *_: None)

    def a_push_gives_two_rows_one_revision(self) -> None:
        """Stamp every row of a push with the first revision of its block."""
        self._patch(product, "next_revisions", lambda *args: [next_revisions(*args)[0]] * args[2])

    def a_push_wastes_a_revision(self) -> None:
        """Allocate one more than there are rows."""
        self._patch(
            product,
            "next_revisions",
            lambda session, owner, count: next_revisions(session, owner, count + (count > 2))[-count:],
        )

    def a_push_is_applied_whenever_it_is_sent(self) -> None:
        """Forget the stamps."""
        self._patch(product, "_wins", lambda *_: True)

    def a_push_lets_the_last_to_arrive_win(self) -> None:
        """Take stamps for names only."""
        wins: Any = product._wins

        def careless(change: Change, row: Any, parents: Any) -> bool:
            known = row is not None and not row.deleted_at
            return (known and change.stamp != row.stamp) or wins(change, row, parents)

        self._patch(product, "_wins", careless)

    def a_push_stores_another_stamp(self) -> None:
        """Let the server's stamp fall behind what was pushed."""
        write: Any = product._write

        def imprecise(row: Any, change: Change, now: datetime) -> Any:
            written = write(row, change, now)
            written.stamp -= change.title.startswith("edited by")
            return written

        self._patch(product, "_write", imprecise)

    def a_push_loses_a_change(self) -> None:
        """Apply all but the last."""
        push = product.push

        def lossy(session: Session, owner_id: UUID, request: Push, *, now: datetime) -> Pushed:
            return push(session, owner_id, Push(base_cursor=0, changes=request.changes[:-1]), now=now)

        self._patch(product, "push", lossy)

    def a_delete_leaves_the_children(self) -> None:
        """Delete a list and nothing below it."""
        mentioned: Any = product._mentioned
        self._patch(product, "_mentioned", lambda *args, below: mentioned(*args, below=()))

    def a_purge_lowers_a_horizon(self) -> None:
        """Set horizons below what was purged."""
        self._after_purge("UPDATE sync_purge_horizons SET horizon_revision = horizon_revision - 1")

    def a_purge_raises_a_horizon_too_far(self) -> None:
        """Set horizons above what was purged."""
        self._after_purge("UPDATE sync_purge_horizons SET horizon_revision = horizon_revision + 1")

    def a_purge_sets_no_horizon(self) -> None:
        """Delete tombstones and say nothing."""
        self._after_purge("DELETE FROM sync_purge_horizons")

    def a_purge_takes_a_live_row(self) -> None:
        """Delete what nobody has deleted."""
        self._after_purge("DELETE FROM attachments WHERE deleted_at IS NULL")

    def a_purge_leaves_expired_tombstones(self) -> None:
        """Never reach the lists."""
        self._patch(product, "TOMBSTONES", models.TOMBSTONES[:2])

    def a_rebuild_keeps_phantoms(self) -> None:
        """Add the server's rows to what the device knew."""

        def upsert(device: Device, before: dict[Any, Any]) -> None:
            device.confirmed = {**before, **device.confirmed}

        self._after_rebuild(upsert)

    def a_rebuild_forgets_pending_edits(self) -> None:
        """Clear the outbox."""
        self._after_rebuild(lambda device, _before: device.outbox.clear())

    def a_device_forgets_that_it_rebuilds(self) -> None:
        """Send no ``rebuild`` with the second page."""
        ask: Any = Device._ask
        self._patch(
            Device, "_ask", lambda device, at, through: ask(device, at._replace(rebuild=None), through)
        )

    def a_device_keeps_what_was_deleted(self) -> None:
        """Let the phone take no notice of a tombstone."""
        apply: Any = Device.apply

        def hoarding(device: Device, page: Any, previous: Any = None) -> None:
            before = dict(device.confirmed)
            apply(device, page, previous)
            for change in page.changes:
                if device.name == "phone" and change.title == "carton.jpg" and change.deleted:
                    device.confirmed[change.id] = before[change.id]

        self._patch(Device, "apply", hoarding)

    def a_device_keeps_edits_to_itself(self) -> None:
        """Make an edit after the last push."""
        apply: Any = Device.apply

        def late(device: Device, page: Any, previous: Any = None) -> None:
            apply(device, page, previous)
            if device.name.startswith("fresh"):
                device.add("lists", "late")

        self._patch(Device, "apply", late)

    def _after_purge(self, statement: str) -> None:
        purge = product.purge

        def broken(engine: sa.Engine, slot: Any) -> Any:
            report = purge(engine, slot)
            with engine.begin() as connection:
                connection.execute(sa.text(statement))
            return report

        self._patch(product, "purge", broken)

    def _after_rebuild(self, spoil: Callable[[Device, dict[Any, Any]], None]) -> None:
        rebuild = Device.rebuild

        def broken(device: Device) -> list[UUID]:
            before = device.confirmed
            given_up = rebuild(device)
            spoil(device, before)
            return given_up

        self._patch(Device, "rebuild", broken)


def unguarded(session: Session, owner_id: UUID, cursor: int, **_bounds: Any) -> PullWindow:
    """Return a pull's window without a check and without a lock."""
    return PullWindow(owner_id, cursor, current_revision(session, owner_id) or 0)


MISTAKES = {
    "a_pull_ignores_the_end_of_its_window": "a page must stay within the window",
    "a_pull_skips_tombstones": "devices that have synced have the same rows",
    "a_pull_skips_a_row": "every device has all of the server's rows",
    "a_pull_has_no_guard": "a pull from below the horizon is refused",
    "a_guard_takes_no_lock": "a purge removes expired tombstones and nothing else",
    "a_pull_forgets_that_a_device_rebuilds": "a rebuild is served to its end",
    "a_push_has_no_guard": "a push from below the horizon is refused",
    "a_push_gives_two_rows_one_revision": "one revision at a time",
    "a_push_wastes_a_revision": "a counter hands out every revision",
    "a_push_is_applied_whenever_it_is_sent": "a push that is sent twice is applied once",
    "a_push_lets_the_last_to_arrive_win": "of two edits the one with the greater stamp wins",
    "a_push_stores_another_stamp": "the edit with the greatest stamp wins: it did not in",
    "a_push_loses_a_change": "a push answers for every change",
    "a_delete_leaves_the_children": "a purge leaves no expired tombstone",
    "a_purge_lowers_a_horizon": "a horizon is the greatest revision purged for its owner",
    "a_purge_raises_a_horizon_too_far": "a rebuild is served to its end",
    "a_purge_sets_no_horizon": "a pull from below the horizon is refused",
    "a_purge_takes_a_live_row": "a purge removes expired tombstones and nothing else",
    "a_purge_leaves_expired_tombstones": "a purge leaves no expired tombstone",
    "a_rebuild_keeps_phantoms": "devices that have synced have the same rows",
    "a_rebuild_forgets_pending_edits": "a pending edit survives a rebuild",
    "a_device_forgets_that_it_rebuilds": "a rebuild is served to its end",
    "a_device_keeps_what_was_deleted": "no device has a row that the server has not: phone has 1",
    "a_device_keeps_edits_to_itself": "every edit was pushed",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_broken_product_is_found_out(
    mistake: str, database_url: sa.URL, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict names the invariant that a mistake violates, and the schema is dropped all the same."""
    getattr(Broken(monkeypatch), mistake)()

    report = play_small(database_url)

    assert not report.verified
    assert MISTAKES[mistake] in " ".join(report.violated)
    assert [] == schemas(admin)


def test_a_given_database_is_left_as_it_was(database_url: sa.URL, admin: Admin) -> None:
    """The story has a schema of its own, even beside tables of the same names, and drops it."""
    admin.sql("CREATE TABLE public.items (id int); INSERT INTO public.items VALUES (1)")
    tables = admin.sql("SELECT table_schema, table_name FROM information_schema.tables ORDER BY 1, 2")

    report = play_small(database_url)

    assert report.verified
    assert tables == admin.sql("SELECT table_schema, table_name FROM information_schema.tables ORDER BY 1, 2")
    assert [(1,)] == admin.sql("SELECT id FROM public.items")
    assert 0 == admin.scalar("SELECT count(*) FROM public.sync_revisions")


def test_the_schema_is_dropped_after_an_error(database_url: sa.URL, admin: Admin) -> None:
    """Whatever ends the story, nothing of it stays in the database."""

    def interrupted() -> None:
        with own_schema(database_url, connections=1) as stage:
            assert [stage.schema] == schemas(admin)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert [] == schemas(admin)


def test_options_of_the_url_are_kept(database_url: sa.URL) -> None:
    """The schema's search_path joins the options that the URL has."""
    url = database_url.update_query_dict({"options": "-c statement_timeout=12345"})

    with own_schema(url, connections=1) as stage, stage.engine.connect() as connection:
        timeout = connection.scalar(sa.text("SHOW statement_timeout"))
        path = connection.scalar(sa.text("SHOW search_path"))

    assert "12345ms" == timeout
    assert stage.schema == path


def test_a_role_without_the_right_to_create_a_schema_is_told_so(database_url: sa.URL, admin: Admin) -> None:
    """A database that refuses the schema is unusable, and the reason is the server's."""
    role = f"guest_{uuid4().hex[:8]}"
    admin.sql(f"CREATE ROLE {role} LOGIN")
    try:
        with pytest.raises(UnusableDatabaseError, match="permission denied for database"):
            play_small(database_url.set(username=role))
    finally:
        admin.sql(f"DROP ROLE {role}")


def test_the_reason_does_not_repeat_the_password(database_url: sa.URL) -> None:
    """What the driver says is passed on without the URL's password."""
    url = database_url.set(username="nobody", password="nobody")

    with pytest.raises(UnusableDatabaseError) as caught:
        play_small(url)

    assert "nobody" not in str(caught.value)


@pytest.fixture
def stage(database_url: sa.URL) -> Iterator[Place]:
    """The product's tables."""
    with own_schema(database_url, connections=4) as stage:
        yield stage


@pytest.fixture
def api(stage: Place) -> Api:
    """The product's endpoints, at one instant."""
    return Api(stage.engine, lambda: NOW)


def sign_up(stage: Place) -> UUID:
    """Create a user."""
    with Session(stage.engine) as session, session.begin():
        return product.sign_up(session)


def new_device(stage: Place, api: Api, owner_id: UUID | None = None, *, page: int = 500) -> Device:
    """Give a user, or a new one, a device with a correct clock."""
    return Device("device", owner_id or sign_up(stage), api, lambda: NOW_MS, page=page)


def change_of(device: Device, row_id: UUID, **update: Any) -> Push:
    """Return a push of one row as the device has it, with some fields changed."""
    row = device.confirmed[row_id].model_dump(exclude={"revision"})
    return Push(base_cursor=device.cursor, changes=[Change.model_validate({**row, **update})])


def send(api: Api, owner_id: UUID, request: Push) -> Pushed:
    """Push."""
    answer = api.push(owner_id, request.model_dump_json())

    assert 200 == answer.status, answer
    return Pushed.model_validate_json(answer.body)


def test_the_models_are_what_the_migration_creates(stage: Place) -> None:
    """Autogenerate finds nothing to do after the demo's migration."""
    with stage.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})

        assert [] == compare_metadata(context, models.Base.metadata)


def test_at_the_same_stamp_a_delete_wins_over_an_edit(stage: Place, api: Api) -> None:
    """An edit needs a greater stamp to survive a delete; a delete does not."""
    device = new_device(stage, api)
    row = device.add("lists", "list")
    device.sync()
    stamp = device.confirmed[row].stamp

    edited = send(api, device.owner_id, change_of(device, row, title="edited"))
    deleted = send(api, device.owner_id, change_of(device, row, deleted=True))
    revived = send(api, device.owner_id, change_of(device, row, title="revived"))
    later = send(api, device.owner_id, change_of(device, row, title="revived", stamp=stamp + 1))

    assert [0, 1, 0, 1] == [len(pushed.applied) for pushed in (edited, deleted, revived, later)]


def test_a_deleted_list_takes_its_rows_along_each_with_a_revision(stage: Place, api: Api) -> None:
    """One delete writes a tombstone for everything below it, whatever the stamps below it are."""
    device = new_device(stage, api)
    rows = [device.add("lists", "list")]
    rows.append(device.add("items", "item", rows[0]))
    rows.append(device.add("attachments", "attachment", rows[1]))
    device.sync()
    device.edit(rows[2], "edited later than the delete")
    delete = change_of(device, rows[0], deleted=True, stamp=device.confirmed[rows[0]].stamp + 1)
    device.sync()

    pushed = send(api, device.owner_id, delete)

    assert set(rows) == set(pushed.applied)
    assert [5, 6, 7] == sorted(pushed.applied.values())


def test_what_is_written_below_a_deleted_row_is_deleted(stage: Place, api: Api) -> None:
    """An item that was written offline for a list that is gone becomes a tombstone, on its device too."""
    owner_id = sign_up(stage)
    writer, other = new_device(stage, api, owner_id), new_device(stage, api, owner_id)
    row = writer.add("lists", "list")
    writer.sync()
    other.sync()
    writer.delete(row)
    writer.sync()
    item = other.add("items", "item", row)

    pushed = other.push()
    other.pull()

    assert Pushed(applied={item: 3}, ignored=[]) == pushed
    assert {} == other.rows


@pytest.mark.parametrize("deleted", [False, True])
def test_a_change_below_a_deleted_row_counts_when_the_row_is_revived(
    deleted: bool, stage: Place, api: Api
) -> None:
    """An older edit of the item does not undo it, whatever became of the list in between."""
    device = new_device(stage, api)
    row = device.add("lists", "list")
    item = device.add("items", "item", row)
    device.sync()
    stamp = device.confirmed[item].stamp
    newest = change_of(device, item, title="newest", deleted=deleted, stamp=stamp + 9)
    older = change_of(device, item, title="older", stamp=stamp + 8)

    for request in (
        change_of(device, row, deleted=True, stamp=stamp + 1),
        newest,
        change_of(device, row, title="revived", stamp=stamp + 2),
    ):
        assert send(api, device.owner_id, request).applied
    late = send(api, device.owner_id, older)
    device.pull()

    assert Pushed(applied={}, ignored=[item]) == late
    assert ["revived"] == [change.title for change in device.rows.values()]


def test_a_row_deleted_in_one_push_with_its_parent_keeps_its_own_stamp(stage: Place, api: Api) -> None:
    """The parent's delete does not lower the stamp of the child's."""
    device = new_device(stage, api)
    row = device.add("lists", "list")
    item = device.add("items", "item", row)
    device.sync()
    stamp = device.confirmed[item].stamp
    both = [
        change_of(device, changed, deleted=True, stamp=at).changes[0]
        for changed, at in ((row, stamp + 1), (item, stamp + 9))
    ]

    send(api, device.owner_id, Push(base_cursor=device.cursor, changes=both))
    send(api, device.owner_id, change_of(device, row, title="revived", stamp=stamp + 2))
    late = send(api, device.owner_id, change_of(device, item, title="older", stamp=stamp + 8))

    assert Pushed(applied={}, ignored=[item]) == late


def test_a_row_of_another_owner_cannot_be_written(stage: Place, api: Api) -> None:
    """A push under a foreign id is refused as a whole."""
    victim, thief = new_device(stage, api), new_device(stage, api)
    row = victim.add("lists", "list")
    victim.sync()
    theft = change_of(victim, row, title="mine", stamp=encode(NOW_MS, 9)).model_copy(
        update={"base_cursor": 0}
    )

    answer = api.push(thief.owner_id, theft.model_dump_json())
    victim.sync()
    thief.sync()

    assert 422 == answer.status
    assert ["list"] == [row.title for row in victim.confirmed.values()]
    assert {} == thief.confirmed


@pytest.mark.parametrize("table", ["items", "attachments"])
def test_a_row_of_another_owner_cannot_be_a_parent(table: TableName, stage: Place, api: Api) -> None:
    """A child of somebody else's row is ignored, as one of a row that never was."""
    victim, thief = new_device(stage, api), new_device(stage, api)
    parent = victim.add("lists", "list")
    if table == "attachments":
        parent = victim.add("items", "item", parent)
    victim.sync()
    child = thief.add(table, "mine", parent)

    pushed = thief.push()
    victim.sync()

    assert Pushed(applied={}, ignored=[child]) == pushed
    assert "mine" not in [row.title for row in victim.confirmed.values()]


def test_a_stamp_from_the_far_future_is_refused(stage: Place, api: Api) -> None:
    """A clock that is too fast wins no conflict; the edits stay on the device."""
    fast = Device("fast", sign_up(stage), api, lambda: NOW_MS + 11 * 60_000)
    fast.add("lists", "list")

    with pytest.raises(ProtocolError, match="clock_drift"):
        fast.push()

    assert 1 == len(fast.outbox)


def test_a_body_that_no_device_sends_is_refused(stage: Place, api: Api) -> None:
    """A malformed push is an answer, not a crash."""
    answer = api.push(sign_up(stage), '{"baseCursor": -1, "changes": []}')

    assert 422 == answer.status


def test_a_pull_ends_while_others_go_on_writing(stage: Place, api: Api) -> None:
    """All pages of a pull end where the first one said; what was written since comes with the next pull."""
    owner_id = sign_up(stage)
    writer, reader = new_device(stage, api, owner_id), new_device(stage, api, owner_id, page=2)
    for number in range(5):
        writer.add("lists", f"list {number}")
    writer.push()
    busy = Api(stage.engine, lambda: NOW)

    class Busy(Api):
        def pull(self, owner_id: UUID, request: Pull) -> Any:
            writer.add("lists", "written meanwhile")
            writer.push()
            return busy.pull(owner_id, request)

    reader._api = Busy(stage.engine, lambda: NOW)
    pages = reader.pull()

    assert isinstance(pages, list)
    assert [6, 6, 6] == [page.through for page in pages]
    assert 6 == reader.cursor


def test_a_first_pull_in_pages_passes_a_horizon(stage: Place, api: Api) -> None:
    """Cursors below the horizon are served as long as the pull that began with 0 lasts."""
    writer = new_device(stage, api)
    for number in range(6):
        writer.add("lists", f"list {number}")
    doomed = writer.add("lists", "doomed")
    writer.sync()
    writer.delete(doomed)
    writer.sync()
    product.purge(stage.engine, NIGHTLY.slot_at(NOW + timedelta(days=40)))
    fresh = new_device(stage, api, writer.owner_id, page=2)

    pages = fresh.pull()

    assert isinstance(pages, list)
    assert [2, 4, 8] == [page.next_cursor for page in pages]
    assert writer.confirmed == fresh.confirmed


def test_an_edit_made_during_a_push_waits_for_the_next(stage: Place, api: Api) -> None:
    """The answer to a push removes from the outbox what was sent, and not what has come since."""
    device = new_device(stage, api)
    row = device.add("lists", "first")

    class Slow(Api):
        def push(self, owner_id: UUID, body: str) -> Any:
            device.edit(row, "second")
            return api.push(owner_id, body)

    device._api = Slow(stage.engine, lambda: NOW)
    device.push()

    assert "first" == device.confirmed[row].title
    assert ["second"] == [change.title for change in device.outbox.values()]


def test_a_rebuild_that_breaks_off_changes_nothing(stage: Place, api: Api) -> None:
    """Until its last page has come, a rebuild leaves the device as it was."""
    device = new_device(stage, api, page=1)
    other = new_device(stage, api, device.owner_id)
    row = device.add("lists", "as the device knows it")
    device.sync()
    other.sync()
    other.edit(row, "as it is now")
    other.add("lists", "list")
    other.sync()
    before, cursor = dict(device.confirmed), device.cursor

    class Broken(Api):
        def pull(self, owner_id: UUID, request: Pull) -> Any:
            if request.cursor:
                raise ConnectionError
            return api.pull(owner_id, request)

    device._api = Broken(stage.engine, lambda: NOW)
    with pytest.raises(ConnectionError):
        device.rebuild()

    assert (before, cursor) == (device.confirmed, device.cursor)
