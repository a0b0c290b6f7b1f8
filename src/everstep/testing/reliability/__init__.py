"""Runs that are killed, signalled, starved and damaged: what is promised of them, measured.

Each file measures one promise: `measure(...)` returns `Figures`, which say whether they `passed()`, and print as a
`line()`. Tests measure a little of each; `python -m benchmarks.reliability.NAME` measures much.

process.py               a training run as its user sees it: `Job`, `Process`
workloads.py             the experiments that are trained: `--import everstep.testing.reliability.workloads`
killed_runs.py           runs killed at random instants end in the same bits
continuity.py            their curves have each point once
ledger.py                each sample is learned from once
gang_kills.py            several processes, killed and frozen
goodput_under_kills.py   how much of its work a run keeps
signals_answered.py      the step reached is the step saved
sweep_kills.py           a sweep, its workers and trials, killed
saver.py                 a process that saves until it is killed
kill_while_saving.py     killed in the middle of a save
retention_under_kills.py which checkpoints exist after kills
damage.py                damaged checkpoints are noticed
bad_disks.py             full, read-only and forbidden disks
save_cost.py             what saving costs
structure.py             changed programs are refused as a whole
structural_changes.py    the changes that are tried
nan_injection.py         values that are not finite are never saved
tracker_outage.py        a tracking server that is down, slow or failing
"""
