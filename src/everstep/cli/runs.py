"""`everstep runs`: lists, shows, watches, compares or removes runs. Each command has its own file, `runs_….py`."""

import difflib
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from typer.core import TyperGroup

from everstep.checkpoint.remote import is_url
from everstep.cli.command import new_app, words_for
from everstep.cli.runs_compare import compare
from everstep.cli.runs_list import list_runs
from everstep.cli.runs_rm import remove
from everstep.cli.runs_show import show
from everstep.cli.runs_sync import sync
from everstep.cli.runs_tree import tree
from everstep.cli.runs_watch import watch_runs
from everstep.errors import UsageError
from everstep.run import named_run

_ALSO_TYPED = {
    **words_for("list", "ls ps all"),
    **words_for("show", "info status describe get inspect cat"),
    **words_for("compare", "diff"),
    **words_for("rm", "remove delete del clean"),
    **words_for("watch", "log logs tail follow monitor attach"),
    **words_for("sync", "upload push"),
    **words_for("tree", "lineage graph forks parents"),
}
"""Words that people type in place of a command."""


class RunsGroup(TyperGroup):
    """`runs ROOT` is short for `runs list ROOT`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Inserts the command `list` if none is given.

        Raises:
          UsageError: The first word is neither a command nor a place, and a command is like it.
        """
        named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        if args and not named and not ctx.resilient_parsing:
            _refuse_misspelt(args[0], args[1:], self.commands)
        return super().parse_args(ctx, args if named or ctx.resilient_parsing else ["list", *args])


def _refuse_misspelt(word: str, rest: Sequence[str], commands: Iterable[str]) -> None:
    if word.startswith("-") or is_url(word) or Path(named_run(word)).exists():
        return
    meant = _ALSO_TYPED.get(word) or next(iter(difflib.get_close_matches(word, commands, n=1)), "")
    if meant:
        line = shlex.join(["everstep", "runs", meant, *rest])
        raise UsageError(f"No such command {word!r}, and no such directory; type: {line} (see: everstep runs --help)")


app = new_app(
    cls=RunsGroup,
    subcommand_metavar="[ROOT] | show DIR | watch RUN | compare DIR DIR… | tree | rm DIR… | sync DIR",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: everstep runs show runs/mnist-local-5f2c7a90b1 --json",
)


@app.callback()
def runs() -> None:
    """List runs, show, compare or remove them.

    Without a command it lists the runs below ROOT, by default the directory runs.
    """


app.command("list", epilog="Example: everstep runs experiments/2024 --sort validation_loss")(list_runs)
app.command("show", epilog="Example: everstep runs show runs/mnist-local-5f2c7a90b1")(show)
app.command("sync", epilog="Example: everstep runs sync runs/mnist-local-5f2c7a90b1")(sync)
app.command("watch", epilog="Example: everstep runs watch runs/mnist-local-5f2c7a90b1")(watch_runs)
app.command("compare", epilog="Example: everstep runs compare runs/first runs/second --out curves.png")(compare)
app.command("tree", epilog="Example: everstep runs tree")(tree)
app.command("rm", epilog="Example: everstep runs rm runs/mnist-local-5f2c7a90b1 --dry-run")(remove)
