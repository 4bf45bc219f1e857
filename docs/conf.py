"""How the documentation is built: ``sphinx-build -W --keep-going -n -q -E docs docs/_build/html``."""

import sys
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

project = "baukit-sync"
author = project_copyright = "The baukit-sync authors"
release = version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
default_role = "py:obj"

html_theme = "furo"
html_title = "baukit-sync"
html_copy_source = False

myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

copybutton_prompt_text = "$ "

# Other projects' names, in annotations: their inventories are on the network, and a build needs none.
nitpick_ignore_regex = [
    ("py:.*", r"(sqlalchemy|sa|alembic|pydantic)\..*"),
    ("py:.*", r"(collections\.abc|datetime|os|typing|uuid)\..*"),
    # A field, from the docstring of its neighbour.
    ("py:attr", "next_cursors"),
    # Type variables, and aliases that only annotations name.
    ("py:class", r"baukit_sync\.(transaction\.OwnerT|wire\.ChangeT|aio\.[RS]|retry\.[RS])"),
    ("py:class", r"Connection|Engine|Reference|timedelta|baukit_sync\.purge\.table\.KnownTable"),
    ("py:class", r"_Type|AnySelect|Criterion|SessionLike|Values"),
]


def setup(app: Sphinx) -> None:
    """Show signatures as they are, and let prose have colons: Napoleon looks for types before them."""
    written: dict[str, list[str]] = {}

    def before(_app: Sphinx, what: str, name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
        if what in {"attribute", "data", "property"}:
            written[name] = lines.copy()
        elif "Returns:" in lines:
            start = lines.index("Returns:")
            lines[start : start + 2] = [f":returns: {lines[start + 1].strip()}"]

    def after(_app: Sphinx, _what: str, name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
        lines[:] = written.pop(name, lines)

    def signature(_app: Sphinx, _what: str, _name: str, obj: Any, *_rest: Any) -> tuple[str, None] | None:
        # Pydantic's repeats every constraint; the page has a table.
        return ("", None) if isinstance(obj, type) and issubclass(obj, BaseModel) else None

    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-process-docstring", before, priority=1)
    app.connect("autodoc-process-docstring", after, priority=999)
