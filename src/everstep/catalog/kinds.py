"""Which type an entry has: named, or by the suffix of its path; of this package, or of the project."""

from pathlib import Path

from everstep.catalog import pickles
from everstep.catalog.arrays import Npy, Npz
from everstep.catalog.dataset import Dataset
from everstep.catalog.images import Images
from everstep.catalog.keras_models import KerasModel
from everstep.catalog.paths import PathItself
from everstep.catalog.records import TfRecord
from everstep.catalog.tables import Csv, Parquet
from everstep.catalog.texts import Json, Text, Yaml
from everstep.config import project
from everstep.config.allowed import Allowed, resolve
from everstep.config.problem import show
from everstep.errors import UsageError, nearest

SHIPPED: dict[str, type[Dataset]] = {
    "npz": Npz,
    "npy": Npy,
    "csv": Csv,
    "parquet": Parquet,
    "images": Images,
    "text": Text,
    "json": Json,
    "yaml": Yaml,
    "tfrecord": TfRecord,
    "keras": KerasModel,
    "path": PathItself,
    pickles.NAME: pickles.Pickle,
}
"""The types that need no code of a project."""

_ELSEWHERE = {
    "csvdataset": "csv",
    "parquetdataset": "parquet",
    "jsondataset": "json",
    "yamldataset": "yaml",
    "textdataset": "text",
    "pickledataset": pickles.NAME,
    "tensorflowmodeldataset": "keras",
}
"""What other catalogs call them, after the last dot."""


def kind_name(given: str | None, filepath: str) -> str:
    """Returns the name of an entry's type; checks what can be checked without importing anything of the project's.

    Raises:
      UsageError: There is no such type, or none follows from the path.
    """
    if given is None:
        return _by_suffix(filepath)
    other = _ELSEWHERE.get(given.rpartition(".")[2].lower())
    if given not in SHIPPED and other:
        raise UsageError(f"unknown type {given!r}: here it is {other!r}")
    if given not in SHIPPED and "." not in given:
        hint = nearest(given, SHIPPED)
        raise UsageError(f"unknown type {show(given)}; {hint} or the dotted name of a class of this project")
    return given


def dataset(name: str, root: Path) -> Dataset:
    """Returns what reads and writes a type; a class of the project is imported for it.

    Raises:
      UsageError: The project does not allow the type, or it is no `everstep.catalog.Dataset`.
    """
    kind = SHIPPED.get(name) or resolve(name, Allowed(root, project.trusted_packages(root)))
    if not isinstance(kind, type) or not issubclass(kind, Dataset):
        raise UsageError(f"type {name!r} must be a class that extends everstep.catalog.Dataset, received {show(kind)}")
    made = kind()
    made.require_permission(root)
    return made


def _by_suffix(filepath: str) -> str:
    name = filepath.rstrip("/").rpartition("/")[2].lower()
    known = {suffix: kind for kind, one in SHIPPED.items() for suffix in one.suffixes}
    fitting = [suffix for suffix in known if name.endswith(suffix) and name != suffix]
    if fitting:
        return known[max(fitting, key=len)]
    if "." not in name.lstrip("."):
        return "path"
    suffix = f".{name.partition('.')[2]}"
    raise UsageError(f"the type does not follow from {filepath!r}; {nearest(suffix, known)} or say type: path")
