"""The catalog: load, save, check and identify data by name."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from everstep.errors import Problem, TrainingError, UsageError, nearest, problems_under
from everstep.projects.catalog import entries
from everstep.projects.catalog.data_type import DataType, Verb, unknown_arguments
from everstep.projects.catalog.entries import Entry
from everstep.projects.catalog.fingerprints import fingerprint
from everstep.projects.catalog.formats import SHIPPED, open_type
from everstep.projects.catalog.places import Place, checked_version, newest, place
from everstep.storage import PathLike

Version = str | int
Result = TypeVar("Result")


class Catalog:
    """Data by name.

        catalog = Catalog.from_files(["config/catalog.yaml", "config/local/catalog.yaml"], root=".")
        catalog.check(["mnist.raw"])                  # before anything expensive begins
        arrays = catalog.load("mnist.raw")
        catalog.save("scores", table)                 # whole, or not at all
        catalog.fingerprint("mnist.raw")["sha256"]

    Args:
      found: The entries by name.
      root: The project: relative paths begin there, and its `pyproject.toml` allows types.
    """

    def __init__(self, found: Mapping[str, Entry], root: PathLike) -> None:
        self._entries, self.root = dict(found), Path(root).absolute()

    @classmethod
    def from_files(cls, paths: Iterable[PathLike], root: PathLike) -> "Catalog":
        """Returns the catalog that files describe, later ones over earlier ones.

        Raises:
          UsageError: A file cannot be read, or entries are wrong: each with its key path, file and line.
        """
        layers = entries.read_layers(paths)
        return cls(entries.parse(entries.merge(layers), layers), root)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def entry(self, name: str) -> Entry:
        """Returns the entry of a name.

        Raises:
          UsageError: There is no such name.
        """
        if name not in self._entries:
            raise UsageError(
                "the catalog has no such name", key="name", received=name, remedy=nearest(str(name), self._entries)
            )
        return self._entries[name]

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Returns all entries as plain values, by name: for the record of a run."""
        return {name: entry.as_dict() for name, entry in self._entries.items()}

    # -- reading and writing -----------------------------------------------------------------------------------------

    def load(self, name: str, version: Version | None = None) -> Any:
        """Returns the content of a name.

        Args:
          name: As in the catalog: `mnist.raw`.
          version: Of a versioned entry; the newest by default.

        Raises:
          UsageError: There is no such name, version or data, or it cannot be read as its type.
        """
        entry = self.entry(name)
        data_type = self._open_type(entry, "load")
        path = self.path(name, version)
        return _with_context(entry, "read", lambda: data_type.load(path, **entry.load_args))

    def save(self, name: str, value: Any, version: Version | None = None) -> str:
        """Writes a value under a name, whole or not at all; returns where it is now: an absolute path, or a URL.

        Args:
          name: As in the catalog.
          value: What its type takes.
          version: For a versioned entry; by default the next number or the time.

        Raises:
          UsageError: There is no such name, the version is taken, or the value does not fit the type.
          TrainingError: The disk or the store does not take it.
        """
        entry = self.entry(name)
        data_type = self._open_type(entry, "save")
        where = self._place(entry)
        if version is not None and not entry.versioned:
            raise _unversioned(entry)
        chosen = None if version is None else checked_version(version)

        def make(path: Path) -> None:
            data_type.save(value, path, **entry.save_args)

        if not entry.versioned:
            _with_context(entry, "written", lambda: where.write(make))
            return where.shown
        return where.below(_with_context(entry, "written", lambda: where.add(make, chosen))).shown

    def path(self, name: str, version: Version | None = None) -> Path:
        """Returns where data is on this machine; data in a store is fetched.

        Raises:
          UsageError: There is no such name, version or data.
        """
        entry = self.entry(name)
        where = self._chosen(entry, version)
        found = _under(entry, where.fetched)
        if found is None:
            raise UsageError(_missing(entry, where.shown))
        return found

    def versions(self, name: str) -> list[str]:
        """Returns the versions of a name, oldest first; none for an entry without versions."""
        entry = self.entry(name)
        if not entry.versioned:
            return []
        where, marker = self._place(entry), self._marker(entry)
        return _under(entry, lambda: where.versions(marker))

    # -- before and after --------------------------------------------------------------------------------------------

    def exists(self, name: str, version: Version | None = None) -> bool:
        """Returns whether there is data under a name; of a store nothing is fetched."""
        entry = self.entry(name)
        if entry.versioned and version is None:
            return bool(self.versions(name))
        return _under(entry, self._chosen(entry, version).exists)

    def check(self, names: Iterable[str]) -> None:
        """Makes sure that data can be loaded: the names are known, the types allowed, files and folders exist.

        Raises:
          UsageError: All problems, each with its key, its absolute path, and the file that names it.
        """
        problems: list[Problem] = []
        for name in names:
            try:
                entry = self.entry(name)
                self._open_type(entry, "load")
                if not self.exists(name):
                    problems.append(_missing(entry, self._place(entry).shown))
            except UsageError as error:
                problems.append(error.problems[0])
        if problems:
            raise UsageError(problems)

    def fingerprint(self, name: str, version: Version | None = None) -> dict[str, Any]:
        """Returns what identifies the content of a name: `sha256`, `bytes`, `path`, and `version` where it has some.

        The path of data inside the project is relative to it, so it is the same on every machine.

        Raises:
          UsageError: As `path`.
        """
        entry = self.entry(name)
        if entry.versioned and version is None:
            version = self._newest(entry)
        content = fingerprint(self.path(name, version))
        path = Path(self._chosen(entry, version).shown)
        shown = path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)
        shown = self._chosen(entry, version).shown if "://" in entry.filepath else shown
        which = {"version": str(version)} if entry.versioned else {}
        return {"sha256": content.sha256, "bytes": content.bytes, "path": shown, **which}

    # -- inside ------------------------------------------------------------------------------------------------------

    def _open_type(self, entry: Entry, verb: Verb) -> DataType:
        try:
            data_type = open_type(entry.type, self.root)
        except UsageError as error:
            raise UsageError(_located(entry, problems_under("type", error))) from error
        unknown = unknown_arguments(type(data_type), verb, getattr(entry, f"{verb}_args"))
        if unknown:
            raise UsageError(_located(entry, [problem.under(f"{verb}_args") for problem in unknown]))
        return data_type

    def _marker(self, entry: Entry) -> str:
        kind = SHIPPED.get(entry.type) or type(self._open_type(entry, "load"))
        return kind.marker

    def _place(self, entry: Entry) -> Place:
        return place(entry.filepath, self.root)

    def _chosen(self, entry: Entry, version: Version | None) -> Place:
        """Returns the place of the data: of a version, for an entry with versions."""
        where = self._place(entry)
        if not entry.versioned:
            if version is not None:
                raise _unversioned(entry)
            return where
        if version is None:
            return where.below(self._newest(entry))
        name = checked_version(version)
        known = self.versions(entry.name)
        if name not in known:
            reason = f"there is no version {name!r} in {where.shown}"
            raise UsageError(reason, key=entry.name, remedy=nearest(name, known))
        return where.below(name)

    def _newest(self, entry: Entry) -> str:
        found = newest(self.versions(entry.name))
        if found is None:
            reason = f"there is no version in {self._place(entry).shown}"
            raise UsageError(reason, key=entry.name, origin=entry.origin)
        return found


