"""One run: its directory, its record, and the process that trains in it.

record.py                `run.json` and `config.yaml`, over all attempts
configuration.py         the configuration in `config.yaml` and in checkpoints
checkpoints.py           the checkpoints of a run
attempt.py               one attempt: holds the directory, asks all processes for stops, records progress and end
attempt_hooks.py         the hooks of every attempt that trains
lock.py                  one process per directory, its heartbeat; whether a run is still at work, also on other hosts
signals.py               signals that stop a run: they set a flag, and the loop saves (`loop/controller.py`)
preemption.py            notices that the machine is about to be taken away
processes.py             several processes meet in the directory, and must have the same program and data
resume_checks.py         what a resumed run may change
restoring.py             whether a run begins at a checkpoint or with initial weights
announcements.py         what is said on the screen before training, and when it is interrupted
printing.py              how a line is printed there
exporting.py             the export at the end
trackers.py              the trackers of a run
environments.py          code, packages, machine and data
cost.py                  parameters, operations, samples per second; steps per second of the whole attempt
kept_work.py             goodput: the share of computed steps that was kept
profiling.py             traces of some steps
pruning.py               a trial waits after an evaluation until its sweep has decided
checkpoint_selection.py  `--checkpoint best`, `last`, 200, or several
averaged_checkpoint.py   several checkpoints as one
layout_registry.py       where entry points keep the parts of a run
parent_process.py        what a run exchanges with the process that launched it
listing.py               every run below a directory, with its real state
removal.py               removes runs
exit_codes.py            how a training program ends: message and exit code; 2 for bad input
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.run import (
        announcements,
        cost,
        processes,
        pruning,
        record,
        removal,
    )
    from everstep.run.attempt import (
        Attempt,
        guarded,
    )
    from everstep.run.attempt_hooks import with_attempt_hooks
    from everstep.run.averaged_checkpoint import as_checkpoint
    from everstep.run.checkpoint_selection import (
        FLAG,
        Chosen,
        choose,
        selected_steps,
    )
    from everstep.run.checkpoints import opened_checkpoints
    from everstep.run.configuration import (
        changes_since_newest,
        config_text,
        trained_config,
    )
    from everstep.run.environments import (
        CODE_DIFF,
        REQUIREMENTS,
        code_change,
        code_version,
        environment,
        folder_fingerprint,
        git,
        processor,
        read_requirements,
        with_settings,
    )
    from everstep.run.exit_codes import (
        exit_code,
        reported_error,
        run_program,
        without_option,
    )
    from everstep.run.exporting import export_trained
    from everstep.run.kept_work import (
        goodput,
        seconds,
    )
    from everstep.run.layout_registry import (
        RunLayout,
        export_config,
        export_record,
        layouts,
        loop_directories,
        loop_directory,
        register_layout,
        results_file,
        saved_step,
    )
    from everstep.run.listing import (
        Overview,
        RunGroup,
        find_run_groups,
        listable,
        newest_job,
        overview,
        read_run_group,
        register_jobs,
        register_run_groups,
    )
    from everstep.run.lock import (
        RunLock,
        is_held,
        last_beat,
    )
    from everstep.run.parent_process import (
        ENDED,
        RECORD,
        STARTED,
        SUBMISSION,
        SUBMISSIONS,
        SUPERVISOR,
        announced,
        submitted,
    )
    from everstep.run.printing import print_line
    from everstep.run.processes import log_file
    from everstep.run.pruning import (
        PruningListener,
        listen_to_trials,
    )
    from everstep.run.record import (
        OWN_FILES,
        Record,
        Run,
        Status,
        damage,
        find_runs,
        read,
        refuse_foreign,
    )
    from everstep.run.restoring import restore_or_initialize
    from everstep.run.resume_checks import (
        FILES,
        FIRST_BATCH,
        ChangeRefused,
        allowed_in_python,
        changes_since,
        check_keys,
        stored_seed,
    )
    from everstep.run.signals import (
        Interrupted,
        as_python_interrupts,
        signals_handled,
    )
    from everstep.run.trackers import (
        LiveFacts,
        create_tracker,
        require_trackers,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
