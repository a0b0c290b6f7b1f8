"""Workers that compute several batches of a dataset at once, and return them in order.

Threads are here, processes in `worker_processes.py`. Their number follows one rule, `recommended_workers`: a core for
each, and one left for the training thread.
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
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

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
