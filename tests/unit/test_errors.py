"""The error tree: one root, stable codes, facts that survive pickling, and nothing secret in a text."""

from __future__ import annotations

import copy
import inspect
import pickle
import re

import pytest

from baukit_sync import errors
from baukit_sync.errors import InvalidArgumentError, MissingExtraError, SyncError

ALL = [
    member
    for member in vars(errors).values()
    if inspect.isclass(member) and issubclass(member, SyncError) and member.__module__ == errors.__name__
]

SAMPLES = {"str": "notes", "int": 7, "int | None": 7}
"""A value for each type of field; the strings are names of tables, arguments and extras, never ids."""


def sample(error: type[SyncError]) -> SyncError:
    """Build an instance from its annotated fields."""
    if error.__init__ is Exception.__init__:
        return error()
    hints = inspect.signature(error.__init__).parameters
    fields = [str(parameter.annotation) for name, parameter in hints.items() if name != "self"]
    return error(*[SAMPLES.get(annotation) for annotation in fields if annotation in SAMPLES])


def drawn_tree() -> dict[str, str | None]:
    """Return the tree in the module's docstring: each class's name and its parent's."""
    parents: dict[str, str | None] = {}
    path: list[tuple[int, str]] = []
    assert errors.__doc__ is not None
    for line in errors.__doc__.partition("::\n")[2].splitlines():
        match = re.match(r"( *)(?:\|__ )?((?:[A-Z]\w*)?Error)\b", line.replace("|    ", "     "))
        if match is None:
            if parents and line.strip():
                break
            continue
        depth = len(match[1])
        while path and path[-1][0] >= depth:
            path.pop()
        parents[match[2]] = path[-1][1] if path else None
        path.append((depth, match[2]))
    return parents


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    """Every class is drawn, under the class that it inherits from first."""
    real = {error.__name__: None if error is SyncError else error.__bases__[0].__name__ for error in ALL}

    assert real == drawn_tree()


def test_siblings_are_drawn_where_the_code_has_them() -> None:
    """The drawing and the file have the same order, so that a reader finds a class by either."""
    assert [error.__name__ for error in ALL if not error.__subclasses__() and error is not SyncError] == [
        name for name in drawn_tree() if name not in drawn_tree().values()
    ]


@pytest.mark.parametrize("error", ALL)
def test_the_drawing_names_the_other_base(error: type[SyncError]) -> None:
    """Whoever catches ``ValueError`` or ``ImportError`` finds it in the tree."""
    others = [base.__name__ for base in error.__bases__[1:]]
    assert errors.__doc__ is not None
    line = next(line for line in errors.__doc__.splitlines() if re.search(rf"\b{error.__name__}\b", line))

    assert others == re.findall(r"\(also (\w+)\)", line)


@pytest.mark.parametrize("error", ALL)
def test_every_class_has_a_code_of_its_own(error: type[SyncError]) -> None:
    """The code is the name in snake case, without the suffix where the class is a leaf."""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", error.__name__).lower()

    assert error.code in {snake, snake.removesuffix("_error")}
    assert 1 == [other.code for other in ALL].count(error.code)


@pytest.mark.parametrize("error", ALL)
def test_every_error_pickles_with_its_fields(error: type[SyncError]) -> None:
    """It crosses a process boundary, and a deep copy, whole."""
    before = sample(error)
    for after in (pickle.loads(pickle.dumps(before)), copy.deepcopy(before)):
        assert type(before) is type(after)
        assert vars(before) == vars(after)
        assert (before.args, str(before)) == (after.args, str(after))


@pytest.mark.parametrize("error", ALL)
def test_every_field_is_positional_and_kept_under_its_name(error: type[SyncError]) -> None:
    """``args`` are the fields in order, so ``match`` and ``*error.args`` work."""
    instance = sample(error)

    assert instance.args == tuple(vars(instance).values())


@pytest.mark.parametrize("error", ALL)
def test_every_error_says_something(error: type[SyncError]) -> None:
    """A text that starts small, so that it reads on after a colon; a group of errors has none of its own."""
    text = str(sample(error))

    assert text or error.__subclasses__() or error is SyncError
    assert not text[:1].isupper()
    assert not text.endswith(".")


@pytest.mark.parametrize("error", ALL)
def test_no_error_has_a_field_for_an_owner_or_a_row(error: type[SyncError]) -> None:
    """What a log line must not hold has no way into a text."""
    parameters = set(inspect.signature(error.__init__).parameters) - {"self", "args", "kwargs"}

    assert not {name for name in parameters if re.search("owner|user|key|row|payload|cursor|id$", name)}


@pytest.mark.parametrize("error", ALL)
def test_every_field_is_documented(error: type[SyncError]) -> None:
    """The class's docstring has an ``Attributes`` entry for it, in its own class or the one above."""
    documented = "\n".join(
        inspect.getdoc(base) or "" for base in error.__mro__ if issubclass(base, SyncError)
    )

    assert [] == [name for name in vars(sample(error)) if f"\n    {name}: " not in documented]


def test_an_invalid_argument_is_a_value_error() -> None:
    """Callers who know nothing of this package may catch ``ValueError``."""
    assert isinstance(InvalidArgumentError("limit", "an integer in 1..10"), ValueError)
    assert "limit must be an integer in 1..10" == str(InvalidArgumentError("limit", "an integer in 1..10"))


def test_a_missing_extra_is_an_import_error_that_says_what_to_install() -> None:
    """It is raised where an import would have failed."""
    error = MissingExtraError("embedded")

    assert isinstance(error, ImportError)
    assert "pip install 'baukit-sync[embedded]'" in str(error)
