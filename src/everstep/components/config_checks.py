"""What a run needs of its configuration, looked at before anything is built."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from everstep.components.config_struct import ConfigStruct
from everstep.config.problem import ConfigError, Problem, show

CLASSES = ("data_loader_class", "preprocessor_class", "model_builder_class", "evaluator_class")
"""The keys that name the classes every project has; `augmentor_class` is one more where data is augmented."""

_REPEATED_KEY = re.compile(r"\s*(\w+_class)\s*:\s*(\S.*?)\s*")


def check_config(config: ConfigStruct) -> None:
    """Refuses a configuration that no run can be made of.

    Raises:
      ConfigError: With one line for every key that is missing or wrong.
    """
    problems = [*_missing(config), *_wrong(config)]
    if problems:
        raise ConfigError([Problem(problem.path, problem.text, config.place(problem.path)) for problem in problems])


def require_epochs(config: ConfigStruct) -> int:
    """Returns how many epochs to train.

    Raises:
      ConfigError: The key is not set.
    """
    if config.epochs is None:
        raise ConfigError([Problem("epochs", "missing; how often is the training data gone through?", config.origin)])
    return int(config.epochs)


def _missing(config: ConfigStruct) -> Iterator[Problem]:
    if config.src_code_path is None:
        yield Problem("src_code_path", "missing; name the folder of the project's classes, such as 'src'")
    for key in CLASSES:
        if config[key] is None:
            yield Problem(key, f"missing; name the class by its module, such as {_EXAMPLES[key]!r}")
    if config.project_name is None:
        yield Problem("project_name", "missing; say what the project is called, and its experiment on MLflow")
    for key in ("do_train_augmentation", "do_validation_augmentation"):
        if config[key] is True and config.augmentor_class is None:
            yield Problem("augmentor_class", f"missing, but {key} is true: name the class, or leave {key} out")
            return


def _wrong(config: ConfigStruct) -> Iterator[Problem]:
    for key, (is_right, expected) in _FORMS.items():
        value = _at(config, key)
        if value is not None and not is_right(value):
            yield Problem(key, f"received {show(value)}, expected {expected}")
    for key in (*CLASSES, "augmentor_class"):
        yield from _wrong_class(key, config[key])


def _wrong_class(key: str, value: Any) -> Iterator[Problem]:
    if value is None:
        return
    if isinstance(value, str) and (found := _REPEATED_KEY.fullmatch(value)):
        yield Problem(key, f"received {value!r}, which has a key in it; probably meant: {key}: {found[2]}")
    elif not isinstance(value, str) or value.count(".") < 1 or not all(p.isidentifier() for p in value.split(".")):
        yield Problem(key, f"received {show(value)}, expected a module and a class in it, such as {_EXAMPLES[key]!r}")


def _at(config: ConfigStruct, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, ConfigStruct) else None
    return value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


_COUNT = (_is_count, "a whole number of at least 1")
_FLAG = (lambda value: isinstance(value, bool), "true or false")
_TEXT = (_is_text, "a text that is not empty (quote what looks like a number)")

_FORMS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("epochs", "batch_size", "input_height", "input_width", "input_channels"), _COUNT),
    "seed": (_is_seed, "a whole number from 0 to 4294967295"),
    **dict.fromkeys(("do_train_augmentation", "do_validation_augmentation"), _FLAG),
    **dict.fromkeys(("src_code_path", "data_dir", "project_name", "export.metric"), _TEXT),
    "export.mode": (lambda value: value in ("min", "max"), "'min' or 'max'"),
}

_EXAMPLES = {
    "data_loader_class": "dataset.DataLoader",
    "preprocessor_class": "preprocessing.Preprocessor",
    "model_builder_class": "models.ModelBuilder",
    "evaluator_class": "evaluation.Evaluator",
    "augmentor_class": "augmentation.Augmentor",
}
