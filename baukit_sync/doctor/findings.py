"""What an examination finds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum


class Severity(Enum):
    """How bad a finding is."""

    ERROR = "error"
    """Changes are lost, or calls fail."""

    WARNING = "warning"
    """Changes can be lost, or the purge or a pull is slow or blind."""

    INFO = "info"
    """Worth knowing: a choice with a price, or something that could not be looked at."""

    @property
    def rank(self) -> int:
        """0 for an error, 2 for an info."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. It holds counts at most: no owner id, no key, no row data.

    Attributes:
        code: What is wrong, as a stable word; ``docs/reference/doctor.md`` lists them.
        severity: How bad it is.
        where: ``schema.table``, ``schema.table.column``, the name of an object, or of a setting.
        why: Why it matters.
        fix: The SQL or Python to paste, or in words what to do.
    """

    code: str
    severity: Severity
    where: str
    why: str
    fix: str

    def to_dict(self) -> dict[str, str]:
        """Return the finding as JSON has it."""
        return {**asdict(self), "severity": self.severity.value}
