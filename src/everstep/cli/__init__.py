"""The `everstep` command: one module per command or group of commands, imported when it is called.

`main` is the entry point and returns exit codes; `commands` is the table of commands, those of companions among them. A
module with the name of a command is that command; `runs_…` are the commands of `everstep runs`. The others are shared,
and offered to commands of other packages:

train.py         `everstep train`: its options and defaults, the run directory (`runs/<experiment>-<digest>`),
                 combinations that are refused
eval.py          `everstep eval`: which checkpoint, `--samples`, what TARGET may be
eval_data.py     `everstep eval --data`: the exported model on files with labels; a run that needs them
predict.py       `everstep predict`: its options; the work is in `trained/`
export.py        `everstep export`: where to (`export-STEP`), which formats
report.py        `everstep report`: its options; the page is in `report/`
ui.py            `everstep ui`: its ports (7878, 5000, 6006), MLflow and TensorBoard beside it; the page is served by
                 `report/server.py`
reproduce.py     `everstep reproduce`: its options; the work is in `reproduce/`
fork.py          `everstep fork`: its options; the work is in `forks/`
runs.py          `everstep runs`: `runs ROOT` is `runs list ROOT`
runs_list.py     `everstep runs list`: columns, `--sort` (metric, step, age, experiment), `--descending`; without it
                 by path, as `run/listing.py` finds them
runs_show.py     `everstep runs show`: what is shown of one run
runs_watch.py    `everstep runs watch`: how often it looks, when it ends, its exit code
runs_compare.py  `everstep runs compare`: prints what `report/side_by_side.py` finds; a sweep stands for its 4 best
                 trials
runs_tree.py     `everstep runs tree`: which run was forked from which, and what was changed
runs_sync.py     `everstep runs sync`: sends what servers have not received
runs_rm.py       `everstep runs rm`: prompts, `--force`; prints the refusals of `run/removal.py`, which decides what is
                 removed
config.py        `everstep config`: a resolved configuration with the origin of each value, `--diff`, `--schema`,
                 `--sharding`
experiments.py   `everstep experiments`
launch.py        `everstep launch`: its options and defaults (10 restarts); restarts are decided in
                 `launch/supervisor.py`
records.py       `everstep records`: writes and inspects TFRecord files
generate.py      `everstep generate`: prompts, tokens, temperature; the defaults are the run's `task.generation`
doctor.py        `everstep doctor`: which backends are tried, extras, disk, the verdict

main.py            runs the command line; "No such option", `--epochs 5` in place of `trainer.epochs=5`; exit codes
                   are in `run/exit_codes.py`
commands.py        the table of commands, their order in `--help`; finds the one that was typed, or says what to type
command.py         what the table knows of a command: its heading, other words that people type for it
sharding_table.py  the table of `everstep config --sharding`
completion.py      what the tab key completes: experiments, keys with their values, runs, backends
options.py         options of several commands, their spelling, help and defaults; one command's own are in its file
resolving.py       from a command line to a configuration: which backend, `--seed`, `--limit-train`, `--import`;
                   unknown experiments, unexpected arguments
backends.py        loads Keras with the backend of a command; which one that is, is decided in
                   `engine/backend.py`
run_resolved.py    running a resolved experiment, for `train` and `eval`
process.py         the command line in a new process, and SIGTERM of commands that do not train
run_models.py      the model of a run, for `predict` and `export`: the exported one, else rebuilt by its experiment;
                   on which backend
remote_runs.py     runs at a URL, listed by their records
runs_cells.py      what `everstep runs` shows in a cell: progress, durations, the first three metrics
output.py          what is printed: columns, numbers, start-up messages held back, a closed pipe
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
        words_for,
    )
    from everstep.cli.commands import command_meant
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
