"""The table of `everstep config --sharding`: which part of each variable a device will hold."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from everstep.cli.backends import load_backend
from everstep.cli.output import aligned, quiet
from everstep.config import get_task
from everstep.engine import DATA, ShardingPlan, check_backend, check_batch, kind_of
from everstep.experiment_config import ExperimentConfig


def sharding_table(params: ExperimentConfig) -> str:
    """Returns a line for each variable of an experiment, and the bytes per device; large variables get no value.

    Only the shapes of the mesh are needed, not its devices: the table can be printed on another machine. Without a
    mesh in the configuration it has the devices of this machine.

    Raises:
      UsageError: The backend is not JAX, the sharding does not fit, or the experiment cannot be built.
    """
    check_backend(params.runtime.backend, "--sharding", True)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # most of a GPU's memory, as soon as it is used
    with quiet():
        from everstep.engine import devices
        from everstep.loop import planned_variables

        load_backend(params.runtime.seed)
    plan = ShardingPlan(params.runtime.mesh or {DATA: len(devices())}, params.runtime.sharding)
    variables = planned_variables(params, get_task(params.task))
    check_batch(params.task.train_data.global_batch_size, plan.axes)
    return _table(plan, variables)


def _table(plan: ShardingPlan, variables: Mapping[str, Any]) -> str:
    shapes = {key: tuple(variable.shape) for key, variable in variables.items()}
    sums = {"parameters": 0, "optimizer slots": 0, "other": 0}
    rows: list[Sequence[str]] = [("variable", "shape", "dtype", "spec", "bytes per device")]
    for key, spec in plan.specs(shapes).items():
        size = plan.bytes_per_device(shapes[key], spec, variables[key].dtype)
        sums[kind_of(key, shapes)] += size
        axes = ", ".join("null" if axis is None else axis for axis in spec)
        rows.append(
            (key, _listed(shapes[key]), variables[key].dtype, f"[{axes}]" if spec else "replicated", f"{size:,}")
        )
    rows += [(f"sum: {kind}", "", "", "", f"{size:,}") for kind, size in sums.items()]
    rows.append(("sum per device", "", "", "", f"{sum(sums.values()):,}"))
    mesh = ", ".join(f"{axis}: {size}" for axis, size in plan.axes.items())
    return f"mesh {{{mesh}}}, sharding {plan.sharding}\n\n{aligned(rows)}"


def _listed(items: Iterable[Any]) -> str:
    return f"[{', '.join(map(str, items))}]"
