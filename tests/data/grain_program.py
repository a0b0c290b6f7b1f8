"""Reads a Grain pipeline with worker processes, saves the stream's state after each batch, and may kill itself.

    python grain_program.py <state file> <batches> <workers> die|end

Prints each batch. Run again with the same file it resumes; "die" prints its workers and ends it by SIGKILL.
"""

import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path

import grain
import numpy as np

from everstep.data import GrainStream

SAMPLES, BATCH = 40, 3


class Source:
    """Records without their own `__repr__`: the default one contains a memory address."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return {"id": np.int64(index), "row": np.full(2, index, "float32")}


class Jitter(grain.transforms.RandomMap):
    """Adds random numbers from Grain's generator."""

    def random_map(self, element, rng):
        return {**element, "noise": rng.normal()}


def loader(workers):
    sampler = grain.samplers.IndexSampler(SAMPLES, grain.sharding.NoSharding(), shuffle=True, num_epochs=None, seed=4)
    operations = [Jitter(), grain.transforms.Batch(BATCH, drop_remainder=True)]
    return grain.DataLoader(data_source=Source(), sampler=sampler, operations=operations, worker_count=workers)


def main(file, count, workers, die):
    stream = GrainStream(loader(int(workers)), repeat=True)
    if Path(file).exists():
        stream.restore(json.loads(Path(file).read_text()))
    for _ in range(int(count)):
        batch = next(stream)
        print(json.dumps([batch["id"].tolist(), batch["noise"].tolist()]), flush=True)
        Path(file).write_text(json.dumps(stream.state()))
    if die == "die":
        next(stream)  # read after the last saved state
        print(json.dumps([child.pid for child in multiprocessing.active_children()]), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
