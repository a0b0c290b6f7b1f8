"""One run: its directory, its record, and the process that trains in it.

record.py                `run.json` and `config.yaml`, over all attempts: what is recorded when; refuses a folder with
                         files that a run would overwrite
labels.py                name, tags and notes of a run; what a resumed run keeps of them
configuration.py         the text of `config.yaml`; the configuration that a checkpoint was trained with
checkpoints.py           opens a run's checkpoints as `trainer` keeps them; which are kept is in
                         `checkpoint/retention.py`
attempt.py               one attempt: locks the directory, stops on request, of several processes all (the step:
                         `engine/call_agreement.py`), records progress and end; whether data and libraries are the
                         checkpoint's is compared in `resume_checks.py`
attempt_hooks.py         the hooks of every attempt that trains, and their order
lock.py                  one process per directory: "is being trained by", file systems without locks; its heartbeat.
                         Other machines and processes: `liveness.py`
signals.py               which signals stop a run (SIGTERM, SIGINT, `stop_signals`), exit code, a second Ctrl-C; they
                         set a flag, and the loop saves (`loop/controller.py`)
preemption.py            `preemption_notice`: polls Google's or Amazon's metadata server, how often
processes.py             several processes meet in the directory, and must have the same configuration, code, packages
                         and data
resume_checks.py         refuses what a resumed run may not change: keys that no config class lists in `_may_change`,
                         other data; `--allow-change`; warns of other versions (of which packages: `environments.py`)
restoring.py             whether a run begins at a checkpoint or with `init_checkpoint`
announcements.py         what is said on the screen before training, and when it is interrupted
printing.py              how a line is printed on the screen, before Keras is loaded, too
closing.py               the last lines of a run: best value, exported model, report, how to load it
refusals.py              all that keeps a run from being resumed, in one message
ending.py                how training ended: stopped early or not, which step's weights the run has
exporting.py             the export at the end of a run: a failed one ends no run; which formats:
                         `export/model_export.py`
trackers.py              which trackers a run has, in which order, what it is called on MLflow and W&B; which samples
                         and histograms are logged when
environments.py          git commit and uncommitted changes (`code.diff`, at most 5 MiB), all packages and the numerical
                         ones that a resume compares, machine, GPU, environment variables; fingerprints of data files
code_files.py            the user's files that a run has imported; which of them have changed: other files are no change
cost.py                  parameters, FLOPs, MFU (peak of each GPU), samples and steps per second without the warmup
kept_work.py             goodput: the share of computed steps that was kept, seconds that restarts cost
profiling.py             `trainer.profile`: which steps are traced (`auto`: 20)
pruning.py               a trial waits after an evaluation until its sweep has decided (60 s); the rule is in
                         `sweeps/study.py`
checkpoint_selection.py  `--checkpoint best`, `last`, `last:3`, 200 or 100,200: what each means, which metric is best
averaged_checkpoint.py   several checkpoints as one; averages of weights (EMA) in an evaluation
layout_registry.py       where entry points keep the parts of a run
parent_process.py        what a run exchanges with the process that launched it
final_weights.py         reads that: the numbers of the exported weights where they are not those of the last step
naming.py                names of runs without the prefix `runs/`; runs that are named nearly so
program.py               the program that starts a run from Python: script and arguments, for the record; where its runs
                         are in a trial or a repetition, whatever `model_dir` says
listing.py               every run below a directory, ordered by path, with its real state (running, killed, queued)
                         and time left
removal.py               what may be removed of a run, and how: not while it trains, not a home, project or folder of
                         other runs; which runs beside it began with its weights
own_files.py             which files in a run directory are the run's: all others stay when it is removed
exit_codes.py            how a training program ends: catches the error, prints its message, returns its code;
                         `--traceback`. The codes 1 and 2 are in `errors.py`, 3 and 128 + signal in `signals.py`
uncaught.py              a script that calls `fit` ends with the message of an uncaught error
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
    from everstep.run.closing import best_step, best_value, closing_rows, exported_files
    from everstep.run.code_files import (
        CODE_FILES,
        changed_files,
        imported_change,
        listed_files,
        with_files_of,
        with_imported_files,
    )
    from everstep.run.configuration import (
        changes_since_newest,
        config_text,
        trained_config,
    )
    from everstep.run.ending import record_ending
    from everstep.run.environments import (
        CODE_DIFF,
        REQUIREMENTS,
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
    from everstep.run.final_weights import (
        EXPORTED_STEP,
        FinalWeights,
        read_final_weights,
        stopped_early,
    )
    from everstep.run.kept_work import (
        goodput,
        seconds,
    )
    from everstep.run.labels import Labels, tag_words
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
    from everstep.run.naming import (
        named_run,
        run_names,
        runs_like,
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
    from everstep.run.program import (
        PROGRAM,
        TRAINED_BY,
        Redirection,
        command_line,
        directory_of,
        is_repetition,
        program_run,
    )
    from everstep.run.pruning import (
        PruningListener,
        listen_to_trials,
    )
    from everstep.run.record import (
        FORKED_FROM,
        OWN_FILES,
        Record,
        Run,
        Status,
        damage,
        find_runs,
        read,
        refuse_foreign,
    )
    from everstep.run.refusals import all_refusals
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
        STOPPED_ITSELF,
        Interrupted,
        as_python_interrupts,
        signals_handled,
    )
    from everstep.run.trackers import (
        LiveFacts,
        create_tracker,
        require_trackers,
    )
    from everstep.run.uncaught import shorten_uncaught_errors

__getattr__, __dir__ = lazy_names(__name__, __file__)
