"""Trackers: where the numbers of a run are written while it trains.

tracker.py          `Tracker`; a tracker that cannot write is tried again, and ends no run; calls in a thread
config.py           `trainer.tracking`: which sinks a run writes to, samples, norms, histograms: keys and defaults
plugins.py          trackers of other packages (`others`); one that fails is left out
console.py          a line per log, its form; when there is a live display
history.py          `history.csv`: its columns, each logged step once, rows beyond the restored step are cut
jsonl.py            `metrics.jsonl`: each point once; lines beyond the step that a run resumes from are cut
tensorboard.py      TensorBoard: folders, names, how often it is written
mlflow.py           MLflow: which server or database, credentials, names that it rejects, long values (cut at
                    6000 characters), which run an
                    attempt continues; what a run is called there: `run/trackers.py`, of components and flows
                    themselves
mlflow_active.py    `mlflow.log_metric` and autologging in a user's code: to which run they log
wandb.py            Weights & Biases: project, mode, the id of a run, kept by every attempt; how long the end waits
wandb_process.py    the program of the process that calls W&B's package; offline without an API key; skips rows that W&B
                    has already
spooled_tracker.py  what MLflow and W&B share: one run over all attempts, status, how long the end may wait
spool.py            records on disk for a server that may be down; leaves out points that an earlier attempt has
                    recorded; nested settings as dotted names
delivery.py         sends what the spool has, in a thread: retries, pauses (1 s, up to 60 s), how far it is
syncing.py          `everstep runs sync`: what could not be sent
samples.py          samples of evaluations, as files in `samples/`; histograms with 32 bins
appending.py        all of a record in a file, or nothing of it
metric_names.py     from a metric's name: higher or lower is better, training or validation
metric_history.py   metrics as they come in, for a display: best, trend, steps per second and over which time they are
                    measured
data_wait.py        warns, once, when a run has waited for data for more than a fifth of the time
system_metrics.py   CPU, memory, disk and GPU figures (`system_seconds`)
sweep_tags.py       the sweep that a run is a trial of, as tags; nested runs on MLflow: `sweeps/parent_run.py`
live_display.py     a few lines that show a run: which metrics, progress, the time left at that speed
live_screen.py      keeps them at the bottom of a terminal: how often they are drawn
cell_display.py     the same in a notebook: progress and a small table (8 rows), one output that is replaced in place
styled_lines.py     styled text, by rich; NO_COLOR, ASCII
terminal.py         what a terminal can show
number_text.py      numbers as people read them: digits, units
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.tracking import system_metrics
    from everstep.tracking.config import (
        SERVERS,
        TrackingConfig,
    )
    from everstep.tracking.console import (
        ConsoleTracker,
        Facts,
        NoOutput,
    )
    from everstep.tracking.data_wait import DataWaitAdvice
    from everstep.tracking.delivery import DeliveryProgress
    from everstep.tracking.history import (
        HistoryReader,
        HistoryTracker,
        epoch_table,
        read_history,
    )
    from everstep.tracking.jsonl import JsonLinesTracker
    from everstep.tracking.live_display import (
        DisplayStatus,
        frame,
    )
    from everstep.tracking.live_screen import LiveScreen
    from everstep.tracking.metric_history import (
        LiveMetrics,
        LiveRate,
    )
    from everstep.tracking.metric_names import (
        SIDE_FIGURES,
        bare,
        direction,
        find_logged,
        of_validation,
        spellings,
    )
    from everstep.tracking.mlflow import (
        MlflowNames,
        MlflowTarget,
        MlflowTracker,
        checked_uri,
        default_uri,
        folder_uri,
        is_there,
        local_store,
        prepare_client,
        spool_of,
        without_credentials,
    )
    from everstep.tracking.mlflow_active import active_run
    from everstep.tracking.number_text import (
        clock_time,
        count,
        percent,
        rate_text,
        value_text,
    )
    from everstep.tracking.plugins import (
        TrackedRun,
        find_trackers,
        installed_trackers,
        make_trackers,
    )
    from everstep.tracking.samples import SampleFiles
    from everstep.tracking.spool import flattened
    from everstep.tracking.styled_lines import (
        Line,
        Style,
        bar,
        cropped,
        in_ascii,
        joined,
        line_of,
        width_of,
    )
    from everstep.tracking.sweep_tags import (
        SWEEP,
        TRIAL,
        trial_name,
    )
    from everstep.tracking.syncing import (
        sync,
        sync_all,
    )
    from everstep.tracking.system_metrics import watched
    from everstep.tracking.tensorboard import (
        EventFile,
        TensorBoardTracker,
        histogram_value,
        last_step,
        scalar_value,
    )
    from everstep.tracking.terminal import (
        can_draw,
        only_ascii,
        wrapped,
    )
    from everstep.tracking.tracker import (
        BackgroundTracker,
        LogKind,
        MultiTracker,
        NoopTracker,
        Tracker,
        plain,
    )
    from everstep.tracking.wandb import (
        WandbTracker,
        is_disabled,
        make_target,
        require_package,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
