"""Keys that a trainer's section has in TF Model Garden and not here. Imports no Keras."""

from everstep.config.declined import Declined

_CALLS = "every backend runs as many compiled steps in a call as it can, with the same bits however many they are"

DECLINED = {
    "train_tf_while_loop": Declined(_CALLS, True),
    "train_tf_function": Declined("steps are always compiled", True),
    "eval_tf_function": Declined("steps are always compiled", True),
    "eval_tf_while_loop": Declined(_CALLS, False),
    "allow_tpu_summary": Declined("steps write no summaries: what a train_step returns is logged", False),
    "preemption_on_demand_checkpoint": Declined("a run that is asked to end always saves its state first", True),
    "progressive": Declined("the stages are the task's: derive it from everstep.ProgressivePolicy"),
    "trainer_type": Declined("it is the task that says how several are trained, in task.mode"),
    "task_sampler": Declined("it is the task that says which of several comes next, in task.sampler"),
}
"""Each key, the reason, and the values that ask for nothing."""
