"""Processes that compute the batches of a dataset ahead of time; their arrays arrive through shared memory.

Each process has a pipe of its own to the process that trains, and a part of one shared memory. It gets its jobs in turn
with the others, computes them one after the other, writes the arrays of a result into its part, and sends a short
message. So nothing is locked: a process that is killed leaves the others as they are, and its pipe ends. The memory has
no name, and is gone with the last process that has it. Messages are pickled as `multiprocessing` does it: they come
from processes that this one has started, through pipes that nobody else has.

A process ends as soon as its pipe does: when it is closed, and when the training process has ended, however it did.
"""

import contextlib
import io
import itertools
import json
import mmap
import multiprocessing
import multiprocessing.util
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any, NamedTuple

import numpy as np

from everstep.data import randomness
from everstep.data.workers import Numbers, Workers
from everstep.errors import TrainingError, UsageError
from everstep.liveness import is_orphaned

_SLOT = 256 * 2**20  # bytes of addresses for a result, which cost nothing; larger ones are sent through the pipe
_ALIGNED = 64
_PARENT_SECONDS = 2.0  # between two looks whether the training process is alive, besides the end of the pipe
_END_SECONDS = 5.0  # a process may take to end with its pipe before it is killed


class Processes(Workers):
    """Worker processes, each with a copy of the dataset as it was when they were started.

    They are new processes, not forks: a fork of a process with a backend's threads may hang. So the dataset's class
    must be importable. With `import_program` it may also be a class of the program itself, whose own code must then be
    under `if __name__ == "__main__":`; see `why_no_processes`.

    Args:
      dataset: A dataset whose `__getitem__` returns a batch by its number.
      workers: How many batches are computed at once.
      ahead: How many batches are computed before they are needed.
      seeded: Whether `random` and `np.random` are set for each batch, for a dataset whose code may draw from them.
      in_place: Whether batches stay in the shared memory: each is valid only until the next one is asked for.
      import_program: Whether the processes import the program, as those of `multiprocessing` do. Without it they start
        faster, and need no memory for what the program imports.
    """

    def __init__(
        self,
        dataset: Any,
        workers: int,
        ahead: int,
        *,
        seeded: bool = True,
        in_place: bool = False,
        import_program: bool = True,
    ) -> None:
        super().__init__(dataset, workers, ahead)
        self.broken = False
        self._seeded, self._in_place, self._import_program = seeded, in_place, import_program
        self._seed = self._epoch = 0
        self._members: list[_Member] = []
        self._turn = 0
        # Also called when this object is collected, and before Python waits for its processes at exit.
        self._finalizer = multiprocessing.util.Finalize(self, _close, (self._members,), exitpriority=100)

    def draw_for(self, seed: int, epoch: int) -> None:
        """Sets the seed and the epoch of the next batches, which with a batch's place determine its random numbers."""
        self._seed, self._epoch = seed, epoch

    def map(self, numbers: Numbers) -> Iterator[Any]:
        """Yields the batches in the order of their numbers; one such iterator is read at a time.

        Raises:
          UsageError: The dataset, or a batch, cannot be sent to another process.
          TrainingError: A process has ended, or could not be started.
        """
        try:
            self._start()
            yield from self._in_order(self._submit, numbers)
        except _Ended as error:
            self.broken = True
            self.close()
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
        _close(self._members)

    def _start(self) -> None:
        if self._members:
            return
        each = -(-self._ahead // self._workers)
        start: _Start = _WithProgram if self._import_program else _start_alone
        message = _pickled(self._dataset)
        with _shared_memory(self._workers * each) as memory:
            for number in range(self._workers):
                self._members.append(_Member(start, memory, range(number * each, (number + 1) * each)))
        for member in self._members:  # when all have begun to start: one that imports a backend takes seconds
            member.send_bytes(message)

    def _submit(self, place: int, number: Any) -> Callable[[], Any]:
        member = self._members[self._turn]
        self._turn = (self._turn + 1) % self._workers
        drawn = (randomness.seed_of(self._seed, place), self._epoch) if self._seeded else None
        job = member.send(_Job(number, drawn))
        return lambda: member.result(job, self._in_place)


class _Ended(Exception):
    """A worker process has ended."""


class _Job(NamedTuple):
    """What a process computes: a number of the dataset, with the seed and the epoch of its random numbers, if any."""

    number: Any
    drawn: tuple[int, int] | None


class _Result(NamedTuple):
    """What a process sends.

    Attributes:
      pickled: The result, or an exception, without the arrays that are in the shared memory.
      sizes: The bytes of each of those arrays.
      error: The traceback, if it is an exception.
    """

    pickled: bytes
    sizes: list[int]
    error: str = ""


class _SharedMemory:
    """Memory that several processes have, in slots for a result each.

    Args:
      file: Its descriptor, which is needed only until the processes have it.
      slots: How many results there is room for.
    """

    def __init__(self, file: int, slots: int) -> None:
        self.file, self.slots = file, slots
        self._bytes = mmap.mmap(file, slots * _SLOT)

    def write(self, slot: int, parts: Sequence[memoryview]) -> bool:
        """Writes bytes one after the other; returns whether there was room for them."""
        if sum(part.nbytes + _ALIGNED for part in parts) > _SLOT:
            return False
        for part, place in zip(parts, _places(slot, [part.nbytes for part in parts]), strict=True):
            self._bytes[place] = part
        return True

    def read(self, slot: int, sizes: Sequence[int]) -> list[memoryview]:
        """Returns what was written, without a copy."""
        whole = memoryview(self._bytes)
        return [whole[place] for place in _places(slot, sizes)]

    def __reduce__(self) -> Any:
        return _received_memory, (DupFd(self.file), self.slots)  # to a process that is being started


@contextlib.contextmanager
def _shared_memory(slots: int) -> Iterator[_SharedMemory | None]:
    """Yields memory for processes that are started inside; None where the system has none without a name."""
    memory, file = None, -1
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError, ValueError):  # limits of address space
            file = os.memfd_create("everstep-data")
            os.ftruncate(file, slots * _SLOT)
            memory = _SharedMemory(file, slots)
    try:
        yield memory
    finally:
        if file >= 0:
            os.close(file)


