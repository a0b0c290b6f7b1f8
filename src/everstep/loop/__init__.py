"""The loop: when to train, evaluate, save and act.

The `Controller` is the outer loop. A `Trainer` runs the steps of one window on an engine. Everybody else takes part
as a `Hook`.

controller.py         `Controller`: trains, evaluates, saves and acts, window by window; saves when a stop is requested
inner_loop.py         `InnerLoop`: what it asks of the object that runs the steps
trainer.py            `Trainer`: runs the steps of a window, and returns their logs
trainer_creation.py   `create_trainer`: a trainer from a task and its configuration
controller_creation.py `create_controller`: the loop from a trainer's section
config.py             `TrainerConfig`: how long, how often, with which optimizer
lengths.py            epochs converted to steps
schedule.py           where windows end, and what is due there
hooks.py              `Hook`: takes part in training, event by event
action_hook.py        actions, as a hook
stop_at.py            `StopAt`: interrupts a run at a time of day
saver.py              what a checkpoint of a run contains, and what a failed save does
recovery.py           what happens when training diverges
untouched.py          weights and metrics that no step changes
lazy_logs.py          logs that stay on the device until they are read, and their steps per second
keras_callbacks.py    Keras callbacks, as a hook
listener.py           `Listener`: a hook that also sees epochs end
callback_state.py     the state of callbacks and actions
plain_values.py       plain values as JSON and back, exactly
random_state.py       Python's and NumPy's random generators
frozen.py             variables that checkpoints leave out
same_state.py         whether several processes have the same state
variable_plan.py      the variables that an experiment will have
progressive.py        training in stages
standard.py           orbit's `StandardTrainer`, by the path that users type
actions/              what is called with the logs of a loop or an evaluation
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
