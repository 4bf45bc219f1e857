"""One product's rows, of every kind, before a test writes to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from tests.integration.tracking.models import (
    Archived,
    Card,
    Cell,
    Chair,
    Count,
    Cover,
    Draft,
    Fax,
    Folder,
    Icon,
    Item,
    Label,
    Lamp,
    Letter,
    Line,
    Link,
    LinkKind,
    Loose,
    Member,
    Membership,
    Memo,
    Note,
    Page,
    Photo,
    Place,
    Plain,
    Project,
    Remark,
    Renamed,
    Room,
    Scrap,
    Sheet,
    Step,
    Sticker,
    Tag,
    Team,
    TodoList,
    User,
    Visit,
)


@dataclass
class World:
    """Two owners and the keys of the first one's rows, by what they are."""

    me: UUID
    you: UUID
    keys: dict[str, Any]
    held: list[Any] = field(default_factory=list)

    def key(self, name: str) -> Any:
        """Return a row's primary key, if that is one column."""
        (key,) = self.keys[name][1]
        return key

    def get(self, session: Session, name: str) -> Any:
        """Load a row by its name."""
        model, key = self.keys[name]
        # A session refers to its objects only weakly.
        self.held.append(session.get_one(model, key))
        return self.held[-1]


def populate(session: Session, me: UUID, you: UUID) -> World:
    """Add rows of every kind for one owner, and flush them."""
    mine: dict[str, Any] = {"owner_id": me}
    note = Note(**mine, title="milk", body={"a": 1}, raw=[1])
    note.tags = [Tag(name="red"), Tag(name="blue")]
    note.cover, note.icon = Cover(**mine), Icon(**mine)
    todo = TodoList(**mine, title="shopping")
    items = [Item(**mine, parent=todo, text=text) for text in ("first", "second")]
    steps = [Step(**mine, item=item) for item in items for _ in range(2)]
    remarks = [Remark(**mine), Remark(**mine)]
    stickers = [Sticker(**mine), Sticker(**mine)]
    archived = [Archived(**mine), Archived(**mine)]
    todo.remarks, todo.stickers, todo.archived = remarks, set(stickers), archived
    labels = [Label(**mine, name="a", parent=todo), Label(**mine, name="b", parent=todo)]
    visits, lines = [Visit(**mine), Visit(**mine)], [Line(**mine), Line(**mine)]
    todo.visits.add_all(visits)
    todo.lines.add_all(lines)
    loose = Loose(**mine, parent=todo)
    links = [Link(**mine, parent=todo, kind=kind) for kind in LinkKind]
    scrap = Scrap(parent=todo)
    root = Folder(**mine, name="root")
    child = Folder(**mine, name="child", parent=root)
    leaf = Folder(**mine, name="leaf", parent=child)
    project, room = Project(), Room()
    project.notes = [Note(**mine, title="in a project")]
    room.chairs = [Chair(**mine)]
    place = Place(**mine)
    note.places = {place}
    tombstone = Note(**mine, title="gone", deleted_at=datetime(2026, 1, 1, tzinfo=UTC))
    letter, memo = Letter(**mine, title="dear"), Memo(**mine, title="note to self")
    fax, sheet = Fax(**mine), Sheet(**mine, number=1, cells=[Cell(), Cell()])
    team, member = Team(**mine, photos=[Photo(**mine)]), Member(**mine)
    letter.pages = [Page(**mine)]
    card, plain, draft = Card(**mine), Plain(**mine), Draft(**mine)
    named = {
        "user": session.get_one(User, me),
        "note": note,
        "cover": note.cover,
        "icon": note.icon,
        "list": todo,
        "other list": TodoList(**mine),
        "item": items[0],
        "item 2": items[1],
        "step": steps[0],
        "remark": remarks[0],
        "sticker": stickers[0],
        "archived": archived[0],
        "label": labels[0],
        "visit": visits[0],
        "line": lines[0],
        "loose": loose,
        "link": links[0],
        "scrap": scrap,
        "root": root,
        "child": child,
        "leaf": leaf,
        "project": project,
        "project note": project.notes[0],
        "room": room,
        "chair": room.chairs[0],
        "place": place,
        "tombstone": tombstone,
        "letter": letter,
        "page": letter.pages[0],
        "memo": memo,
        "fax": fax,
        "sheet": sheet,
        "cell": sheet.cells[0],
        "team": team,
        "member": member,
        "card": card,
        "plain": plain,
        "draft": draft,
    }
    session.add_all(named.values())
    session.add_all([*steps, *links])
    session.flush()
    named["lamp"] = Lamp(**mine, room_id=room.id)
    named["membership"] = Membership(**mine, team_id=team.id, member_id=member.id)
    named["count"] = Count(list_id=named["other list"].id, revision=1)
    named["renamed"] = Renamed(user_id=me, version=1)
    session.add_all(named.values())
    session.flush()
    return World(me, you, {name: (type(row), row_key(row)) for name, row in named.items()})


def row_key(row: Any) -> Any:
    """Return a loaded row's primary key."""
    return row.__mapper__.primary_key_from_instance(row)
