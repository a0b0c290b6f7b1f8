"""What the tab key completes in bash, zsh and fish: experiments, their keys, runs, and the names of options.

Typer has the protocols of the shells, and the scripts that `--install-completion` writes. A word is completed by a
process of its own, so that nothing here may load Keras or a backend.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import typer

ZSH_LOADED_BY_TAB = '\n[[ "$funcstack[1]" == _everstep ]] && _everstep_completion || true'
"""What ends the script of zsh: the first tab of a new shell loads it, and would otherwise complete nothing."""

Complete = Callable[[str], list[str]]
"""Returns the words that an incomplete one may become."""


def repair_zsh() -> None:
    """Lets zsh complete at the first tab, and show the apostrophes of a help; Typer's own script does neither.

    The names are private to Typer: a version that has others keeps what it does.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from typer import _completion_shared as shared
        from typer._completion_classes import ZshComplete

        if ZSH_LOADED_BY_TAB in ZshComplete.source_template:
            return
        script = shared._completion_scripts["zsh"].rstrip() + ZSH_LOADED_BY_TAB
        written = ZshComplete.format_completion

        def format_completion(self: Any, item: Any) -> str:
            # Typer doubles an apostrophe, which ends and begins the quotes that the word stands in.
            return written(self, item).replace("''", "'\\''")

        shared._completion_scripts["zsh"] = ZshComplete.source_template = script
        ZshComplete.format_completion = format_completion  # type: ignore[method-assign]


def backends(incomplete: str) -> list[str]:
    """Returns the backends that are installed."""
    from everstep.engine import backend

    return [name for name in backend.installed() if name.startswith(incomplete)]


def one_of(*words: str) -> Complete:
    """Returns what completes the name of an option's choice."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def experiments(context: typer.Context, incomplete: str) -> list[str]:
    """Returns the registered experiments; after `everstep config --config-file FILE` keys may come first."""
    from everstep import config

    config.load_entry_points()
    names = [name for name in config.experiments() if name.startswith(incomplete)]
    return names or keys(context, incomplete)


def keys(context: typer.Context, incomplete: str) -> list[str]:
    """Returns the keys of the experiment on the command line with their values: `trainer.train_steps=2000`."""
    from everstep import config
    from everstep.errors import UsageError
    from everstep.experiment_config import ExperimentConfig

    if _is_a_value(context, incomplete):
        return []
    config.load_entry_points()
    known: Any = ExperimentConfig()
    with contextlib.suppress(UsageError):  # one of the user's modules, or a run: the keys that all experiments have
        known = config.get_exp_config(str(context.params.get("experiment") or context.params.get("name") or ""))
    values = config.walk(known.as_dict())
    return [f"{key}={_shown(value)}" for key, value in values if key.startswith(incomplete)]


def _shown(value: Any) -> str:
    """Returns a value that can be edited in place; of a long one nothing."""
    from everstep.config import in_line

    return "" if value is None or value == "" or isinstance(value, list | dict | tuple) else in_line(value)


def _is_a_value(context: typer.Context, incomplete: str) -> bool:
    """Returns whether a value is being typed; bash hands over `a.b=3` as three words."""
    words: list[str] = context.params.get("overrides") or []
    *before, last = ["", "", *words]
    is_key = bool(last) and "=" not in last and before[-1] != "="
    return "=" in incomplete or last == "=" or is_key


def runs(incomplete: str) -> list[str]:
    """Returns the runs below `runs/`, with that prefix if it is typed; of a path elsewhere nothing: the shell does."""
    from everstep.run import run_names

    prefix = "runs/" if incomplete.startswith("runs/") else ""
    return [name for path in run_names() if (name := f"{prefix}{path}").startswith(incomplete)]


def run_or_experiment(context: typer.Context, incomplete: str) -> list[str]:
    """Returns runs, and experiments, which `everstep eval` takes with `--model-dir`."""
    return runs(incomplete) or experiments(context, incomplete)
