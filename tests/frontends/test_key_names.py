"""Advice in every entry point: what errors and warnings tell users to set, users of that entry point can set.

Every remedy of the package is read from its source, rendered with the names of each entry point, and compared with
what the entry point accepts. So no list has to be kept when a remedy is added.
"""

import ast
import dataclasses
import functools
import inspect
import re
from pathlib import Path

import keras
import pytest

import everstep
from everstep.errors import Problem
from everstep.frontends import compiled
from everstep.frontends.components import keras_trainer
from everstep.frontends.components.config import ProjectConfig
from everstep.frontends.fit import fitting
from everstep.frontends.flow import settings
from everstep.frontends.flow import training as flow
from everstep.frontends.training import training

PACKAGE = Path(everstep.__file__).parent
SECTION_KEY = re.compile(r"(?<![\w./{])(?:trainer|task|runtime)\.[a-z]\w*(?![\w(])")
SHOWN = {"UsageError", "TrainingError", "DivergedError", "BadDataError", "Problem", "warning_text"}
PRINTED = {"debug", "info", "warning", "error", "say", "_say"}

SET_IN_CONFIGURATIONS = {
    "cli/resolve.py": "an example of an override",
    "config/overrides.py": "an example of an override",
    "engine/sharding.py": "a mesh is set in configurations",
    "loop/actions/weights.py": "actions are listed in configurations",
    "loop/config.py": "intervals are set in configurations",
    "loop/lengths.py": "epochs are converted, and schedules of learning rates set, in configurations",
    "recipes/gpt2.py": "a recipe is trained from a configuration",
    "recipes/hub/text_classifier.py": "a recipe is trained from a configuration",
    "run/announcements.py": "schedules of learning rates are set in configurations",
    "run/checkpoint_selection.py": "an option of the command line",
    "task/multitask/task.py": "several tasks are trained from configurations",
    "task/optim/layer_rates.py": "rates of layers are set in configurations",
}
"""Files whose errors only reach users who write these keys themselves, with the reason."""

ABOUT_A_VALUE_THAT_WAS_SET = {
    "engine/model_settings.py": "runtime.deterministic",
    "engine/mixed_precision.py": "runtime.mixed_precision_dtype",
    "run/profiling.py": "trainer.profile",
    "task/optim/loss_scale.py": "runtime.loss_scale",
}
"""Printed lines that begin with a key whose value the user has set, so that the user knows it."""


def arguments(*functions):
    return {name for function in functions for name in inspect.signature(function).parameters}


ENTRY_POINTS = {
    "fit": (fitting.NAMES, arguments(fitting.fit, keras.Model.compile)),
    "Training": (training.NAMES, arguments(training.Training.__init__, training.Training.run_train)),
    "components": (keras_trainer.NAMES, {field.name for field in dataclasses.fields(ProjectConfig)}),
    "flow": (flow.NAMES, set(settings.PARAMETERS)),
}
"""The names of keys in each entry point, and what its users can set."""

ONLY_ALLOWED = {"backend", "loss_weights", "model"}
"""Names in `allow_change=[…]` that are no arguments; no remedy may mention them."""


@dataclasses.dataclass(frozen=True)
class Shown:
    """One call that shows something: where it is, and the problem that it makes."""

    file: str
    line: int
    problem: Problem


def constants(tree):
    """Returns the literals of a module by their names."""
    found = {}
    for node in tree.body:
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if isinstance(target, ast.Name) and node.value is not None:
            found[target.id] = node.value
    return found


def text_of(node, known):
    """Returns a text, or a tuple of them, from its source; what is filled in is an ellipsis."""
    if isinstance(node, ast.Name):
        return text_of(known[node.id], known) if node.id in known else "…"
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Tuple):
        return tuple(text_of(part, known) for part in node.elts)
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.IfExp):
        return " ".join(str(text_of(part, known)) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))
    return "…"


def mentions_of(node, known):
    """Returns the mentioned keys, or None where they are computed."""
    node = known.get(node.id) if isinstance(node, ast.Name) else node
    if not isinstance(node, ast.Dict):
        return None
    keys = {text_of(name, known): text_of(key, known) for name, key in zip(node.keys, node.values, strict=True)}
    return None if any("…" in key or " " in key for key in keys.values()) else keys


