"""Engines: how steps run on one backend.

`create_engine` makes the engine of the process's backend. An `Engine` runs compiled calls of many steps, and moves the
state between the device, the host and the Keras objects. Each backend is one file that implements `Backend`.

backend.py               which backend the process has: the one that is named, else KERAS_BACKEND, else the first
                         installed; "Keras is loaded with … already"; seeds, determinism options; GPUs hidden from other
                         backends. GPU memory is left to the backend's own variables
config.py                `RuntimeConfig`: backend, seed, devices, precision, `cuda_graph`, signals: keys, defaults,
                         what may change on a resume; keys of Model Garden that are declined
engine.py                `Engine`: runs calls of steps, evaluates, moves the state; which data lives on the device, on
                         every backend the same
steps.py                 `Steps`: the code around the user's step; how much each batch counts in logs and gradients, a
                         short last one too
building.py              builds what models, optimizers and metrics create late, on the shapes of one batch; collects
                         the state
protocol.py              `Backend`: what each backend implements
jax.py                   JAX: programs compiled per shape of batch and number of steps; loops, scans or single steps;
                         where batches are placed
tensorflow.py            TensorFlow: a `tf.function` per shape, loops; `tf.random` and `tf.summary` in a step; a
                         Python `if` on a tensor is refused
torch.py                 PyTorch: which steps run as CUDA graphs and which eagerly (more than 8 shapes; other reasons:
                         `torch_graph.py`); a Python `if` on a tensor, draws from `torch.rand` and module buffers are
                         refused
feed.py                  reads batches ahead in a thread: how many; the position of the last one taken, for
                         checkpoints; a source that does not respond
call_length.py           how many steps one compiled call holds: about a second, at most 200 steps and 16 MiB; whether
                         another length is worth compiling; where windows end is in `loop/schedule.py`
window.py                means of what steps returned, in training and evaluation, weighted by what `steps.py` counts;
                         the first step that is not finite; norms
logs.py                  what steps may return: "must return a dict", "returned no loss", two metrics of one name;
                         logs as numbers on the host, a vector as `name/0`
state.py                 the keys of variables in checkpoints; "the state does not fit this experiment", other metrics,
                         variables that nothing holds; unseeded `keras.random`; whether `Task.base_weights` are those of
                         before
probe.py                 what a step creates and uses, found while it is traced: refuses variables that are created in
                         a step
replaced.py              functions of Keras, replaced for one thread
explanations.py          what errors of Keras and the backends mean for the user's code: wrong shapes, one-hot labels,
                         `if tensor:`, GradientTape on another backend; "draws unseeded random numbers" (on JAX;
                         elsewhere `state.py`)
batch_dtypes.py          dtypes of a batch: float64 becomes Keras's float type; text and Python objects are refused
device_data.py           `cache`: which arrays live on the device (auto: at most a quarter of its free memory), why
                         others do not
device_names.py          the devices, their kinds, free and peak memory
finite.py                finds NaN and infinities in variables; which of them are accepted, and what then happens:
                         `loop/recovery.py`
mixed_precision.py       `mixed_precision_dtype`: the policy while a model is built; float16 on a CPU; loss scaling is
                         in `task/optim/loss_scale.py`
model_settings.py        what `runtime` changes in a model: `float8`, `remat`; when they are refused
remat.py                 `runtime.remat`: which layers compute their activations again; "no layer matches"
flops.py                 operations of a step, counted from the compiled program; when they are unknown
profiler.py              traces by the backend's profiler; which steps: `run/profiling.py`
exactness.py             how exactly a run can be repeated, in words, for `run.json`
certified.py             JAX on a GPU: which programs repeat their bits (compiled, tried, certified), and single steps
                         from a millisecond on; warns "may end with other bits"
programs.py              JAX on a GPU: what is kept of programs with a run, so that the next attempt has the same
machine_choices.py       JAX on a GPU: what was chosen by timing on this machine, for all runs
ordered_sums.py          JAX on a GPU: embeddings, max pooling and attention whose gradients are added in a fixed
                         order
jax_copies.py            JAX on a GPU: copies of the state for saves in a few transfers, compiled in the background
xla.py                   JAX on a GPU: `runtime.xla_preset`: sets of options: latency, transformer, triton …
torch_graph.py           PyTorch on a GPU: records one step as a CUDA graph; refuses what a replay could not repeat
                         (`.item()`, changed attributes) and says why
torch_forms.py           PyTorch on a GPU: which of Keras's operations get faster forms
torch_layouts.py         convolutions and pooling without copies
torch_norms.py           batch and group normalization in one operation
torch_products.py        dense layers whose product adds the bias
torch_updates.py         updates of all variables in few passes
workers.py               `Workers`: who computes each step together; here one device alone
strategy.py              `distribution_strategy`, `num_gpus`: which devices a run uses, by Model Garden's names;
                         TF_CONFIG is refused
mesh.py                  JAX: the devices that train one model; how a batch is shared, a batch that cannot be shared
                         evenly; which rows each process has
sharding.py              `runtime.sharding` and `mesh`: which device holds which part of a variable; sizes that do not
                         fit the devices or the batch
sharded_init.py          variables that are created in parts, so that no device holds a large one whole
replicas.py              TensorFlow: one step on several devices under `tf.distribute`: shares of a batch, too small
                         batches
shares.py                what part of a step one worker has: its weight, sums of gradients
merging.py               several processes: how variables that a step changes become one (added, mean, first process);
                         stateful layers are refused
processes.py             one step on several processes, on TensorFlow and PyTorch; which rows each has, random numbers
                         of each, metrics over all
tensorflow_processes.py  what they compute together on TensorFlow; the warning of open servers
torch_processes.py       what they compute together on PyTorch: nccl or gloo, which GPU each has, the time limit of 30
                         minutes
call_agreement.py        several processes: which batches go into one call, at which one all of them stop; "the data
                         differs between the processes"
hub.py                   KerasHub, imported where it is used
late_tensorflow.py       TensorFlow beside another backend: not imported unasked, without GPUs, seeded when it is
                         imported
custom_loops.py          training loops that users write themselves (`StandardTrainer`): what of them is compiled
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
        preprocess,
        preprocesses,
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
