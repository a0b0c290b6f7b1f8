"""`everstep runs`: lists, shows, watches, compares or removes runs. Each command has its own file, `runs_….py`."""

from typing import Any

from typer.core import TyperGroup

from everstep.cli.command import new_app
from everstep.cli.runs_compare import compare
from everstep.cli.runs_list import list_runs
from everstep.cli.runs_rm import remove
from everstep.cli.runs_show import show
from everstep.cli.runs_sync import sync
from everstep.cli.runs_watch import watch_runs


class RunsGroup(TyperGroup):
    """`runs ROOT` is short for `runs list ROOT`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Inserts the command `list` if none is given."""
        named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named else ["list", *args])


app = new_app(
    cls=RunsGroup,
    subcommand_metavar="[ROOT] | show DIR | watch RUN | compare DIR DIR… | rm DIR… | sync DIR",
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
app.command("rm", epilog="Example: everstep runs rm runs/mnist-local-5f2c7a90b1 --dry-run")(remove)