@functools.cache
def sources():
    """Returns every module of the package by its path."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text("utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def calls(names):
    """Yields file, literals and every call of functions with these names."""
    for file, tree in sources().items():
        for node in ast.walk(tree):
            function = getattr(node, "func", None)
            if getattr(function, "id", getattr(function, "attr", "")) in names:
                yield file, constants(tree), node


def named_arguments(node, known):
    """Returns the arguments of a call by name, also those of a dictionary that is unpacked."""
    found = {word.arg: word.value for word in node.keywords if word.arg}
    for word in node.keywords:
        if word.arg is None and isinstance(word.value, ast.Name) and isinstance(known.get(word.value.id), ast.Dict):
            table = known[word.value.id]
            found |= {key.value: value for key, value in zip(table.keys, table.values, strict=True)}
    return found


@functools.cache
def advice():
    """Returns everything that mentions a key, or spells one out."""
    found = []
    for file, known, node in calls(SHOWN):
        words = named_arguments(node, known)
        place = 1 if getattr(node.func, "id", "") == "Problem" else 0  # a problem's first argument is its key
        reason = words.get("reason") or next(iter(node.args[place : place + 1]), None)
        mentions = mentions_of(words["mentions"], known) if "mentions" in words else {}
        texts = {
            name: text_of(part, known) if part is not None else ""
            for name, part in (("reason", reason), ("remedy", words.get("remedy")))
        }
        if mentions is None:
            assert file in SET_IN_CONFIGURATIONS or file in COMPUTED, (
                f"{file}:{node.lineno}: write the keys as literals"
            )
            continue
        found.append(
            Shown(file, node.lineno, Problem("", str(texts["reason"]), remedy=texts["remedy"], mentions=mentions))
        )
    return found


COMPUTED = {
    "errors.py": "passes mentions on",
    "frontends/components/building.py": "passes mentions on",
    "run/resume_checks.py": "the keys are those that allow_change takes",
}
"""Files whose mentions are not literals, with the reason."""


def test_the_scan_sees_what_is_mentioned():
    keys = {key for shown in advice() for key in shown.problem.mentions.values()}
    assert {"trainer.recovery_max_trials", "runtime.seed", "task.train_data.repeat", "runtime.loss_scale"} <= keys


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_no_remedy_names_a_key_that_the_entry_point_lacks(entry_point):
    names, accepted = ENTRY_POINTS[entry_point]
    wrong = []
    for shown in advice():
        if shown.file in SET_IN_CONFIGURATIONS:
            continue
        problem = shown.problem.renamed(names)
        text = str(problem)
        used = [key for name, key in problem.mentions.items() if f"{{{name}}}" in f"{problem.reason} {problem.remedy}"]
        unknown = [key for key in used if re.split(r"[.\[]", key)[0] not in accepted]
        if unknown or SECTION_KEY.search(text):
            wrong.append(f"{shown.file}:{shown.line}: {text}")
    assert not wrong, "make the remedy a tuple of alternatives, and give the key a name or None:\n" + "\n".join(wrong)


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_names_are_what_users_write(entry_point):
    names, accepted = ENTRY_POINTS[entry_point]
    roots = {part for name in names.values() if name for part in name.split(", ")}
    assert roots <= accepted | ONLY_ALLOWED
    assert compiled.NAMES.keys() <= names.keys(), "what users cannot set is None in every entry point"


def test_prose_mentions_keys_by_placeholders():
    """A key that is spelled out in a sentence keeps its name, whatever an entry point's users call it."""
    spelled = {
        f"{shown.file}:{shown.line}"
        for shown in advice()
        if shown.file not in SET_IN_CONFIGURATIONS
        and SECTION_KEY.search(f"{shown.problem.reason} {shown.problem.remedy}")
    }
    assert not spelled, f"use a placeholder and mentions={{…}}: {sorted(spelled)}"


def test_printed_lines_mention_keys_by_placeholders():
    """Warnings and other lines, too: `warning_text` fills them in."""
    spelled = []
    for file, known, node in calls(PRINTED):
        text = str(text_of(node.args[0], known)) if node.args else ""
        is_ours = not file.startswith(("cli/", "recipes/", "launch/")) and file not in SET_IN_CONFIGURATIONS
        if is_ours and SECTION_KEY.search(text) and not text.startswith(ABOUT_A_VALUE_THAT_WAS_SET.get(file, "?")):
            spelled.append(f"{file}:{node.lineno}: {text}")
    assert not spelled, f"use warning_text(…, mentions={{…}}): {spelled}"
