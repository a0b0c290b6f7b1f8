"""Engines: how steps run on one backend.

`create_engine` makes the engine of the process's backend. An `Engine` runs compiled calls of many steps, and moves the
state between the device, the host and the Keras objects. Each backend is one file that implements `Backend`.

backend.py              which backend the process has: selected once, before Keras; its determinism options
config.py               `RuntimeConfig`: backend, devices, seed, precision
engine.py               `Engine`: runs steps, the same way on every backend
steps.py                `Steps`: the code of a step
building.py             builds what steps need, and collects the state
protocol.py             `Backend`: what each backend implements
jax.py                  JAX
tensorflow.py           TensorFlow
torch.py                PyTorch; which steps run as CUDA graphs, and which eagerly
feed.py                 reads batches ahead, in a thread; the position of the last one taken, for checkpoints
call_length.py          how many steps one call holds
window.py               means of what steps returned, in training and evaluation, weighted by samples
logs.py                 logs of steps, as numbers on the host
state.py                stable keys for every variable
probe.py                what a step creates and uses, found while it is traced
replaced.py             functions of Keras, replaced for one thread
explanations.py         errors of Keras and the backends, in terms of the user's code
batch_dtypes.py         what of a batch a device can compute with
device_data.py          data that lives on the device
device_names.py         the devices, their kinds and memory
finite.py               which variables hold NaN or an infinity
mixed_precision.py      the dtype in which a run computes
model_settings.py       what `runtime` changes in a model
remat.py                activations that are computed again
flops.py                operations of a step
profiler.py             traces of steps
exactness.py            how exactly the steps of a run can be repeated, in words, for `run.json`
certified.py            JAX on a GPU: programs that were shown to repeat their bits
programs.py             JAX on a GPU: what is kept of them with a run
machine_choices.py      JAX on a GPU: what is kept of them for all runs on a machine
ordered_sums.py         JAX on a GPU: sums in a fixed order
xla.py                  JAX on a GPU: named sets of options
torch_graph.py          PyTorch on a GPU: records one step as a CUDA graph, or says why not
torch_forms.py          PyTorch on a GPU: faster forms of Keras's operations
torch_layouts.py        convolutions and pooling without copies
torch_norms.py          batch and group normalization in one operation
torch_products.py       dense layers whose product adds the bias
torch_updates.py        updates of all variables in few passes
workers.py              `Workers`: who computes each step together
strategy.py             which devices a run uses
mesh.py                 the devices that train one model on JAX; which rows each process has
sharding.py             which device holds which part of a variable
sharded_init.py         variables that are created in parts
replicas.py             one step on several devices, under `tf.distribute`
shares.py               what part of a step one worker has
merging.py              the variables of several workers become one state
processes.py            one step on several processes, on TensorFlow and PyTorch; which rows each has
tensorflow_processes.py what they compute together on TensorFlow
torch_processes.py      what they compute together on PyTorch
call_agreement.py       which batches go into one call of several processes, and at which one all of them stop
hub.py                  KerasHub, imported where it is used
late_tensorflow.py      TensorFlow beside another backend
custom_loops.py         training loops that users write themselves
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.engine import (
        backend,
        custom_loops,
        device_names,
        exactness,
        flops,
        late_tensorflow,
        state,
    )
    from everstep.engine.backend import (
        create_engine,
        join_gang,
        set_default_backend,
    )
    from everstep.engine.batch_dtypes import check_leaves
    from everstep.engine.call_length import (
        LENGTHS,
        TIMED_CALLS,
    )
    from everstep.engine.config import RuntimeConfig
    from everstep.engine.custom_loops import tensorflow_variables
    from everstep.engine.device_data import place_data
    from everstep.engine.device_names import (
        device_kind,
        devices,
        has_accelerator,
    )
    from everstep.engine.engine import Engine
    from everstep.engine.exactness import as_text
    from everstep.engine.explanations import explain
    from everstep.engine.feed import (
        Feed,
        FeedInterrupted,
    )
    from everstep.engine.finite import non_finite
    from everstep.engine.hub import (
        adapted_layers,
        greedy,
        is_hub_task,
        keras_hub,
    )
    from everstep.engine.late_tensorflow import not_found
    from everstep.engine.logs import (
        floats,
        with_arrays,
    )
    from everstep.engine.mixed_precision import precision
    from everstep.engine.model_settings import (
        prepare_model,
        use_float8,
    )
    from everstep.engine.profiler import Trace
    from everstep.engine.sharded_init import without_values
    from everstep.engine.sharding import (
        DATA,
        SMALL,
        ShardingPlan,
        check_backend,
        check_batch,
        kind_of,
    )
    from everstep.engine.state import (
        EVALUATED,
        name_variables,
    )
    from everstep.engine.strategy import (
        configured_strategy,
        current_strategy,
        entered,
        get_distribution_strategy,
        suspended,
    )
    from everstep.engine.xla import compiler_options

__getattr__, __dir__ = lazy_names(__name__, __file__)
