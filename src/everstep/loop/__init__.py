"""The loop: when to train, evaluate, save and act.

The `Controller` is the outer loop. A `Trainer` runs the steps of one window on an engine. Everybody else takes part
as a `Hook`.

controller.py           `Controller`: trains, logs (`summary_interval`), evaluates, saves and acts, in which order;
                        saves when a stop is requested; rolls back; `continuous_eval`. What is due when is in
                        `schedule.py`; `continuous_eval` waits for checkpoints (3600 s: `config.py`)
inner_loop.py           `InnerLoop`: what it asks of the object that runs the steps
trainer.py              `Trainer`: runs the steps of a window, returns their logs; evaluates `validation_steps`
                        batches or all; "the training data ended", data that never ends
trainer_creation.py     `create_trainer`: seeds, builds model and optimizer; which optimizer: the compiled or the
                        configured one
controller_creation.py  `create_controller`: the loop from a trainer's section
config.py               `TrainerConfig`: how long, how often to log, evaluate and save, how many checkpoints to keep,
                        early stopping (patience 3), recovery: keys, defaults, refusals; what may change on a resume;
                        `0.5 epochs` as steps (`in_steps`); keys of Model Garden that are declined
lengths.py              how long the data is, for `config.py`, which converts epochs to steps; a learning-rate schedule
                        as long as training
schedule.py             at which step a window ends, an evaluation and a save are due, in steps or epochs; "ran out of
                        data", fewer steps than are trained already. Steps per compiled call: `engine/call_length.py`
hooks.py                `Hook`: takes part in training, event by event; a learning rate that changed between attempts
action_hook.py          actions, as a hook
stop_at.py              `trainer.stop_at`, `StopAt`: interrupts a run at a time of day
saver.py                what a checkpoint of a run contains; waits for the save before it, copies the state; what a
                        failed save does (`save_failure`), saves by time (`checkpoint_seconds`); a state that
                        `recovery.py` calls not finite is not saved
recovery.py             loss NaN or above `loss_upper_bound`; which variables that are not finite count (no metrics,
                        none that was infinite before the first step): roll back, skip batches (`recovery_max_trials`),
                        fail, or go on with a warning; float16 steps that change nothing
untouched.py            warns of weights and metrics that no step changes
lazy_logs.py            logs that stay on the device until they are read, and their steps per second
keras_callbacks.py      Keras callbacks as a hook: when each method is called, single steps for batch methods (not for
                        Keras's own callbacks); BackupAndRestore, a `monitor` that is not logged
listener.py             `Listener`: a hook that also sees epochs end
callback_state.py       what of callbacks and actions is saved (`get_state`, else attributes); refuses other callbacks
                        on a resume, CSVLogger's file
plain_values.py         plain values as JSON and back, exactly
random_state.py         Python's and NumPy's random generators in checkpoints
frozen.py               which frozen variables checkpoints leave out (64 KiB and more in all); warns when one has
                        changed
same_state.py           several processes: refuses to save when their states differ
variable_plan.py        the variables that an experiment will have, for `everstep config --sharding`
progressive.py          training in stages: what a stage takes over (weights, moments of the optimizer,
                        learning rate)
standard.py             orbit's `StandardTrainer`, by the path that users type; the code is in
                        `model_garden/standard.py`
actions/                what is called with the logs of a loop or an evaluation: early stopping, best checkpoint,
                        exports
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.loop import random_state
    from everstep.loop.action_hook import (
        Action,
        Actions,
    )
    from everstep.loop.config import (
        ProgressiveTrainerConfig,
        TrainerConfig,
        in_bytes,
        profiled_steps,
    )
    from everstep.loop.controller import Controller
    from everstep.loop.controller_creation import create_controller
    from everstep.loop.hooks import (
        Hook,
        LearningRate,
    )
    from everstep.loop.inner_loop import InnerLoop
    from everstep.loop.keras_callbacks import (
        KerasCallbacks,
        accepted,
    )
    from everstep.loop.lazy_logs import LazyLogs
    from everstep.loop.lengths import (
        trainer_in_steps,
        with_learning_rate_length,
    )
    from everstep.loop.listener import Listener
    from everstep.loop.progressive import (
        ProgressivePolicy,
        ProgressiveTrainer,
        is_progressive,
    )
    from everstep.loop.saver import saved_parts
    from everstep.loop.schedule import (
        EpochSchedule,
        Schedule,
        StepSchedule,
    )
    from everstep.loop.stop_at import StopAt
    from everstep.loop.trainer import Trainer
    from everstep.loop.trainer_creation import create_trainer
    from everstep.loop.variable_plan import planned_variables

__getattr__, __dir__ = lazy_names(__name__, __file__)
