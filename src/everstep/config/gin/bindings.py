"""Gin: bindings from `--gin-file` and `--gin-params`, read without running anything.

    bindings = gin_bindings.read(["wide.gin"], ["TrainerConfig.train_steps = 100"])
    bindings.backend()         # before Keras is imported
    bindings.import_modules()  # before the experiment is looked up
    bindings.layers(config)    # the bindings that name fields of configs
    bindings.apply()           # the others, for `@gin.configurable` functions and classes

Imports in gin files, and what dynamic registration names through them, are held against the allowlist
(`everstep.config.allowed`). Gin itself, which keeps its bindings for the whole process, is only ever given what has
passed.
"""

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction
from everstep.config import allowed
from everstep.config.base import Config
from everstep.config.gin.fields import full_name, is_meant, known_classes, layers, plain_value
from everstep.config.gin.files import NEXT_FILE, Reader
from everstep.config.gin.process import bind, clear, operative_config
from everstep.config.gin.syntax import Binding, Context
from everstep.config.layer import Layer
from everstep.config.problem import ConfigError, Problem, show
from everstep.errors import UsageError

_RUNTIME = "everstep.engine.config.RuntimeConfig"

__all__ = ["GinBindings", "clear", "operative_config", "read"]


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
    reader, here = Reader(), Path()
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
    """What gin files and parameters say."""

    def __init__(self, bindings: Sequence[Binding] = (), contexts: Sequence[Context] = ()) -> None:
        """Keeps what a `Reader` found."""
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
          ConfigError: Everything wrong in all of them, each with its origin.
        """
        return layers(config, [binding for binding in self._bindings if _names_config(binding)], self._macros)

    def apply(self) -> None:
        """Hands gin the bindings that name no config class; call it when the user's modules are imported.

        Raises:
          ConfigError: Everything wrong in all of them: unknown configurables and arguments, with the nearest
            names; references to what the project does not allow.
        """
        rest = list(self._rest())
        if not rest and not any(context.imports for context in self._contexts):
            return
        self.import_modules()
        problems = bind(rest)
        if problems:
            raise ConfigError(problems)

    def text(self) -> str:
        """Returns what a stored config does not say: the imports, the macros, the bindings that name no config class.

        Reading it again gives the same, so that a run can be repeated.
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
            raise ConfigError([Problem(binding.key, str(error), binding.origin)]) from None

    def _rest(self) -> Iterator[Binding]:
        return (binding for binding in self._bindings if not _names_config(binding))


def _names_config(binding: Binding) -> bool:
    """Tells whether a binding is for a config class, and not for a configurable that happens to share its name."""
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
