"""The `everstep` command: one module per command or group of commands, imported when it is called.

`main` is the entry point and returns exit codes; `commands` is the table of commands. A module with the name of a
command is that command; `runs_…` are the commands of `everstep runs`. The others are shared:

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
