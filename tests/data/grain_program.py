"""Reads a Grain pipeline with worker processes, saves the stream's state as it goes, and dies where it is told to.

    python grain_program.py <state file> <batches> <workers> die|end

Prints each batch. Run again with the same file it goes on; "die" ends it by SIGKILL, and prints its workers first.
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
    """Records without a representation of their own: how they print depends on where in memory they are."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return {"id": np.int64(index), "row": np.full(2, index, "float32")}


class Jitter(grain.transforms.RandomMap):
    """Random numbers as Grain gives them out."""

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
        next(stream)  # read, and not handed on: the state does not know it
        print(json.dumps([child.pid for child in multiprocessing.active_children()]), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
