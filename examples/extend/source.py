"""A data source: lines of numbers, the last of which is the label.

They are read one by one, in an order of each epoch.
"""

import numpy as np

import everstep


class NumberLines(everstep.Stream):
    """Batches of the lines of a text file, shuffled.

    Args:
      path: The file: numbers with commas between them.
      batch_size: How many lines a batch has.
      seed: Decides the order, together with the number of the epoch.
      repeat: Whether epoch follows epoch without end.
    """

    def __init__(self, path, batch_size=32, seed=0, repeat=True):
        with open(path, "rb") as file:
            lengths = [len(line) for line in file]
        self._path, self._batch_size, self._seed = str(path), batch_size, seed
        self._begins = np.cumsum([0, *lengths[:-1]])
        super().__init__(
            repeat=repeat, batches_per_epoch=-(-len(lengths) // batch_size)
        )

    def open(self, epoch, batch):
        """Yields the batches of an epoch from that batch on; reads no earlier one."""
        order = np.random.default_rng([self._seed, epoch]).permutation(self._begins)
        with open(self._path, "rb") as file:
            for first in range(batch * self._batch_size, len(order), self._batch_size):
                rows = np.array(
                    [
                        self._numbers_at(file, begin)
                        for begin in order[first : first + self._batch_size]
                    ]
                )
                yield rows[:, :-1], rows[:, -1:]

    def _numbers_at(self, file, begin):
        file.seek(begin)
        return np.array(file.readline().split(b","), dtype="float32")

    @property
    def files(self):
        """What is read: a run whose file has changed is not resumed."""
        return [self._path]

    @property
    def fingerprint(self):
        """How it is read: a run is not resumed with another seed or batch size."""
        return {"seed": self._seed, "batch_size": self._batch_size}
