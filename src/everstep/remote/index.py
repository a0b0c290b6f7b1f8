"""The index of a run in the store: size and SHA-256 of each file that stands for itself, and who wrote it last.

Files change, and an upload may be killed between a file and the index. So the index is written twice: before, with
what is about to come, and after. On reading a file may be the one or the other, and nothing else.
"""

import dataclasses
import json
from typing import Any

from everstep.errors import TrainingError
from everstep.remote.failures import Absent
from everstep.remote.layout import OWN
from everstep.remote.transfer import Store

NAME = f"{OWN}/index.json"
FORMAT = 1

Entries = dict[str, list[Any]]
"""Size and SHA-256 by path."""


@dataclasses.dataclass
class Index:
    """What a store should have of a run, beside its checkpoints.

    Attributes:
      writer: Which local copy wrote it.
      files: The files.
      pending: All that the store may have got since, by path: uploads are cut short, and more than once.
    """

    writer: str = ""
    files: Entries = dataclasses.field(default_factory=dict)
    pending: dict[str, list[list[Any]]] = dataclasses.field(default_factory=dict)

    def allowed(self, path: str) -> list[list[Any]]:
        """Returns what a file may be; empty if the index does not know it."""
        known = [self.files[path]] if path in self.files else []
        return [*known, *self.pending.get(path, [])]

    def expect(self, new: Entries) -> None:
        """Notes what is about to be uploaded, beside what may have got there before."""
        for path, entry in new.items():
            before = self.pending.setdefault(path, [])
            if entry not in before:
                before.append(entry)

    def settle(self, new: Entries) -> None:
        """Notes what has been uploaded."""
        self.files |= new
        for path in new:
            self.pending.pop(path, None)

    def write(self, store: Store) -> None:
        """Writes it to the store."""
        document = {"format": FORMAT, **dataclasses.asdict(self)}
        store.put_bytes(NAME, json.dumps(document, indent=1, sort_keys=True).encode())


def read(store: Store) -> Index | None:
    """Returns a store's index; None if it has none, as where somebody has copied a run directory there.

    Raises:
      TrainingError: It is damaged, or of a newer Everstep.
      StoreError: It cannot be read.
    """
    try:
        document = json.loads(store.get_bytes(NAME))
        if document.pop("format") > FORMAT:
            raise TrainingError(f"{store.url} was written by a newer Everstep: upgrade, or name another place")
        return Index(**document)
    except Absent:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TrainingError(
            f"{store.url}/{NAME} is damaged ({type(error).__name__}): bring it back, or remove it to go on without "
            "digests of single files"
        ) from error
