"""Gin bindings from `--gin-file` and `--gin-params`: read first, then applied to configs and to configurables.

    bindings = gin_bindings.read(["wide.gin"], ["TrainerConfig.train_steps = 100"])
    bindings.backend()         # before Keras is imported
    bindings.import_modules()  # before the experiment is looked up
    bindings.layers(config)    # the bindings that name fields of configs
    bindings.apply()           # the others, for `@gin.configurable` functions and classes

A config class is named as gin names configurables, by the end of its dotted name: `TrainerConfig`,
`config.TrainerConfig`, `everstep.loop.config.TrainerConfig`; or as its package exports it, `everstep.TrainerConfig`. A
class stands for its subclasses too. The field is set wherever the experiment has such a config; a scope restricts it:
`train_data/DataConfig.global_batch_size = 8`.

Imports in gin files, and what dynamic registration names through them, are checked against the allowlist
(`everstep.config.allowed`). Gin itself, which keeps its bindings for the whole process, only receives what has passed.
"""

import copy
import dataclasses
import inspect
import itertools
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import Config, redaction
from everstep.config import Layer, allowed, field_names, load_entry_points, unknown_key, walk_configs
from everstep.errors import Problem, UsageError, nearest, problems_under, show
from everstep.model_garden.gin.reading import NEXT_FILE, Binding, Context, GinReader, Macro, Reference, names_in

_RUNTIME = "everstep.engine.config.RuntimeConfig"


def read(
    files: Iterable[str | os.PathLike[str]] = (), params: Iterable[str] = (), stored: Iterable[tuple[str, str]] = ()
) -> "GinBindings":
    """Reads bindings; later ones win.

    Args:
      files: Gin files; an `include` in them is relative to the file it is in.
      params: Statements, one or more in each text; they come after the files.
      stored: What `GinBindings.text` once returned, each with where it was kept; it comes before the files.

    Raises:
      UsageError: A file cannot be read, something has bad syntax or imports what the project does not allow, or
        gin is not installed.
    """
    reader, here = GinReader(), Path()
    for text, place in stored:
        reader.read_text(text, place, lambda _, place=place: place, here)  # type: ignore[misc]
    for path in files:
        reader.read_file(Path(path))
    for text in params:
        origin = f"--gin-params {show(text)}"
        reader.read_text(text, origin, lambda _, origin=origin: origin, here)  # type: ignore[misc]
    redaction.learn({binding.key: binding.value for binding in reader.bindings})
    return GinBindings(reader.bindings, reader.contexts)


