"""The one config file of a run: its keys and their types, and `ConfigStruct`, in which components read its values."""

import dataclasses
import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from everstep.config import Config, Layer
from everstep.errors import Problem, UsageError, join, nearest

DESCRIPTIONS = ("model_details", "model_parameters", "considerations")
"""Sections that describe the model, for its card, and change nothing in what a run computes."""

_NOT_TRAINED = ("epochs", "project_name", "data_dir", "evaluator_class", "evaluator", "seed", *DESCRIPTIONS)

CLASSES = {
    "data_loader_class": "dataset.DataLoader",
    "preprocessor_class": "preprocessing.Preprocessor",
    "model_builder_class": "models.ModelBuilder",
    "evaluator_class": "evaluation.Evaluator",
}
"""The keys of the classes that every project has, with an example each."""

_SIMILAR = 0.85  # an unknown key that resembles a known one this much is taken for a typing error
_PERHAPS = 0.6  # an own key that resembles a missing one this much is mentioned
_REPEATED_KEY = re.compile(r"\s*(\w+_class)\s*:\s*(\S.*?)\s*")


@dataclasses.dataclass
class ProjectConfig(Config):
    """The keys that a config file may have beside those of the project's own."""

    seed: int = 101
    """Seeds everything before a class is built."""
    input_height: int | None = None
    """The height of the inputs, for your classes."""
    input_width: int | None = None
    """The width of the inputs, for your classes."""
    input_channels: int | None = None
    """The channels of the inputs, for your classes."""
    src_code_path: str | None = None
    """The folder with the project's classes, such as `src`. Required."""
    data_dir: str | None = None
    """The data's folder, relative to the project; an argument of the orchestrator wins over it."""
    data_loader_class: str | None = None
    """The data loader, as `module.Class`. Required."""
    model_builder_class: str | None = None
    """The model builder, as `module.Class`. Required."""
    preprocessor_class: str | None = None
    """The preprocessor, as `module.Class`. Required."""
    augmentor_class: str | None = None
    """The augmentor, as `module.Class`, if data is augmented."""
    evaluator_class: str | None = None
    """The evaluator, as `module.Class`. Required."""
    epochs: int | None = None
    """The total number of epochs. Not needed for estimators without epochs."""
    batch_size: int | None = None
    """Samples per step."""
    data_loader: dict[str, Any] = {}
    """Your own settings of the data loader."""
    model_builder: dict[str, Any] = {}
    """Your own settings of the model builder."""
    preprocessor: dict[str, Any] = {}
    """Your own settings of the preprocessor."""
    augmentor: dict[str, Any] = {}
    """Your own settings of the augmentor."""
    evaluator: dict[str, Any] = {}
    """Your own settings of the evaluator."""
    do_train_augmentation: bool | None = None
    """Whether training data is augmented."""
    do_validation_augmentation: bool | None = None
    """Whether validation data is augmented."""
    export: dict[str, Any] = {"metric": "val_loss", "mode": "min"}
    """Which epoch is exported: the best by `metric`, where `mode` (`min` or `max`) says which is better."""
    project_name: str | None = None
    """The experiment's name on MLflow. Required."""
    model_details: dict[str, Any] = {"name": None, "overview": None, "documentation": None}
    """Descriptions for the model card."""
    model_parameters: dict[str, Any] = {
        "model_architecture": None,
        "data": {"name": None, "description": None, "link": None},
        "input_format": None,
        "output_format": None,
    }
    """Architecture, data and formats, for the model card."""
    considerations: dict[str, Any] = {"users": None, "use_cases": None, "limitations": None}
    """Users, use cases and limitations, for the model card."""

    def validate(self) -> None:
        """Checks that a run can be created from the values.

        Raises:
          UsageError: A line for every key that is missing or has an impossible value.
        """
        super().validate()
        if problems := [*self._missing(), *self._invalid()]:
            raise UsageError(problems)

    def _missing(self) -> Iterator[Problem]:
        required = {
            "src_code_path": "set the folder of the project's classes, such as 'src'",
            **{key: f"set module and class, such as {example!r}" for key, example in CLASSES.items()},
            "project_name": "set the name of the project, which is its experiment on MLflow",
        }
        yield from (Problem(key, "missing", remedy=fix) for key, fix in required.items() if getattr(self, key) is None)
        for key in ("do_train_augmentation", "do_validation_augmentation"):
            if getattr(self, key) and self.augmentor_class is None:
                yield Problem("augmentor_class", f"missing, but {key} is true", remedy=f"set it, or remove {key}")
                return

    def _invalid(self) -> Iterator[Problem]:
        for key in ("epochs", "batch_size", "input_height", "input_width", "input_channels"):
            if (number := getattr(self, key)) is not None and number < 1:
                yield Problem(key, "must be at least 1", received=number)
        if not 0 <= self.seed < 2**32:
            yield Problem("seed", "must be from 0 to 4294967295", received=self.seed)
        for key in ("src_code_path", "data_dir", "project_name"):
            if (text := getattr(self, key)) is not None and not text.strip():
                yield Problem(key, "must not be empty", received=text)
        metric, mode = self.export["metric"], self.export["mode"]
        if not isinstance(metric, str) or not metric.strip():
            yield Problem("export.metric", "must be the name of a metric, such as 'val_loss'", received=metric)
        if mode not in ("min", "max"):
            yield Problem("export.mode", "must be 'min' or 'max'", received=mode)
        for key, example in {**CLASSES, "augmentor_class": "augmentation.Augmentor"}.items():
            name = getattr(self, key)
            if name is None:
                continue
            if found := _REPEATED_KEY.fullmatch(name):
                yield Problem(key, "contains a key", received=name, remedy=f"write {key}: {found[2]}")
            elif "." not in name or not all(part.isidentifier() for part in name.split(".")):
                yield Problem(key, f"must be a module and a class, such as {example!r}", received=name)