def _places(slot: int, sizes: Sequence[int]) -> Iterator[slice]:
    start = slot * _SLOT
    for size in sizes:
        yield slice(start, start + size)
        start += -(-size // _ALIGNED) * _ALIGNED


# -- the training process ----------------------------------------------------------------------------------------------


class _Member:
    """One worker process, as the training process sees it.

    Results come in the order of the jobs. Its slots are used in turn, so it has at most as many jobs as slots.
    """

    def __init__(self, start: "_Start", memory: _SharedMemory | None, slots: range) -> None:
        self._memory, self._slots = memory, slots
        self._sent = self._received = 0
        self.connection, other = multiprocessing.Pipe()
        with other:
            self.process = start(other, memory, slots)

    def send_bytes(self, message: bytes) -> None:
        """Sends what is already pickled."""
        try:
            self.connection.send_bytes(message)
        except OSError as error:
            raise _Ended from error

    def send(self, job: _Job) -> int:
        """Sends a job; returns its number."""
        while self._sent - self._received >= len(self._slots):
            self._receive()  # of an iterator that was left before its end
        self.send_bytes(_pickled(job))
        self._sent += 1
        return self._sent - 1

    def result(self, number: int, in_place: bool) -> Any:
        """Returns the result of a job; raises the exception that it raised."""
        while self._received < number:
            self._receive()
        found = self._receive()
        parts: Any = []
        if found.sizes and self._memory is not None:
            parts = self._memory.read(self._slots[number % len(self._slots)], found.sizes)
        value = ForkingPickler.loads(found.pickled, buffers=parts if in_place else map(bytearray, parts))
        if found.error:
            raise value from _RemoteError(found.error)
        return value

    def _receive(self) -> _Result:
        try:
            found: _Result = self.connection.recv()
        except (EOFError, OSError) as error:
            raise _Ended from error
        self._received += 1
        return found


class _RemoteError(Exception):
    """The traceback of an exception in a worker process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _close(members: list[_Member]) -> None:
    for member in members:
        with contextlib.suppress(OSError):
            member.connection.close()
    for member in members:
        try:
            member.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            member.process.kill()
            member.process.wait()
    members.clear()


class _WithProgram:
    """A process of `multiprocessing`, which imports the program; has two methods of `Popen`."""

    def __init__(self, connection: Connection, memory: _SharedMemory | None, slots: range) -> None:
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_work, args=(connection, memory, slots), name="everstep-data")
        self._process.start()

    def wait(self, timeout: float | None = None) -> None:
        """Waits until it has ended.

        Raises:
          TimeoutExpired: It has not.
        """
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0)

    def kill(self) -> None:
        """Ends it."""
        self._process.kill()


def _start_alone(connection: Connection, memory: _SharedMemory | None, slots: range) -> "subprocess.Popen[bytes]":
    """Starts a process that imports what its work needs, and nothing else."""
    files = [connection.fileno(), *([] if memory is None else [memory.file])]
    setting = [
        [path for path in sys.path if isinstance(path, str)],
        files,
        memory.slots if memory else 0,
        slots.start,
        slots.stop,
    ]
    command = [sys.executable, "-c", _ALONE, json.dumps(setting)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=files)


_ALONE = """
import json, sys
sys.path, *setting = json.loads(sys.argv[1])
from everstep.data import worker_processes
worker_processes.work_alone(*setting)
"""

_Start = Callable[[Connection, _SharedMemory | None, range], Any]


# -- a worker process --------------------------------------------------------------------------------------------------


def work_alone(files: Sequence[int], all_slots: int, first: int, stop: int) -> None:
    """What a process that was started alone does; it has got the descriptors of its pipe and of the memory."""
    connection, *memory = files
    _work(Connection(connection), _received_memory(memory[0], all_slots) if memory else None, range(first, stop))


def _received_memory(file: Any, slots: int) -> _SharedMemory:
    descriptor = file if isinstance(file, int) else file.detach()
    try:
        return _SharedMemory(descriptor, slots)
    finally:
        os.close(descriptor)


def _work(connection: Connection, memory: _SharedMemory | None, slots: range) -> None:
    """Computes what the training process asks for, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the training process decides what Ctrl-C ends
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, messages, os.getppid()), daemon=True).start()
    dataset: Any = None
    try:
        dataset = ForkingPickler.loads(messages.get())
    except Exception as error:
        dataset = _Unreadable(error)
    for slot in itertools.cycle(slots):
        found = _answer(dataset, messages.get(), memory, slot)
        try:
            connection.send_bytes(_pickled(found))
        except OSError:  # the training process has ended
            os._exit(1)