class GinBindings:
    """The bindings in gin files and parameters."""

    def __init__(self, bindings: Sequence[Binding] = (), contexts: Sequence[Context] = ()) -> None:
        """Takes what a `GinReader` found: its `bindings` and `contexts`."""
        self._bindings = list(bindings)
        self._contexts = list(contexts)
        self._macros = {binding.macro: binding.value for binding in bindings if binding.macro is not None}

    def backend(self) -> str | None:
        """Returns what is bound to `RuntimeConfig.backend`; anything but text is left to the validator."""
        found = None
        for binding in sorted(self._bindings, key=lambda one: bool(one.scope)):
            selector = binding.context.full_name(binding.selector)
            if binding.argument == "backend" and is_meant(selector, _RUNTIME):
                found = self._plain(binding)
        return found if isinstance(found, str) else None

    def import_modules(self) -> None:
        """Imports the modules that the files import.

        Raises:
          UsageError: One is not allowed, or not there.
        """
        for context in self._contexts:
            for module in context.imports.values():
                allowed.import_allowed(module)

    def layers(self, config: Config) -> list[Layer]:
        """Returns a layer for each binding that names a field of a config class.

        Args:
          config: The experiment's config: a field is set wherever it has such a class.

        Raises:
          UsageError: Everything wrong in all of them, each with its origin.
        """
        return layers(config, [binding for binding in self._bindings if _names_config(binding)], self._macros)

    def apply(self) -> None:
        """Hands gin the bindings that name no config class; call it when the user's modules are imported.

        Raises:
          UsageError: Everything wrong in all of them: unknown configurables and arguments, with the nearest
            names; references to what the project does not allow.
        """
        rest = list(self._rest())
        if not rest and not any(context.imports for context in self._contexts):
            return
        self.import_modules()
        problems = bind(rest)
        if problems:
            raise UsageError(problems)

    def text(self) -> str:
        """Returns what a stored config lacks: the imports, the macros, the bindings that name no config class.

        Reading the text gives the same bindings, so that a run can be repeated.
        """
        parts: list[tuple[Context | None, list[str]]] = [(None, self._plain_imports())]
        kept = _last_ones(self._rest())
        for context, group in itertools.groupby(kept, lambda one: one.context if one.context.is_dynamic else None):
            if context is not None:
                parts.append((context, context.header()))
            elif parts[-1][0] is not None:
                parts.append((None, []))
            parts[-1][1].extend(f"{one.key} = {one.text}" for one in group)
        return f"{NEXT_FILE}\n".join("".join(f"{line}\n" for line in lines) for _, lines in parts if lines)

    def _plain_imports(self) -> list[str]:
        """Returns the imports that must be there for themselves, not only to name configurables."""
        naming = [one.context for one in self._rest() if one.context.is_dynamic]
        return list(dict.fromkeys(line for one in self._contexts if one not in naming for line in one.imports))

    def _plain(self, binding: Binding) -> Any:
        try:
            return plain_value(binding.value, self._macros)
        except UsageError as error:
            problems = problems_under(binding.key, error)
            raise UsageError([dataclasses.replace(problem, origin=binding.origin) for problem in problems]) from None

    def _rest(self) -> Iterator[Binding]:
        return (binding for binding in self._bindings if not _names_config(binding))


def _names_config(binding: Binding) -> bool:
    """Returns whether a binding is for a config class, and not for a configurable that happens to share its name."""
    if binding.macro is not None:
        return False
    selector = binding.context.full_name(binding.selector)
    if not any(is_meant(selector, full_name(cls)) for cls in known_classes()):
        return False
    import gin

    try:
        configurable = gin.get_configurable(binding.selector)
    except (KeyError, ValueError):
        return True
    return isinstance(configurable, type) and issubclass(configurable, Config)


def _last_ones(bindings: Iterable[Binding]) -> list[Binding]:
    """Returns the bindings without those that a later one of the same name replaces."""
    kept: dict[tuple[Any, ...], Binding] = {}
    for one in bindings:
        name = (one.context.is_dynamic, one.scope, one.context.full_name(one.selector), one.argument)
        kept.pop(name, None)
        kept[name] = one
    return list(kept.values())


# -- fields of configs ----------------------------------------------------------------------------------------------


_INDEX = re.compile(r"\[\d+\]")


def known_classes(base: type[Config] = Config) -> Iterator[type[Config]]:
    """Yields the config classes of this process, without the base classes in `everstep.config`."""
    for cls in base.__subclasses__():
        if _is_named(cls):
            yield cls
        yield from known_classes(cls)


def is_meant(selector: str, full_name: str) -> bool:
    """Returns whether a selector names the class with this full dotted name."""
    exported = f"{full_name.partition('.')[0]}.{full_name.rpartition('.')[2]}"
    return f".{full_name}".endswith(f".{selector}") or selector == exported


def full_name(cls: type) -> str:
    """Returns a class's dotted name, from its top-level package on."""
    return f"{cls.__module__}.{cls.__qualname__}"


def plain_value(value: Any, macros: Mapping[str, Any], above: tuple[str, ...] = ()) -> Any:
    """Returns a value with the macros in it replaced by what they stand for.

    Raises:
      UsageError: There is no such macro, it refers to itself, or there is a reference.
    """
    if isinstance(value, Reference):
        raise UsageError("a config holds plain values, no references", received=value)
    if isinstance(value, Macro):
        if value.name not in macros:
            raise UsageError(f"there is no macro {value}", remedy=nearest(value.name, macros))
        if value.name in above:
            raise UsageError(f"the macro {value} refers to itself")
        return plain_value(macros[value.name], macros, (*above, value.name))
    if isinstance(value, Mapping):
        return {plain_value(k, macros, above): plain_value(v, macros, above) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain_value(item, macros, above) for item in value)
    return value


