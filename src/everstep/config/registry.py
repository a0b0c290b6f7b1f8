"""Registries: tasks by their config class, experiments by their name."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from everstep.config.annotations import require_dataclass
from everstep.config.base import Config
from everstep.entry_points import load_modules, missing_companions
from everstep.errors import UsageError, nearest

Registered = TypeVar("Registered", bound=Callable[..., Any])

ENTRY_POINTS = "everstep.experiments"
"""Entry point group of installed packages; each names a module that registers experiments when imported."""

_tasks: dict[type[Config], Callable[..., Any]] = {}
_experiments: dict[str, Callable[[], Config]] = {}


def register_task(config_cls: type[Config]) -> Callable[[Registered], Registered]:
    """Makes the decorated Task class the one for configs of `config_cls` and its subclasses.

        @register_task(DigitsConfig)
        class DigitsTask(Task): ...

    A function that takes the config and keyword arguments and returns a task may be used in place of the class.

    Raises:
      UsageError: The config class has another task already.
    """
    if not (isinstance(config_cls, type) and issubclass(config_cls, Config)):
        raise UsageError("expected a config class", key="@register_task(...)", received=config_cls)
    require_dataclass(config_cls)

    def register(task: Registered) -> Registered:
        _require_free(_tasks.get(config_cls), task, f"a task for {config_cls.__qualname__}")
        _tasks[config_cls] = task
        return task

    return register


def bind(config_cls: type[Config]) -> Callable[[Registered], Registered]:
    """Makes the decorated class or function what `config.BUILDER(config, ...)` calls, for subclasses too.

        @bind(PretrainDataConfig)
        class PretrainLoader: ...

        loader = params.BUILDER(params)  # without knowing which class that is

    `get_task` prefers it to a task registered for the same class. Running the same definition again, as a notebook cell
    does, replaces it.

    Raises:
      UsageError: The config class is bound already.
    """
    if not (isinstance(config_cls, type) and issubclass(config_cls, Config)):
        raise UsageError("expected a config class", key="@bind(...)", received=config_cls)
    require_dataclass(config_cls)

    def register(builder: Registered) -> Registered:
        held = config_cls.__dict__.get("BUILDER")
        if held is not None and held.__func__ is builder:
            reason = f"{builder.__qualname__} is bound to {config_cls.__qualname__} twice"
            raise UsageError(reason, remedy="bind it once")
        _require_free(held and held.__func__, builder, f"a builder for {config_cls.__qualname__}")
        config_cls.BUILDER = staticmethod(builder)  # type: ignore[attr-defined]
        return builder

    return register


def get_task(config: Config, **kwargs: Any) -> Any:
    """Returns a new task for a config: that of its class, else that of the nearest base class.

    Raises:
      UsageError: No task is registered for any of them, nor bound to it.
    """
    for cls in type(config).__mro__:
        if "BUILDER" in cls.__dict__:
            return cls.__dict__["BUILDER"].__func__(config, **kwargs)
        if cls in _tasks:
            return _tasks[cls](config, **kwargs)
    name = type(config).__qualname__
    near = nearest(name, [cls.__qualname__ for cls in _tasks])
    remedy = f"put @register_task({name}) above its class; {near}"
    raise UsageError(f"no task is registered for {name}", remedy=remedy)


def register_experiment(name: str) -> Callable[[Registered], Registered]:
    """Registers the decorated function, which returns a new config, under a name such as `digits/mlp`.

    Names form a tree: where `digits/mlp` is an experiment, `digits/mlp/wide` cannot be one. Running the same
    definition again, as a notebook cell or a reload does, replaces it.

    Raises:
      UsageError: The name is not one, or is taken.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[\w.+-]+(/[\w.+-]+)*", name):
        reason = "an experiment's name has parts of letters, digits . _ + - with / between"
        raise UsageError(reason, key="@register_experiment(...)", received=name)

    def register(factory: Registered) -> Registered:
        _require_free(_experiments.get(name), factory, f"experiment {name!r}")
        for other in _experiments:
            if other.startswith(f"{name}/") or name.startswith(f"{other}/"):
                raise UsageError(f"experiment {name!r} cannot be beside {other!r}: one is inside the other")
        _experiments[name] = factory
        return factory

    return register


def get_exp_config(name: str) -> Any:
    """Returns a new config of the experiment; installed packages are loaded when the name is not known yet.

    Raises:
      UsageError: There is no such experiment, or its function did not return a config.
    """
    if name not in _experiments:
        load_entry_points()
    if name not in _experiments:
        hint = "one of your own is known once its module is imported: --import my.module"
        gone = sorted(set(missing_companions(ENTRY_POINTS).values()))
        without = f", and this installation is without {', '.join(gone)}" if gone else ""
        raise UsageError(f"no experiment {name!r}{without}", remedy=f"{nearest(name, _experiments)} ({hint})")
    config = _experiments[name]()
    if not isinstance(config, Config):
        raise UsageError("must return a config", key=f"experiment {name!r}", received=config)
    return config


def register(collection: dict[Any, Any], key: Any) -> Callable[[Registered], Registered]:
    """Puts the decorated class or function into a registry of your own, a dict.

        MODELS = {}

        @register(MODELS, "vision/resnet")
        def resnet(config): ...

        lookup(MODELS, "vision/resnet")(config)

    Args:
      collection: The registry. Text with `/` in it makes dicts in dicts.
      key: The key; one that is not text is used as it is.

    Raises:
      UsageError: The key is taken, or leads through something that is registered.
    """

    def put(item: Registered) -> Registered:
        *parents, name = key.split("/") if isinstance(key, str) else [key]
        place = collection
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise UsageError(f"{key!r} cannot be registered below {parent!r}, which is registered itself")
        if name in place:
            raise UsageError(f"{key!r} is registered already")
        place[name] = item
        return item

    return put


def lookup(collection: Mapping[Any, Any], key: Any) -> Any:
    """Returns what `register` put under a key; for the beginning of keys, the dict of those below it.

    Raises:
      UsageError: There is no such key; names the nearest ones.
    """
    place: Any = collection
    for part in key.split("/") if isinstance(key, str) else [key]:
        if not isinstance(place, Mapping) or part not in place:
            known = place if isinstance(place, Mapping) else ()
            remedy = f"{nearest(str(part), map(str, known))} (what registers it has to be imported before)"
            raise UsageError(f"nothing is registered under {key!r}", remedy=remedy)
        place = place[part]
    return place


def experiments() -> dict[str, str]:
    """Returns every registered experiment with the first line of its docstring, sorted by name."""
    docs = {name: (factory.__doc__ or "").strip() for name, factory in sorted(_experiments.items())}
    return {name: doc.partition("\n")[0].strip() for name, doc in docs.items()}


def load_entry_points() -> None:
    """Imports the experiments of installed packages, once each; a broken one is a warning in the log."""
    load_modules(ENTRY_POINTS, "experiments")


def _require_free(held: Callable[..., Any] | None, new: Callable[..., Any], what: str) -> None:
    """Refuses a second registration, unless it is the same definition executed again."""
    if held is not None and held is not new and _definition(held) != _definition(new):
        raise UsageError(f"{what} is registered already, by {'.'.join(_definition(held))}")


def _definition(item: Callable[..., Any]) -> tuple[str, str]:
    return getattr(item, "__module__", ""), getattr(item, "__qualname__", repr(item))
