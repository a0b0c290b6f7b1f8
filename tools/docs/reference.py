"""The tables of the reference, written from the code: configuration keys, commands and their options.

A page of docs/reference/ has a line `<!-- generated: NAME -->`; the site shows the table in its place. Nothing is
copied by hand, and nothing has to be regenerated after a change.

    python -m tools.docs.reference configuration     # prints a table
"""

import dataclasses
import re
import sys
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, Union

from everstep.cli.commands import groups, load
from everstep.config import Config, get_exp_config, load_entry_points, registry
from everstep.config.base import OneOfConfig, class_defaults
from everstep.config.schema import field_docs
from everstep.experiment_config import ExperimentConfig
from everstep.loop.config import ProgressiveTrainerConfig
from everstep.projects.components.config import ProjectConfig
from everstep.projects.flow.settings import TaskParams
from everstep.task.config import TaskConfig

KEY = re.compile(r"^\| `([\w.]+)`", re.MULTILINE)
MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


class Key(typing.NamedTuple):
    """A row of a table of keys."""

    path: str
    type: str
    default: str
    meaning: str
    may_change: bool


# -- configuration ---------------------------------------------------------------------------------------------------


def sections(config: Config, prefix: str) -> Iterator[tuple[str, list[Key]]]:
    """Yields each section of a configuration with its own keys: the section's path, and its rows."""
    docs = field_docs(type(config))
    hints = typing.get_type_hints(type(config), include_extras=True)
    own, inner = [], []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        path = f"{prefix}.{field.name}" if prefix else field.name
        held = value if isinstance(value, Config) else _possible(config, field.name, hints[field.name])
        if held is not None:
            inner.append((held, path))
        free = field.name in type(config)._may_change
        default = _default(value, held)
        own.append(Key(path, _type(hints[field.name]), default, _one_line(docs.get(field.name, "")), free))
    if own:
        yield prefix, own
    for held, path in inner:
        yield from sections(held, path)


def _possible(config: Config, name: str, annotation: Any) -> Config | None:
    """Returns the section that a key without a value could hold, so that its keys are listed, too."""
    if isinstance(config, OneOfConfig) and isinstance(branch := class_defaults(type(config)).get(name), Config):
        return branch
    for argument in typing.get_args(annotation):
        if isinstance(argument, type) and issubclass(argument, Config) and dataclasses.fields(argument):
            return argument()
    return None


