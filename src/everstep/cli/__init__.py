"""The `everstep` command: one module per command or group of commands, imported when it is called.

`main` is the entry point and returns exit codes; `commands` lists the commands; `spelling` reads other tools' flags.
Shared by commands: `options`, which are spelled once; `request`, which turns a command line into a resolved
configuration; `running`, which loads the backend and runs it; `stored_runs` and `trained` for runs that exist;
`output` for what is printed. `program` is for users' own training programs.
"""
