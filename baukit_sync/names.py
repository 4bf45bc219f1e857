"""Names in DDL: checked, quoted, qualified."""

from __future__ import annotations

from sqlalchemy.dialects import postgresql

from baukit_sync.errors import InvalidArgumentError

# A driver's own paramstyle would double every percent sign in a name. SQLAlchemy leaves the call untyped.
_preparer = postgresql.dialect(paramstyle="named").identifier_preparer  # type: ignore[no-untyped-call]


def quoted(argument: str, name: object, *, longest: int = 63) -> str:
    """Quote a name, also where SQLAlchemy would not: its list of reserved words lacks some.

    Args:
        argument: What the name was given as, for the error.
        name: The name.
        longest: How many bytes it may have.

    Raises:
        InvalidArgumentError: It is empty or too long, or no name at all.
    """
    if not isinstance(name, str) or "\0" in name or not 1 <= len(name.encode()) <= longest:
        raise InvalidArgumentError(argument, f"a name of 1 to {longest} bytes, none of them zero")
    return _preparer.quote_identifier(name)


def in_schema(schema: str | None) -> str:
    """Return what stands before a table's name: its schema and a dot, or nothing.

    Raises:
        InvalidArgumentError: It cannot be a name.
    """
    return "" if schema is None else f"{quoted('schema', schema)}."


def dollar_quoted(body: str) -> str:
    """Quote the body of a function, whatever names it holds."""
    tag = "$sync$"
    while tag in body:
        tag = f"{tag[:-1]}_$"
    return f"{tag}{body}{tag}"


def column_of(argument: str, path: object) -> tuple[str, str]:
    """Split a column's path, as SQLAlchemy's ``ForeignKey`` does: the qualified table, and the column.

    Args:
        argument: What the path was given as, for the error.
        path: ``"users.id"`` or ``"schema.users.id"``.

    Raises:
        InvalidArgumentError: It is something else.
    """
    parts = path.split(".") if isinstance(path, str) else []
    if len(parts) < 2 or "" in parts:
        raise InvalidArgumentError(argument, 'a table and its column, such as "users.id"')
    *schema, table, column = parts
    at = f"{quoted(argument, '.'.join(schema))}." if schema else ""
    return f"{at}{quoted(argument, table)}", quoted(argument, column)
