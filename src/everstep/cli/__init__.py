"""The `everstep` command: one module per command or group of commands, imported when it is called.

`main` is the entry point and returns exit codes; `commands` is the table of commands, those of companions among them. A
module with the name of a command is that command; `runs_…` are the commands of `everstep runs`. The others are shared,
and offered to commands of other packages:

train.py         `everstep train`
eval.py          `everstep eval`
predict.py       `everstep predict`
export.py        `everstep export`
report.py        `everstep report`
reproduce.py     `everstep reproduce`
runs.py          `everstep runs`
runs_list.py     `everstep runs list`
runs_show.py     `everstep runs show`
runs_watch.py    `everstep runs watch`
runs_compare.py  `everstep runs compare`
runs_sync.py     `everstep runs sync`
runs_rm.py       `everstep runs rm`
config.py        `everstep config`
experiments.py   `everstep experiments`
launch.py        `everstep launch`
records.py       `everstep records`
generate.py      `everstep generate`
doctor.py        `everstep doctor`

main.py            runs the command line; what the parser refuses becomes a usage error; the exit code
commands.py        the table of commands; finds the one that was typed, or refuses it
command.py         what the table knows of a command
sharding_table.py  the table of `everstep config --sharding`
options.py         options of several commands, each spelled once; one command's own are in its file
resolving.py       from a command line to a resolved configuration
backends.py        choosing the backend, and loading Keras with it
run_resolved.py    running a resolved experiment, for `train` and `eval`
process.py         the command line in a new process, and SIGTERM
run_models.py      the model of a run, for `predict` and `export`
remote_runs.py     runs at a URL
runs_cells.py      what the commands of `everstep runs` show of a run in a table
output.py          what is printed
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.cli import options
    from everstep.cli.backends import (
        choose_backend,
        load_backend,
        load_project_backend,
    )
    from everstep.cli.command import (
        Command,
        experiment_keys,
        new_app,
    )
    from everstep.cli.output import (
        aligned,
        number,
        print_json,
        print_last,
        quiet,
    )
    from everstep.cli.process import (
        exit_on_sigterm,
        repeated_command,
        without_restarts,
    )
    from everstep.cli.resolving import (
        Resolved,
        import_modules,
        resolve,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
