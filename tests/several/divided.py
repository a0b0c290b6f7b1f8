"""One of several processes that hold parts of one model: trains and saves it, or restores it; prints what it sees.

`tests/several/test_divided_state.py` starts it; the first lines, which join the others, come from there.
"""

import collections
import gc
import json
from pathlib import Path
from typing import Any

from everstep.gang import Gang


def run(gang: Gang, folder: Path, runtime: dict[str, Any]) -> None:
    """Trains three steps and saves them, or restores what is saved."""
    import collectives
    import gang_experiment
    import jax

    from everstep.checkpoint.digests import digest
    from everstep.checkpoint.orbax import OrbaxCheckpointer
    from everstep.checkpoint.shared import SharedCheckpointer
    from everstep.engine.strategy import configured_strategy, entered
    from everstep.export.keras_file import export_keras
    from everstep.export.model_export import evaluated_weights, sample_inputs
    from everstep.loop.trainer_creation import create_trainer

    config = gang_experiment.small()
    ema = {"optimizer_config": {"ema": {}}}
    config.override({"task": {"units": 8192}, "runtime": runtime, "trainer": ema})
    with entered(configured_strategy(config.runtime)):
        trainer = create_trainer(config, gang_experiment.GangTask(config.task), train=True, evaluate=True)
        own = OrbaxCheckpointer(folder)
        checkpoints = SharedCheckpointer(own, gang, folder) if gang.size > 1 else own
        if checkpoints.latest() is None:
            trainer.train(3)
            checkpoints.save(3, *trainer.state())
            checkpoints.wait()
        else:
            trainer.restore(*checkpoints.restore())
        found = {
            "digest": digest(trainer.engine.state()),
            "is_spread": trainer.engine.is_spread,
            "loss": trainer.evaluate()["validation_loss"],
            "wrong_sums": collectives.wrong_sums(gang) if gang.size == len(jax.devices()) else {},
            **memory(trainer.engine),
        }
        trainer.close()
        kernel = trainer.model.get_weights()[0]  # as a callback of the user's reads it, on every process
        with trainer.engine.model_view() as model:  # as samples are logged
            model(trainer.example[0])
        with trainer.whole_model():
            if gang.is_first:  # the others do not take part
                found["kernel"] = bool((kernel == trainer.model.layers[0].kernel.numpy()).all())
                with evaluated_weights(trainer.optimizer):  # loaded and compared
                    sample = sample_inputs(trainer.model, trainer.example[0])
                    export_keras(trainer.model, folder / "model.keras", sample)
        checkpoints.close()
    print(json.dumps(found))


def memory(engine: Any) -> dict[str, int]:
    """Returns the bytes of a device of this process, and those that `everstep config --sharding` would print."""
    import jax

    from everstep.engine.mesh import current_mesh

    mesh = current_mesh()
    if mesh is None:
        return {}
    gc.collect()
    pointers = {}
    for array in jax.live_arrays():
        for shard in array.addressable_shards:
            pointers[shard.device.id, shard.data.unsafe_buffer_pointer()] = shard.data.nbytes
    used: collections.Counter[int] = collections.Counter()
    for (device, _), size in pointers.items():
        used[device] += size
    shapes = {key: tuple(variable.shape) for key, variable in engine.variables.items()}
    specs = mesh.plan.specs(shapes)
    each = (mesh.plan.bytes_per_device(shapes[key], specs[key], engine.variables[key].dtype) for key in shapes)
    return {"used": max(used.values()), "predicted": sum(each)}