def _missing(entry: Entry, shown: str) -> Problem:
    remedy = "put the data there, or correct filepath"
    return Problem(entry.name, f"there is no file or folder {shown}", entry.origin, remedy=remedy)


def _unversioned(entry: Entry) -> UsageError:
    remedy = "set versioned: true in the catalog"
    return UsageError("has no versions", key=entry.name, remedy=remedy, origin=entry.origin)


def _located(entry: Entry, problems: Iterable[Problem]) -> list[Problem]:
    return [dataclasses.replace(problem.under(entry.name), origin=entry.origin) for problem in problems]


def _under(entry: Entry, call: Callable[[], Result]) -> Result:
    """Calls a place; its problems, such as a store that cannot be reached, get the key of the entry."""
    try:
        return call()
    except UsageError as error:
        raise UsageError(_located(entry, error.problems)) from error


def _with_context(entry: Entry, what: str, call: Callable[[], Any]) -> Any:
    """Calls a type; its problems get the key of the entry. Exceptions of a project's own types are unchanged."""
    failed = f"{entry.filepath} cannot be {what} as {entry.type}"
    try:
        return call()
    except TrainingError:
        raise
    except UsageError as error:
        problems = []
        for problem in error.problems:
            if problem.key != "version":  # a version that exists is no matter of the type
                problem = dataclasses.replace(problem, reason=f"{failed}: {problem.reason}")
            problems.append(problem.under(entry.name))
        raise UsageError(problems) from error
    except Exception as error:  # each format has its own kinds
        if entry.type not in SHIPPED:
            raise
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        disk = what == "written" and isinstance(error, OSError)  # no space, no permission: the request itself was good
        kind = TrainingError if disk else UsageError
        raise kind(f"{failed}: {reason}", key=entry.name) from error