def _type(annotation: Any) -> str:
    """Returns a type as people write it: `int or null`, `a, b or c`."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is type(None):
        return "null"
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(argument) for argument in arguments)
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return "section"
    if origin in (list, tuple, set, frozenset):
        inner = [_type(argument) for argument in arguments if argument is not Ellipsis]
        return f"list of {', '.join(inner)}" if inner else "list"
    if origin is dict:
        return f"mapping to {_type(arguments[1])}"
    names = {str: "text", bool: "true, false", int: "int", float: "float", Any: "any", dict: "mapping", list: "list"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(value: Any, held: Config | None) -> str:
    if held is not None:
        return "see below"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"`{value}`" if value != "" else '`""`'


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _table(rows: list[Key]) -> Iterator[str]:
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    for row in rows:
        free = " *" if row.may_change else ""
        kind, default = row.type.replace("|", "\\|"), row.default.replace("|", "\\|")
        yield f"| `{row.path}`{free} | {kind} | {default} | {row.meaning} |"
    yield ""


def configuration() -> str:
    """Returns the keys of an experiment, section by section, and those that shipped experiments add."""
    lines: list[str] = []
    seen: dict[tuple[Key, ...], str] = {}
    for prefix, rows in experiment_sections():
        like = seen.setdefault(tuple(row._replace(path=row.path.removeprefix(prefix)) for row in rows), prefix)
        table = _table(rows) if like == prefix else [f"The same keys as [{like}](#{like.replace('.', '')}).", ""]
        level = "####" if prefix.count(".") > 1 else "###"  # the site's table of contents ends with the third
        lines += [f"{level} {prefix}", "", *table] if prefix else []
    lines += ["## Keys of the shipped experiments", ""]
    for names, rows in task_sections():
        lines += [f"### {', '.join(names)}", "", *_table(rows)]
    lines += ["## A components project: `runs/NAME/config.yaml`", ""]
    for prefix, rows in sections(ProjectConfig(), ""):
        lines += [f"### {prefix or 'Sections'}", "", *_table(rows)]
    lines += ["## A flow: `config/parameters.yaml`, a block per task", ""]
    for _, rows in sections(TaskParams(), ""):
        lines += _table(rows)
    return "\n".join(lines)


def experiment_sections() -> list[tuple[str, list[Key]]]:
    """Returns the sections of every experiment, those of stages included."""
    config = ExperimentConfig(trainer=ProgressiveTrainerConfig())
    return list(sections(config, ""))


def shipped_experiments() -> list[str]:
    """Returns the experiments that ship; a program that has imported others has them in its registry, too."""
    load_entry_points()
    return [name for name in registry.experiments() if registry._experiments[name].__module__.startswith("everstep.")]


def task_sections() -> list[tuple[list[str], list[Key]]]:
    """Returns what each kind of shipped task adds to `task`: the experiments, and the keys."""
    common = {row.path for _, rows in sections(TaskConfig(), "task") for row in rows}
    found: dict[type, tuple[list[str], list[Key]]] = {}
    for name in shipped_experiments():
        task = get_exp_config(name).task
        rows = [row for _, part in sections(task, "task") for row in part if row.path not in common]
        found.setdefault(type(task), ([], rows))[0].append(name)
    return [entry for entry in found.values() if entry[1]]


# -- commands --------------------------------------------------------------------------------------------------------


def commands() -> str:
    """Returns every command with its arguments and options, from the command line's own definitions."""
    lines: list[str] = []
    for title, group in groups().items():
        lines += [f"## {title}", ""]
        for name in group:
            for words, command in _commands(name, load(name)):
                lines += [f"### everstep {words}", "", *_command(command)]
    return "\n".join(lines)


def _commands(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yields a command, and those below it."""
    inner = getattr(command, "commands", {})
    if not inner or getattr(command, "invoke_without_command", False):
        yield words, command
    for name, below in inner.items():
        yield from _commands(f"{words} {name}", below)


def _command(command: Any) -> Iterator[str]:
    help_text = (command.help or "").replace("\b", "").replace("\f", "")
    yield " ".join(part for part in help_text.split("\n\n", 1)[0].split())
    yield ""
    rows = [row for row in (_parameter(one) for one in command.params) if row]
    if rows:
        yield from ["| argument or option | meaning | default |", "|---|---|---|", *rows, ""]


def _parameter(one: Any) -> str:
    if getattr(one, "hidden", False) or one.name == "help":
        return ""
    if one.param_type_name == "argument":
        name = f"`{one.metavar or one.name.upper()}{'' if one.nargs == 1 else '…'}`"
    else:
        metavar = "" if getattr(one, "is_flag", False) else f" {one.metavar or one.type.name.upper()}"
        name = ", ".join(f"`{option}{metavar}`" for option in [*one.opts, *one.secondary_opts])
    default = one.default if one.default not in (None, False, (), []) and not callable(one.default) else ""
    default = f"`{getattr(default, 'value', default)}`" if default != "" else ""
    return f"| {name} | {_one_line(getattr(one, 'help', '') or '')} | {default} |"


GENERATED = {"configuration": configuration, "commands": commands}


def filled(markdown: str) -> str:
    """Returns a page with its tables in the place of the marks; long keys may be broken after a dot."""
    return MARK.sub(lambda found: KEY.sub(_breakable, GENERATED[found[1]]()), markdown)


def _breakable(found: re.Match[str]) -> str:
    return f"| <code>{found[1].replace('.', '.<wbr>')}</code>"


if __name__ == "__main__":
    print(GENERATED[sys.argv[1]]())
