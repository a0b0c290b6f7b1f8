"""A script as a target of `everstep sweep`: values are options of its command line, each trial has its own directory.

    everstep sweep train.py lr=0.1,0.01 units=8,16      # python train.py --lr=0.1 --units=8, and so on

The script reads its options with argparse, or any other way, and calls `everstep.fit(…, model_dir=…)` or
`run_experiment`. That run is in the trial's directory, whatever directory the script names: `run/program.py`.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from everstep.errors import UsageError, nearest
from everstep.run import Redirection
from everstep.sweeps.space import Space, Values
from everstep.sweeps.target import SweepChoice, Target, TargetRequest, register_target

_UNKNOWN_OPTION = ("unrecognized arguments:", "No such option", "Unknown command line flag")
"""What argparse, click and absl say of an option that a script does not have."""


@register_target
class ScriptTarget(Target):
    """A Python script, by its path."""

    kind = "script"
    metric = ""

    @classmethod
    def choose(cls, request: TargetRequest) -> SweepChoice | None:
        """Returns the choice of a file whose name ends in `.py`."""
        if request.name is None or not request.name.endswith(".py"):
            return None
        if not (request.root / request.name).is_file():
            near = nearest(request.name, cls.names(request.root))
            raise UsageError("there is no such script", key="TARGET", received=request.name, remedy=near)
        return script_choice(request.name, request.space, request.fixed, request.root)

    @classmethod
    def names(cls, root: Path) -> list[str]:
        """Returns the scripts in the folder."""
        return [path.name for path in sorted(root.glob("*.py"))]

    def command(self, run_dir: Path, space: Space, values: Values, longer: Sequence[str] = ()) -> list[str]:
        """Returns the command of the script, `python train.py --epochs=5 --lr=0.1`."""
        options = [*_options(self.words), *_named({**space.fixed, **values}), *_options(longer)]
        return [sys.executable, self.name, *options]

    def variables(self, run_dir: Path) -> dict[str, str]:
        """Returns the variable by which the script's run is in the trial's directory."""
        return Redirection(str(run_dir.absolute())).variables()

    def refuses_all(self, error: str) -> bool:
        """Returns whether the script has no such option."""
        return any(words in error for words in _UNKNOWN_OPTION)

    def without_result(self, run_dir: Path) -> str:
        """Returns why a script that ended well has no result: it has kept no run."""
        if (run_dir / "run.json").is_file():
            return ""
        return f"{self.name} has kept no run: pass model_dir=… to everstep.fit"


def script_choice(name: str, space: Space, fixed: Sequence[str], root: Path) -> SweepChoice:
    """Returns the choice of a script; its options are known to nobody but itself, so that every value is accepted."""
    return SweepChoice(ScriptTarget(name, (), str(root)), space, fixed, lambda values: None, [ScriptTarget.metric])


def _options(words: Sequence[str]) -> Iterator[str]:
    """Yields `key=value` as options of a command line."""
    for word in words:
        if word.startswith("~"):
            raise UsageError("a script has no keys to remove", key="KEY=VALUES", received=word, remedy="omit it")
        key, _, value = word.partition("=")
        yield from _named({key: value})


def _named(values: Values) -> Iterator[str]:
    for key, value in values.items():
        yield f"--{key}={value}"