def layers(config: Config, bindings: Iterable[Binding], macros: Mapping[str, Any]) -> list[Layer]:
    """Returns a layer for each binding, later ones winning; more of a scope wins over less of it, as in gin.

    Raises:
      UsageError: Everything wrong in all of them: no such class or place in this config, no such field, values
        that are not plain.
    """
    nodes = list(walk_configs(config))
    found, problems = [], []
    for binding in sorted(bindings, key=lambda one: one.scope.count("/") + bool(one.scope)):
        try:
            value = plain_value(binding.value, macros)
            paths = _paths(binding, nodes, value)
            found.append(Layer(binding.origin, _tree(paths, binding.argument, value)))
        except UsageError as error:
            wrong = [dataclasses.replace(problem, origin=binding.origin) for problem in error.problems]
            problems += [problem if problem.key else problem.under(binding.key) for problem in wrong]
    if problems:
        raise UsageError(problems)
    return found


def _is_named(cls: type) -> bool:
    return not cls.__module__.startswith("everstep.config.")


def _paths(binding: Binding, nodes: Sequence[tuple[str, Config]], value: Any) -> list[str]:
    """Returns the places of the configs that a binding sets a field of."""
    meant = [(path, node) for path, node in nodes if _classes(binding, node)]
    _require_one_class(binding, [node for _, node in meant])
    if not meant:
        names = {cls.__name__ for _, node in nodes for cls in type(node).__mro__ if _is_config(cls)}
        raise UsageError(f"this experiment has no {binding.selector}", remedy=nearest(binding.selector, names))
    placed = [(path, node) for path, node in meant if _is_in_scope(path, binding.scope)]
    if not placed:
        places = [path.replace(".", "/") for path, _ in meant if path]
        raise UsageError(f"no {binding.selector} is at {binding.scope!r}", remedy=nearest(binding.scope, places))
    having = [path for path, node in placed if binding.argument in field_names(node)]
    if not having:
        path, node = placed[0]
        raise UsageError([unknown_key(node, binding.argument, value).under(path)])
    return having


def _classes(binding: Binding, node: Config) -> list[type]:
    """Returns the classes of a config, itself or a base, that a binding names."""
    selector = binding.context.full_name(binding.selector)
    return [cls for cls in type(node).__mro__ if _is_config(cls) and is_meant(selector, full_name(cls))]


def _is_config(cls: type) -> bool:
    return issubclass(cls, Config) and _is_named(cls)


def _require_one_class(binding: Binding, nodes: Sequence[Config]) -> None:
    """Refuses a name that matches classes of which none is the base of the others."""
    named = {cls for node in nodes for cls in _classes(binding, node)}
    if named and not any(all(issubclass(cls, base) for cls in named) for base in named):
        full = " or ".join(sorted(map(full_name, named)))
        raise UsageError(f"{binding.selector} may be {full}", remedy="write more of its name")


def _is_in_scope(path: str, scope: str) -> bool:
    """Returns whether a place is the one that a scope names, or inside it."""
    inside, names = f"/{_INDEX.sub('', path).replace('.', '/')}/", f"/{scope}/"
    return not scope or names in inside


def _tree(paths: Sequence[str], name: str, value: Any) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path in paths:
        node = tree
        for key in path.split(".") if path else ():
            node = node.setdefault(key, {})
        node[name] = copy.deepcopy(value)
    return tree


# -- gin's own state, which lives as long as the process ------------------------------------------------------------


_BUILTINS = {"gin.constant", "gin.macro", "gin.singleton"}
_UNKNOWN = re.compile(r"No configurable matching (?:reference )?'@?(?:.*/)?([\w.]+)")


def bind(bindings: Sequence[Binding]) -> list[Problem]:
    """Hands bindings to gin, in order; returns everything wrong with them, each with its origin."""
    import gin

    rules = allowed.Allowed.here()
    with gin.unlock_config():
        problems = [problem for binding in bindings for problem in _bind(gin, binding, rules)]
        problems = problems or [problem for binding in bindings for problem in _open_macros(gin, binding)]
        return problems or _finalize(gin)


