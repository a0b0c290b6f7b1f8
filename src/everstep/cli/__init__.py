"""The `everstep` command: one module per command, imported when that command is called.

`main` is the entry point and owns exit codes; `commands` lists the commands; `spelling` reads other tools'
flags; `request` turns a command line into a resolved configuration, `directory` finds its place, `running`
runs it; `output` prints for people and for programs, `quiet` keeps backends from talking in between.
"""
