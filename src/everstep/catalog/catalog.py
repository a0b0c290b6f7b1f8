"""The catalog: load, save, check and identify data by name."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from everstep.catalog import entries, fingerprints, kinds, sources, versions
from everstep.catalog.dataset import Dataset, Verb, refusals
from everstep.catalog.entries import Entry
from everstep.catalog.places import Place, place
from everstep.config.problem import ConfigError, Problem
from everstep.errors import TrainingError, UsageError, nearest
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
      root: The project: where relative paths begin, and whose `pyproject.toml` says what is allowed.
    """

    def __init__(self, found: Mapping[str, Entry], root: PathLike) -> None:
        self._entries, self.root = dict(found), Path(root).absolute()

    @classmethod
    def from_files(cls, paths: Iterable[PathLike], root: PathLike) -> "Catalog":
        """Returns the catalog that files describe, later ones over earlier ones.

        Raises:
          UsageError: A file cannot be read, or entries are wrong: each with its key path, file and line.
        """
        return cls(entries.parsed(*sources.read(paths)), root)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def entry(self, name: str) -> Entry:
        """Returns what the catalog says of a name.

        Raises:
          UsageError: It does not know it.
        """
        if name not in self._entries:
            raise UsageError(f"the catalog has no {name!r}; {nearest(str(name), self._entries)}")
        return self._entries[name]

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Returns all entries as plain values, by name: for a record of what a run was told."""
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
        dataset = self._dataset(entry, "load")
        path = self.path(name, version)
        return _told(entry, "read", lambda: dataset.load(path, **entry.load_args))

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
        dataset = self._dataset(entry, "save")
        where = self._place(entry)
        if version is not None and not entry.versioned:
            raise UsageError(_unversioned(entry))
        chosen = None if version is None else versions.checked(version)

        def make(path: Path) -> None:
            dataset.save(value, path, **entry.save_args)

        if not entry.versioned:
            _told(entry, "written", lambda: where.write(make))
            return where.shown
        return where.below(_told(entry, "written", lambda: where.add(make, chosen))).shown

    def path(self, name: str, version: Version | None = None) -> Path:
        """Returns where data is on this machine; what lies in a store is fetched.

        Raises:
          UsageError: There is no such name, version or data.
        """
        entry = self.entry(name)
        where = self._chosen(entry, version)
        found = _of(entry, where.fetched)
        if found is None:
            raise UsageError(f"{name}: {_missing(where.shown)} (from {entry.origin})")
        return found

    def versions(self, name: str) -> list[str]:
        """Returns the versions of a name, oldest first; none for an entry without versions."""
        entry = self.entry(name)
        if not entry.versioned:
            return []
        where, marker = self._place(entry), self._marker(entry)
        return _of(entry, lambda: where.versions(marker))

    # -- before and after --------------------------------------------------------------------------------------------

    def exists(self, name: str, version: Version | None = None) -> bool:
        """Tells whether there is data under a name; of a store it is asked, and nothing fetched."""
        entry = self.entry(name)
        if entry.versioned and version is None:
            return bool(self.versions(name))
        return _of(entry, self._chosen(entry, version).exists)

    def check(self, names: Iterable[str]) -> None:
        """Makes sure that data can be loaded: the names are known, the types allowed, files and folders there.

        Raises:
          UsageError: With everything that is wrong, each with its key, its absolute path, and where it is written.
        """
        problems = [problem for name in names if (problem := self._problem(name))]
        if problems:
            raise ConfigError(problems)

    def fingerprint(self, name: str, version: Version | None = None) -> dict[str, Any]:
        """Returns what identifies the content of a name: `sha256`, `bytes`, `path`, and `version` where it has some.

        The path is relative to the project where the data lies in it: the same on every machine.

        Raises:
          UsageError: As `path`.
        """
        entry = self.entry(name)
        if entry.versioned and version is None:
            version = self._newest(entry)
        content = fingerprints.fingerprint(self.path(name, version))
        shown = self._relative(self._chosen(entry, version).shown)
        told = {"version": str(version)} if entry.versioned else {}
        return {"sha256": content.sha256, "bytes": content.bytes, "path": shown, **told}

    # -- inside ------------------------------------------------------------------------------------------------------

    def _dataset(self, entry: Entry, verb: Verb) -> Dataset:
        try:
            dataset = kinds.dataset(entry.type, self.root)
        except UsageError as error:
            raise UsageError(f"{entry.name}.type: {error} (from {entry.origin})") from error
        refused = refusals(type(dataset), verb, getattr(entry, f"{verb}_args"))
        if refused:
            raise ConfigError(
                [Problem(f"{entry.name}.{verb}_args.{key}", text, entry.origin) for key, text in refused.items()]
            )
        return dataset

    def _marker(self, entry: Entry) -> str:
        kind = kinds.SHIPPED.get(entry.type) or type(self._dataset(entry, "load"))
        return kind.marker

    def _place(self, entry: Entry) -> Place:
        return place(entry.filepath, self.root)

    def _chosen(self, entry: Entry, version: Version | None) -> Place:
        """Returns where the data itself lies: that of a version, for an entry that has some."""
        where = self._place(entry)
        if not entry.versioned:
            if version is not None:
                raise UsageError(_unversioned(entry))
            return where
        if version is None:
            return where.below(self._newest(entry))
        name = versions.checked(version)
        known = self.versions(entry.name)
        if name not in known:
            raise UsageError(f"{entry.name}: there is no version {name!r} in {where.shown}; {nearest(name, known)}")
        return where.below(name)

    def _newest(self, entry: Entry) -> str:
        found = versions.newest(self.versions(entry.name))
        if found is None:
            raise UsageError(f"{entry.name}: there is no version in {self._place(entry).shown} (from {entry.origin})")
        return found

    def _problem(self, name: str) -> Problem | None:
        try:
            entry = self.entry(name)
            self._dataset(entry, "load")
            if not self.exists(name):
                return Problem(name, _missing(self._place(entry).shown), entry.origin)
        except ConfigError as error:
            return error.problems[0]
        except UsageError as error:
            return Problem("", str(error))
        return None

    def _relative(self, shown: str) -> str:
        path = Path(shown)
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else shown


def _missing(shown: str) -> str:
    return f"there is no file or folder {shown}: put the data there, or correct filepath"


def _unversioned(entry: Entry) -> str:
    return f"{entry.name}: it has no versions: say versioned: true in the catalog (from {entry.origin})"


def _of(entry: Entry, call: Callable[[], Result]) -> Result:
    """Asks a place, and puts the name before what a store says that does not answer."""
    try:
        return call()
    except UsageError as error:
        raise UsageError(f"{entry.name}.{error} (from {entry.origin})") from error


def _told(entry: Entry, what: str, call: Callable[[], Any]) -> Any:
    """Calls something, and puts the name before what it says when it fails; a project's own types keep their errors."""
    try:
        return call()
    except TrainingError:
        raise
    except UsageError as error:
        raise UsageError(f"{entry.name}: {entry.filepath} cannot be {what} as {entry.type}: {error}") from error
    except Exception as error:  # each format has its own kinds
        if entry.type not in kinds.SHIPPED:
            raise
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        disk = what == "written" and isinstance(error, OSError)  # no room, no right: the request itself was good
        kind = TrainingError if disk else UsageError
        raise kind(f"{entry.name}: {entry.filepath} cannot be {what} as {entry.type}: {reason}") from error