class ConfigNotFound(UsageError):
    """The run's folder contains no config file."""


class FoundMultipleConfigs(UsageError):
    """The run's folder contains several config files, of which any could be meant."""


class MissingKeyError(UsageError, AttributeError):
    """A component reads a key that its configuration does not have; `getattr(section, name, default)` works."""


class ConfigStruct:
    """Values by attribute, sections as further structs.

        config = ConfigStruct({"batch_size": 8, "model_builder": {"activation": "relu"}})
        config.model_builder.activation      # "relu"
        config.get("dropout", 0.1)           # 0.1

    Reading a key that is not set is an error that names it, its file and similar ones. A section without keys is false.

    Args:
      values: The values; mappings in them become structs.
      layer: The file that they come from, for messages.
      path: The key of this section, empty at the top.
    """

    def __init__(self, values: Mapping[str, Any] | None = None, layer: Layer | None = None, path: str = "") -> None:
        self._layer, self._path = layer or Layer("", {}), path
        self._values: dict[str, Any] = {}
        for name, value in (values or {}).items():
            self[str(name)] = value

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a value, or `default` where the key is missing or None."""
        value = self._values.get(name)
        return default if value is None else value

    def as_dict(self) -> dict[str, Any]:
        """Returns the values as plain nested dicts."""
        return {
            name: value.as_dict() if isinstance(value, ConfigStruct) else value for name, value in self._values.items()
        }

    def leaves(self) -> Iterator[tuple[str, Any]]:
        """Yields every value that is set with its dotted key."""
        for name, value in self._values.items():
            if isinstance(value, ConfigStruct):
                yield from value.leaves()
            elif value is not None:
                yield join(self._path, name), value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            self[name] = value

    def __getitem__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        key, similar = join(self._path, name), nearest(name, self._values)
        raise MissingKeyError("is read but not set", key=key, remedy=similar, origin=self._layer.origin_of(key))

    def __setitem__(self, name: str, value: Any) -> None:
        is_section = isinstance(value, Mapping)
        self._values[name] = ConfigStruct(value, self._layer, join(self._path, name)) if is_section else value

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __bool__(self) -> bool:
        return bool(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConfigStruct) and self.as_dict() == other.as_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ConfigStruct({self.as_dict()!r})"


def origin_of(config: ConfigStruct, key: str) -> str:
    """Returns where a key is set, `config.yaml:12`; the file alone where it is not set."""
    return config._layer.origin_of(key)


def find_config(run_dir: str | os.PathLike[str]) -> Path:
    """Returns the one `*.yaml` in a run's folder.

    Raises:
      UsageError: The folder does not exist; names similar ones.
      ConfigNotFound: It contains none.
      FoundMultipleConfigs: It contains several; names them.
    """
    folder = Path(run_dir)
    if not folder.is_dir():
        found = [entry for entry in folder.parent.iterdir() if entry.is_dir()] if folder.parent.is_dir() else []
        runs = [entry.name for entry in found if any(entry.glob("*.yaml"))] or [entry.name for entry in found]
        raise UsageError(
            f"{str(folder.parent)!r} contains no run {folder.name!r}", key="run_name", remedy=nearest(folder.name, runs)
        )
    files = sorted(path for path in folder.glob("*.yaml") if path.is_file() and not path.name.startswith("."))
    if not files:
        others = sorted(path.name for path in folder.glob("*.yml"))
        hint = f"rename {others[0]!r} to config.yaml" if others else "put the run's config.yaml there"
        raise ConfigNotFound(f"{str(folder)!r} contains no *.yaml file", remedy=hint)
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise FoundMultipleConfigs(f"{str(folder)!r} contains several *.yaml files ({names})", remedy="keep one")
    return files[0]


def load_config_file(path: str | os.PathLike[str]) -> ConfigStruct:
    """Returns a config file's values over the defaults: known keys that are not set are None.

        config = load_config_file("runs/baseline/config.yaml")
        config.export.mode        # "min", unless the file sets it

    Raises:
      UsageError: The file cannot be read, is no YAML, mistypes a known key, or has a value of the wrong type.
    """
    return _load(path, for_run=False)


def load_run_config(path: str | os.PathLike[str]) -> ConfigStruct:
    """Returns the same, with everything checked that a run needs: required keys, and the range of numbers.

    Raises:
      UsageError: As `load_config_file`, and for keys that are missing or impossible; one line for each.
    """
    return _load(path, for_run=True)


def _load(path: str | os.PathLike[str], for_run: bool) -> ConfigStruct:
    layer = Layer.from_file(path)
    config, own, problems = ProjectConfig(), dict[str, Any](), [*_mistyped(layer.tree)]
    for key, value in layer.tree.items():
        if key not in config:
            own[key] = value
        elif value is not None:  # a known key that is set to nothing is not set
            try:
                config.override({key: value})
            except UsageError as error:
                problems += error.problems
    if for_run:
        refused = {problem.key for problem in problems}
        try:
            config.validate()
        except UsageError as error:
            problems += [_with_own(problem, own) for problem in error.problems if problem.key not in refused]
    if problems:
        raise UsageError([dataclasses.replace(each, origin=layer.origin_of(each.key)) for each in problems])
    return ConfigStruct({**config.as_dict(), **own}, layer)


def _with_own(problem: Problem, own: Mapping[str, Any]) -> Problem:
    remedy = _in_place_of(problem.key, own) if problem.reason == "missing" else ""
    return dataclasses.replace(problem, remedy=remedy) if remedy else problem


def _mistyped(tree: Mapping[str, Any]) -> Iterator[Problem]:
    """Yields keys that resemble a known one which is not set; any other key may be the project's own."""
    known, section = ProjectConfig().as_dict(), tree.get("export")
    sections = [("", tree, known), ("export", section if isinstance(section, Mapping) else {}, known["export"])]
    for path, values, names in sections:
        for name in map(str, values):
            unset = [] if name in names else [other for other in names if other not in values]
            swapped = [other for other in unset if sorted(other) == sorted(name)]
            if meant := swapped or difflib.get_close_matches(name, unset, n=2, cutoff=_SIMILAR):
                hint = f"did you mean {' or '.join(map(repr, meant))}?"
                yield Problem(join(path, name), "unknown key", remedy=hint)