def operative_config() -> str | None:
    """Returns the bindings that gin configurables have used in this process, as gin text; None if gin is not in use."""
    gin = sys.modules.get("gin")
    if gin is None:
        return None
    text = gin.operative_config_str()
    return text if text or gin.config_str() else None


def clear() -> None:
    """Makes gin forget all bindings, and what was used of them."""
    gin = sys.modules.get("gin")
    if gin is not None:
        gin.clear_config()


def _bind(gin: Any, binding: Binding, rules: allowed.Allowed) -> Iterator[Problem]:
    try:
        if binding.context.is_dynamic:
            _require_allowed_names(binding, rules)
        gin.parse_config([*binding.context.header(), f"{binding.key} = {binding.text}"])
    except UsageError as error:
        for problem in problems_under(binding.key, error):
            yield dataclasses.replace(problem, origin=binding.origin)
    except Exception as error:  # gin raises exceptions of any type
        reason = str(error).partition("\n")[0].removesuffix(".")
        yield Problem(binding.key, reason, binding.origin, remedy=_remedy(gin, reason, binding))


def _require_allowed_names(binding: Binding, rules: allowed.Allowed) -> None:
    """Refuses what dynamic registration would make callable, unless the allowlist has it."""
    references = [one.name.rpartition("/")[2] for one in names_in(binding.value) if isinstance(one, Reference)]
    for selector in [*references, *([] if binding.macro is not None else [binding.selector])]:
        symbol = selector.partition(".")[0]
        if symbol in binding.context.symbols:
            allowed.resolve(binding.context.full_name(selector), rules)
        elif selector not in _BUILTINS:
            raise UsageError(f"{symbol!r} is not imported in this file, which uses dynamic registration")


def _remedy(gin: Any, reason: str, binding: Binding) -> str:
    """Returns the nearest names, where gin's message is about an unknown one."""
    if unknown := _UNKNOWN.match(reason):
        names = {known.name for _, known in gin.config._REGISTRY.items()} | {cls.__name__ for cls in known_classes()}
        near = nearest(unknown[1], names - {"constant", "macro", "singleton"})
        return f"{near} (one of your own is known once its module is imported: --import my.module)"
    if "a parameter named" not in reason:
        return ""
    taken = inspect.signature(gin.get_configurable(binding.selector)).parameters
    return nearest(binding.argument, [name for name in taken if name != "self"])


def _open_macros(gin: Any, binding: Binding) -> Iterator[Problem]:
    """Yields the macros in a binding that nothing gives a value."""
    for one in names_in(binding.value):
        if isinstance(one, Macro) and not gin.config._CONSTANTS.matching_selectors(one.name):
            try:
                gin.query_parameter(repr(one))
            except ValueError:
                yield Problem(binding.key, f"there is no macro {one}", binding.origin, remedy=f"write {one.name} = …")


def _finalize(gin: Any) -> list[Problem]:
    """Lets gin and the user's hooks check everything, such as required arguments without a value."""
    try:
        gin.finalize()
    except Exception as error:
        return [Problem("gin", str(error).partition("\n")[0])]
    return []


# -- for code -------------------------------------------------------------------------------------------------------


def parse_config_files_and_bindings(
    config_files: Iterable[str | os.PathLike[str]] | None, bindings: Iterable[str] | None = None
) -> None:
    """Applies the bindings in files, and then single ones, to the configurables they name.

    It replaces the function of the same name in the package `gin`, with stricter reading: nothing is imported that
    the project does not allow, and everything wrong is reported at once. Bindings of config fields, such as
    `TrainerConfig.train_steps`, are left to `parse_configuration`.

    Raises:
      UsageError: A file cannot be read, or everything wrong in the bindings, each with its line.
    """
    load_entry_points()  # bindings may name fields of their configs
    found = read(config_files or (), bindings or ())
    found.import_modules()
    found.apply()