class _Unreadable:
    """In place of a dataset that cannot be unpickled: each job reports why."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getitem__(self, number: Any) -> Any:
        raise self._error


def _receive(connection: Connection, messages: "queue.SimpleQueue[bytes]", parent: int) -> None:
    """Receives jobs while others are computed: the training process never waits until it can send one."""
    try:
        while True:
            while not connection.poll(_PARENT_SECONDS):
                if is_orphaned(parent):  # a fork of it still has its end of the pipe
                    os._exit(1)
            messages.put(connection.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)


def _answer(dataset: Any, message: bytes, memory: _SharedMemory | None, slot: int) -> _Result:
    try:
        job: _Job = ForkingPickler.loads(message)
        if job.drawn is not None:
            _seed(*job.drawn)
        return _packed(dataset[job.number], memory, slot)
    except BaseException as error:
        text = traceback.format_exc()
        try:
            return _Result(_pickled(error), [], text)
        except Exception:
            return _Result(_pickled(RuntimeError(f"{type(error).__name__}: {error}")), [], text)


def _packed(value: Any, memory: _SharedMemory | None, slot: int) -> _Result:
    if memory is not None:
        arrays: list[Any] = []
        pickled = _pickled(value, arrays.append)
        parts = [array.raw() for array in arrays]
        if memory.write(slot, parts):
            return _Result(pickled, [part.nbytes for part in parts])
    return _Result(_pickled(value), [])


def _pickled(value: Any, take_array: Callable[[Any], Any] | None = None) -> bytes:
    """Returns a value as bytes, without the memory of the arrays that are taken."""
    data = io.BytesIO()
    ForkingPickler(data, 5, True, take_array).dump(value)
    return data.getvalue()


def _seed(seed: int, epoch: int) -> None:
    words = randomness.generator(seed, epoch).integers(2**32, size=16)  # as BorrowedRandomness does
    random.seed(words.tobytes())
    np.random.seed(words)