def _in_place_of(missing: str, own: Iterable[str]) -> str:
    """Returns what to do where one of the project's own keys resembles a missing one; empty if none does."""
    similar = difflib.get_close_matches(missing, list(own), n=1, cutoff=_PERHAPS)
    return f"if {similar[0]!r} is meant, rename it" if similar else ""


def training_values(config: ConfigStruct) -> dict[str, Any]:
    """Returns the values that may change what is trained, without keys that are not set.

    Epochs and seed are not among them: the loop's configuration has its own.
    """

    def without_unset(values: Mapping[str, Any]) -> dict[str, Any]:
        nested = {key: without_unset(value) if isinstance(value, Mapping) else value for key, value in values.items()}
        return {key: value for key, value in nested.items() if value is not None and value != {}}

    return without_unset({key: value for key, value in config.as_dict().items() if key not in _NOT_TRAINED})


def augments(config: ConfigStruct) -> bool:
    """Returns whether training or validation data is augmented."""
    return bool(config.do_train_augmentation or config.do_validation_augmentation)


def require_epochs(config: ConfigStruct) -> int:
    """Returns how many epochs to train.

    Raises:
      UsageError: The key is not set.
    """
    if config.epochs is None:
        own = set(config) - set(ProjectConfig().as_dict())
        remedy = _in_place_of("epochs", own) or "set how many to train"
        raise UsageError("missing", key="epochs", remedy=remedy, origin=origin_of(config, "epochs"))
    return int(config.epochs)
