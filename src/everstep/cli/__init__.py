"""The `everstep` command: one module per command or group of commands, imported when it is called.

`main` is the entry point and returns exit codes; `commands` is the table of commands. A module with the name of a
command is that command; `runs_…` are the commands of `everstep runs`. The others are shared:

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
sweep.py         `everstep sweep`
tune.py          `everstep tune`
launch.py        `everstep launch`
submit.py        `everstep submit`
new.py           `everstep new`
run.py           `everstep run`
check.py         `everstep check`
flow.py          `everstep flow`
catalog.py       `everstep catalog`
bct.py           `everstep bct`
records.py       `everstep records`
generate.py      `everstep generate`
ui.py            `everstep ui`
doctor.py        `everstep doctor`

main.py            parses the command line, and returns the exit code
commands.py        the table of commands
sharding_table.py  the table of `everstep config --sharding`
options.py       arguments and options, each spelled once; `ExperimentRequest`
resolve.py       from a command line to a resolved configuration
load_backend.py  choosing the backend, and loading Keras with it
run_resolved.py  running a resolved experiment, for `train` and `eval`
process.py       the command line in a new process, and SIGTERM
run_models.py    the model of a run, for `predict` and `export`
remote_runs.py   runs at a URL
runs_cells.py    what the commands of `everstep runs` show of a run in a table
output.py        what is printed
absl_flags.py    flags of absl and Model Garden on our command line
absl_program.py  the same flags, for users' own training programs
"""
