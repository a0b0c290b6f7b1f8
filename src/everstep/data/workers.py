"""Threads and processes that compute several batches of a dataset at once, and return them in order.

Their number follows one rule, `recommended_workers`: a core for each, and one left for the training thread.
"""

import abc
import ast
import collections
import concurrent.futures
import functools
import itertools
import multiprocessing
import os
import pathlib
import queue
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from everstep.data import randomness
from everstep.errors import TrainingError, UsageError

MOST_WORKERS = 16
"""More workers seldom help: reading, or copying their batches to the training process, is the limit then."""


def recommended_workers() -> int:
    """Returns the cores that this process may use minus one, at least 1 and at most 16."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(max(usable - 1, 1), MOST_WORKERS)


def end_with_parent() -> None:
    """Ends this worker process as soon as the process that started it has ended.

    A killed run cannot stop its workers: they would wait forever, and each attempt would leave more of them.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent,), name="everstep-parent", daemon=True).start()


def _exit_after(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)


Numbers = Iterable[tuple[int, Any]]
"""The batches to compute: the place of each in its epoch, and its number in the dataset, or what else selects it."""


class Workers(abc.ABC):
    """Computes the batches of a dataset ahead of time.

    Args:
      dataset: A dataset whose `__getitem__` returns a batch by its number.
      workers: How many batches are computed at once.
      ahead: How many batches are computed before they are needed.
    """

    def __init__(self, dataset: Any, workers: int, ahead: int) -> None:
        self._dataset, self._workers, self._ahead = dataset, workers, max(1, ahead)

    @abc.abstractmethod
    def map(self, numbers: Numbers) -> Iterator[Any]:
        """Yields the batches in the order of their numbers."""

    def _in_order(self, submit: Callable[[int, Any], Callable[[], Any]], numbers: Numbers) -> Iterator[Any]:
        """Calls `submit` for each batch, and yields the results of the functions that it returns, the oldest first."""
        coming, waiting = iter(numbers), collections.deque[Callable[[], Any]]()
        while True:
            for place, number in itertools.islice(coming, self._ahead - len(waiting)):
                waiting.append(submit(place, number))
            if not waiting:
                return
            yield waiting.popleft()()


class Threads(Workers):
    """Threads that end with the process, even if the dataset hangs in one of them.

    They end when the iterator that `map` returns is closed, or collected as garbage. Nothing waits for them then, and
    no lock is taken: the garbage collector may run in any thread.
    """

    def map(self, numbers: Numbers) -> Iterator[Any]:
        """Yields the batches in the order of their numbers."""
        jobs: queue.SimpleQueue[tuple[concurrent.futures.Future[Any], Any] | None] = queue.SimpleQueue()
        wanted = [True]

        def work() -> None:
            while (job := jobs.get()) is not None:
                future, number = job
                if not wanted[0]:
                    return
                try:
                    future.set_result(self._dataset[number])
                except BaseException as error:
                    future.set_exception(error)

        def submit(place: int, number: Any) -> Callable[[], Any]:
            future: concurrent.futures.Future[Any] = concurrent.futures.Future()
            jobs.put((future, number))
            return future.result

        for _ in range(self._workers):
            threading.Thread(target=work, name="everstep-data", daemon=True).start()
        try:
            yield from self._in_order(submit, numbers)
        finally:
            wanted[0] = False
            for _ in range(self._workers):
                jobs.put(None)


class Processes(Workers):
    """Worker processes, each with a copy of the dataset as it was when they were started.

    They are spawned, not forked: a fork of a process with a backend's threads may hang. So the dataset's class must be
    importable, and the program's own code must be under `if __name__ == "__main__":`; see `why_no_processes`.
    """

    def __init__(self, dataset: Any, workers: int, ahead: int) -> None:
        super().__init__(dataset, workers, ahead)
        self.broken = False
        self._seed = self._epoch = 0
        self._pool = concurrent.futures.ProcessPoolExecutor(
            workers, multiprocessing.get_context("spawn"), initializer=_initialize, initargs=(dataset,)
        )

    def draw_for(self, seed: int, epoch: int) -> None:
        """Sets the seed and the epoch of the next batches, which with a batch's place determine its random numbers."""
        self._seed, self._epoch = seed, epoch

    def map(self, numbers: Numbers) -> Iterator[Any]:
        """Yields the batches in the order of their numbers.

        Raises:
          UsageError: The dataset, or a batch, cannot be sent to another process.
          TrainingError: A process has ended, or could not be started.
        """
        seed, epoch = self._seed, self._epoch
        try:
            yield from self._in_order(
                lambda place, number: (
                    self._pool.submit(_compute, number, randomness.seed_of(seed, place), epoch).result
                ),
                numbers,
            )
        except concurrent.futures.BrokenExecutor as error:
            self.broken = True
            raise TrainingError(
                f"a worker process of {type(self._dataset).__name__} has ended: it was killed, ran out of memory, or "
                "could not be started",
                remedy="the dataset's class must be importable, and the program's own code be under "
                "`if __name__ == '__main__':`",
            ) from error
        except Exception as error:
            if "pickl" not in f"{type(error).__name__} {error}".lower():
                raise
            raise UsageError(
                f"{type(self._dataset).__name__} has use_multiprocessing=True, but cannot be sent to another process "
                f"({error})",
                remedy="define its class at the top of a module and keep open files and lambdas out of it, or set "
                "use_multiprocessing=False for threads",
            ) from error

    def close(self) -> None:
        """Stops the processes."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def why_no_processes(dataset: Any) -> str:
    """Returns why processes cannot compute the batches of a dataset; empty if nothing is known against it.

    A spawned process imports the main program first, and would train as well if that is not guarded.
    """
    path = getattr(sys.modules["__main__"], "__file__", None)
    is_typed = path is None and type(dataset).__module__ == "__main__"  # at a prompt, or in a notebook
    if is_typed or (path is not None and not os.path.exists(path)):
        return "its program has no file that processes could import"
    if path is None or _is_guarded(path):
        return ""
    return f"{os.path.basename(path)}, which processes import, trains outside of `if __name__ == '__main__':`"


@functools.cache
def _is_guarded(path: str) -> bool:
    """Whether a program runs its own code only under `if __name__ == "__main__":`, as far as one can see."""
    try:
        program = ast.parse(pathlib.Path(path).read_bytes())
    except (SyntaxError, ValueError):  # not written in Python
        return True
    tests = [node.test for node in program.body if isinstance(node, ast.If)]
    return any(isinstance(part, ast.Name) and part.id == "__name__" for test in tests for part in ast.walk(test))


_dataset: Any = None  # in a worker process: its copy of the dataset


def _initialize(dataset: Any) -> None:
    global _dataset
    end_with_parent()
    _dataset = dataset


def _compute(number: Any, seed: int, epoch: int) -> Any:
    words = randomness.generator(seed, epoch).integers(2**32, size=16)  # as BorrowedRandomness does
    random.seed(words.tobytes())
    np.random.seed(words)
    return _dataset[number]
