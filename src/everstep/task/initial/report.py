"""What became of the weights of a model that was to start from others."""

import dataclasses
from typing import Any

_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """A weight that is there, in another shape.

    Attributes:
      name: Its name in the model.
      here: Its shape in the model.
      there: Its shape in the file.
    """

    name: str
    here: tuple[int, ...]
    there: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} (here {self.here}, there {self.there})"


@dataclasses.dataclass(frozen=True)
class Report:
    """Which weights were loaded, and which were not.

    Attributes:
      path: The file or directory they came from.
      kind: What it is, in words.
      matched: The model's weights that were loaded.
      missing: The model's weights that it does not have; they stay as they were initialized.
      mismatched: The model's weights that it has in another shape; they stay as well.
      unexpected: What it has and the model has not.
    """

    path: str
    kind: str
    matched: tuple[str, ...]
    missing: tuple[str, ...] = ()
    mismatched: tuple[Mismatch, ...] = ()
    unexpected: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every weight of the model was loaded."""
        return not self.missing and not self.mismatched

    def lines(self) -> list[str]:
        """Returns it for a person: how many of each, and the first names."""
        total = len(self.matched) + len(self.missing) + len(self.mismatched)
        lines = [f"{len(self.matched)} of the model's {total} weights come from {self.kind} {self.path}"]
        if self.missing:
            lines.append(f"missing there, initialized here: {_listed(self.missing)}")
        if self.mismatched:
            lines.append(f"of another shape, initialized here: {_listed(self.mismatched)}")
        if self.unexpected:
            lines.append(f"not used from there: {_listed(self.unexpected)}")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """Returns it as plain values, for a record."""
        return {
            "path": self.path,
            "kind": self.kind,
            "matched": list(self.matched),
            "missing": list(self.missing),
            "mismatched": [
                {"name": one.name, "here": list(one.here), "there": list(one.there)} for one in self.mismatched
            ],
            "unexpected": list(self.unexpected),
        }


def _listed(names: tuple[Any, ...]) -> str:
    more = f", … ({len(names)} in all)" if len(names) > _SHOWN else ""
    return ", ".join(map(str, names[:_SHOWN])) + more
