"""The one YAML file of a run: finding it, reading it, and what its keys are."""

import copy
import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everstep import redaction
from everstep.components.config_struct import ConfigStruct
from everstep.config.files import Document, read_file
from everstep.config.problem import ConfigError, Problem
from everstep.errors import UsageError, nearest

_ALIKE = 0.85  # from here on a key is taken for a known one that was mistyped

DEFAULTS: Mapping[str, Any] = {
    "seed": 101,
    "input_height": None,
    "input_width": None,
    "input_channels": None,
    "src_code_path": None,
    "data_dir": None,
    "data_loader_class": None,
    "model_builder_class": None,
    "preprocessor_class": None,
    "augmentor_class": None,
    "evaluator_class": None,
    "epochs": None,
    "batch_size": None,
    "data_loader": {},
    "model_builder": {},
    "preprocessor": {},
    "augmentor": {},
    "evaluator": {},
    "do_train_augmentation": None,
    "do_validation_augmentation": None,
    "export": {"metric": "val_loss", "mode": "min"},
    "project_name": None,
    "model_details": {"name": None, "overview": None, "documentation": None},
    "model_parameters": {
        "model_architecture": None,
        "data": {"name": None, "description": None, "link": None},
        "input_format": None,
        "output_format": None,
    },
    "considerations": {"users": None, "use_cases": None, "limitations": None},
}
"""The keys that are known, with what they are where a file does not set them; others are the project's own."""

DESCRIPTIONS = ("model_details", "model_parameters", "considerations")
"""Sections that describe, and alter nothing."""


class ConfigNotFound(UsageError):
    """There is no config file in the run's folder."""


class FoundMultipleConfigs(UsageError):
    """There are several config files in the run's folder: nobody can tell which one is meant."""


def find_config(run_dir: str | os.PathLike[str]) -> Path:
    """Returns the one `*.yaml` in a run's folder.

    Raises:
      UsageError: There is no such folder; names those there are.
      ConfigNotFound: There is none in it.
      FoundMultipleConfigs: There are several; names them.
    """
    folder = Path(run_dir)
    if not folder.is_dir():
        hint = nearest(folder.name, _folders(folder.parent))
        raise UsageError(f"there is no run {folder.name!r} in {str(folder.parent)!r}; {hint}")
    files = sorted(path for path in folder.glob("*.yaml") if path.is_file() and not path.name.startswith("."))
    if not files:
        others = sorted(path.name for path in folder.glob("*.yml"))
        hint = f"rename {others[0]!r} to config.yaml" if others else "put the run's config.yaml there"
        raise ConfigNotFound(f"{str(folder)!r} has no *.yaml file: {hint}")
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise FoundMultipleConfigs(f"{str(folder)!r} has {len(files)} *.yaml files ({names}): leave the one to use")
    return files[0]


def _folders(runs: Path) -> list[str]:
    """Returns the folders in `runs/`: those with a config file, unless none has one."""
    found = [entry for entry in runs.iterdir() if entry.is_dir()] if runs.is_dir() else []
    return [entry.name for entry in found if any(entry.glob("*.yaml"))] or [entry.name for entry in found]


def load_config_file(path: str | os.PathLike[str]) -> ConfigStruct:
    """Returns a config file's values over the defaults: known keys that are not set are None.

        config = load_config_file("runs/baseline/config.yaml")
        config.export.mode        # "min", unless the file says otherwise

    Raises:
      UsageError: The file cannot be read, is no YAML (with its line), or mistypes a known key.
    """
    document = read_file(path)
    redaction.learn(document.tree)
    problems = [*_mistyped(document, str(path)), *_wrong_sections(document, str(path))]
    if problems:
        raise ConfigError(problems)
    return ConfigStruct(_over(DEFAULTS, document.tree), origin=str(path), lines=document.lines)


def _mistyped(document: Document, path: str) -> Iterator[Problem]:
    """Yields keys that are nearly a known one which is not set; any other key may be the project's own."""
    unset = [name for name in DEFAULTS if name not in document.tree]
    for name in map(str, document.tree):
        meant = [] if name in DEFAULTS else difflib.get_close_matches(name, unset, n=2, cutoff=_ALIKE)
        if meant:
            text = f"is no key; did you mean {' or '.join(map(repr, meant))}?"
            yield Problem(name, text, _place(document, path, name))


def _wrong_sections(document: Document, path: str) -> Iterator[Problem]:
    for name, default in DEFAULTS.items():
        value = document.tree.get(name)
        if isinstance(default, Mapping) and value is not None and not isinstance(value, Mapping):
            yield Problem(name, f"received {value!r}, expected keys with values", _place(document, path, name))


def _place(document: Document, path: str, name: str) -> str:
    return f"{path}, line {document.lines[name]}" if name in document.lines else path


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values laid over others; a section that is set to nothing is as if it were not there."""
    merged = copy.deepcopy(dict(below))
    for name, value in above.items():
        default = merged.get(str(name))
        if isinstance(default, dict) and (value is None or isinstance(value, Mapping)):
            merged[str(name)] = _over(default, value or {})
        else:
            merged[str(name)] = value
    return merged
