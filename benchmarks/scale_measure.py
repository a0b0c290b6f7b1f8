"""What one process costs: the figures that `scale_model.py` is fed with, measured on this machine in a few minutes.

Up to 8 processes are real ones. Larger numbers in the roll call and the meetings are threads of a few processes, each
with a connection of its own: the first process, which does the work, sees no difference.
"""

import argparse
import concurrent.futures
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import ROOT
from benchmarks.results import OURS, Case, Results, new_results
from everstep import gang

ROUNDS = 3
CROWDS = {2: 2, 4: 4, 8: 8, 32: 4, 128: 4}
"""Members of a gang, and the processes that they are in."""
MEETINGS = 20
RECORD_BYTES = 3 * 224 * 224


def measure() -> Results:
    """Measures everything, and prints it."""
    cases = []
    for part in (_checkpoints, _data, _service, _gangs, _start, _killed):
        for case in part():
            figure = f"{case.median(OURS):.6g} {case.unit}"
            print(f"{case.name}: {figure}", flush=True)
            cases.append(case)
    return new_results("scale_model", cases, ROUNDS, device=False)


def _field(name: str, field: str, unit: str, values: list[float]) -> Case:
    """Returns a case that the model reads as one of its fields."""
    return Case(name, unit, {OURS: values}, notes={"field": field})


def _rounds(call: Callable[[], Any]) -> list[float]:
    return [_seconds(call) for _ in range(ROUNDS)]


def _seconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


# -- checkpoints and data ----------------------------------------------------------------------------------------------


def _checkpoints() -> Iterator[Case]:
    """Yields the speed of each part of saving and restoring a checkpoint."""
    from everstep.checkpoint import arrays, manifest

    state = {f"layer{n}": np.random.default_rng(n).standard_normal(2**22, np.float32) for n in range(16)}
    bytes_ = sum(array.nbytes for array in state.values())
    found: dict[str, list[float]] = {name: [] for name in ("copy", "write", "hash", "verify", "read")}
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "1"
            record = manifest.Manifest(1, "", time.time(), {}, {}, "")
            calls = {
                "copy": lambda: [array.copy() for array in state.values()],
                "write": lambda: arrays.write(path, state, {}),  # noqa: B023
                "hash": lambda: manifest.write(path, record),  # noqa: B023
                "verify": lambda: manifest.verify(path),  # noqa: B023
                "read": lambda: arrays.read(path),  # noqa: B023
            }
            for name, call in calls.items():
                found[name].append(bytes_ / _seconds(call))
    yield _field("copying a state in memory", "copy", "B/s", found["copy"])
    yield _field("writing a checkpoint, Orbax", "write", "B/s", found["write"])
    yield _field("its manifest: SHA-256 and sync to disk", "hash", "B/s", found["hash"])
    yield _field("checking it against its manifest", "verify", "B/s", found["verify"])
    yield _field("reading its arrays, Orbax", "read", "B/s", found["read"])


def _data() -> Iterator[Case]:
    """Yields the speed of picking rows of arrays, and of reading records from the beginning."""
    from everstep.data.arrays import ArrayStream

    rows = 2000
    images = np.random.default_rng(0).integers(0, 255, (rows, RECORD_BYTES), np.uint8)
    stream = ArrayStream(images, 100, shuffle=True, seed=1, repeat=True)
    stream.block(20)
    values = [20 * 100 * RECORD_BYTES / _seconds(lambda: stream.block(20)) for _ in range(ROUNDS)]
    yield _field("picking rows out of arrays", "gather", "B/s", values)
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/images.tfrecord"
        with tf.io.TFRecordWriter(file) as writer:
            for row in range(rows):
                writer.write(images[row].tobytes())

        def read() -> None:
            for _ in tf.data.TFRecordDataset(file).batch(100):
                pass

        read()
        yield _field(
            f"reading TFRecords of {RECORD_BYTES // 1000} kB in order, not decoded",
            "records",
            "records/s",
            [rows / _seconds(read) for _ in range(ROUNDS)],
        )


# -- the coordination service ------------------------------------------------------------------------------------------


def _service() -> Iterator[Case]:
    """Yields the cost of single requests to the service, and of the values that it hands out."""
    service, client = gang.service.connect(gang.Coordinates(f"127.0.0.1:{_free_port()}", 0, 1), 60)
    client.key_value_set("one", "false")
    requests = [_seconds(lambda: client.blocking_key_value_get("one", 1000)) for _ in range(1000)]
    yield _field("one request to the coordination service", "request", "s", [statistics.median(requests)])
    large = 2**20
    client.key_value_set("large", "x" * large)
    values = [_seconds(lambda: client.blocking_key_value_get("large", 1000)) / large for _ in range(20)]
    yield _field("a value that it hands out, per byte", "value", "s", values)
    slopes, points = [], []
    for entries in (10, 100, 1000, 10_000):
        for number in range(entries):
            client.key_value_set(f"beat{entries}/{number}", "12345")
        read = _rounds(lambda: client.key_value_dir_get(f"beat{entries}"))  # noqa: B023
        points.append(Case(f"{entries:,} heartbeats", "s", {OURS: read}, "reading so many heartbeats", entries))
        slopes.append(statistics.median(read) / entries)
    yield _field("a heartbeat that is read, of 10,000", "entry", "s", slopes[-1:])
    yield from points
    client.shutdown()
    service.shutdown()


def _environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return {**os.environ, "PYTHONPATH": paths, "TF_CPP_MIN_LOG_LEVEL": "2"}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


# -- gangs -------------------------------------------------------------------------------------------------------------


def _gangs() -> Iterator[Case]:
    """Yields the roll call and the meetings of gangs of several sizes."""
    rolls, meetings = {}, {}
    for size, processes in CROWDS.items():
        found = [_gang(size, processes) for _ in range(ROUNDS if size <= 8 else 1)]
        rolls[size], meetings[size] = [one["roll"] for one in found], [one["gather"] for one in found]
    rolls |= {size: [_roll_call(size)] for size in (512, 2048)}
    members = [gang.Member(rank, "machine-0123.cluster.example", 123_456) for rank in range(1000)]
    listed = {"members": [(one.rank, one.host, one.pid) for one in members]}
    encode = [_seconds(lambda: json.dumps(listed).encode()) / 1000 for _ in range(20)]
    per_member = statistics.median(encode)
    largest = max(rolls)
    hello = statistics.median(rolls[largest]) / largest - per_member
    yield _field("a hello in a roll call of 2,048", "hello", "s", [max(hello, 0.0)])
    yield _field("encoding one member of the answer", "member", "s", encode)
    largest = max(meetings)
    yield _field(f"a meeting of {largest}, per process", "meet", "s", [statistics.median(meetings[largest]) / largest])
    for name, sizes in (("roll call of so many", rolls), ("meeting of so many", meetings)):
        for size, values in sizes.items():
            yield Case(f"{name}: {size}", "s", {OURS: values}, name, size)


def _gang(size: int, processes: int) -> dict[str, float]:
    """Starts a gang in so many processes; returns what the first member measured."""
    address = f"127.0.0.1:{_free_port()}"
    children = []
    for number in range(processes):
        ranks = f"{size * number // processes}:{size * (number + 1) // processes}"
        command = [sys.executable, "-m", "benchmarks.scale_measure", "--address", address, "--size", str(size)]
        children.append(subprocess.Popen([*command, "--ranks", ranks], stdout=subprocess.PIPE, env=_environment()))
    outputs = [child.communicate(timeout=240)[0] for child in children]
    if any(child.returncode for child in children):
        raise SystemExit(f"a gang of {size} failed")
    found: dict[str, float] = json.loads(outputs[0].splitlines()[-1])
    return found


def _members(address: str, size: int, ranks: range) -> None:
    """One process of `_gang`: some members, a thread for each; the first one prints."""
    import jaxlib._jax  # noqa: F401 - not a part of the roll call

    ready = threading.Barrier(len(ranks))

    def member(rank: int) -> dict[str, float]:
        coordinates = gang.Coordinates(address, rank, size)
        ready.wait()
        gang.roll_call.meet(coordinates, 120)  # all processes have started when it ends
        ready.wait()
        roll = _seconds(lambda: gang.roll_call.meet(coordinates, 120))
        members = [gang.Member(number, "here", 1) for number in range(size)]
        own = gang.service.ServiceGang(coordinates, members, 120, spans_devices=False)
        gang.barrier(own, "all are here")
        met = [_seconds(lambda: own.gather("a call", False)) for _ in range(MEETINGS)]
        gang.barrier(own, "the end")
        own.leave()
        return {"roll": roll, "gather": statistics.median(met)}

    with concurrent.futures.ThreadPoolExecutor(len(ranks)) as threads:
        found = list(threads.map(member, ranks))
    if 0 in ranks:
        print(json.dumps(found[0]), flush=True)


def _roll_call(size: int) -> float:
    """Returns the seconds of a roll call in which all but the first are threads of one other process."""
    address = f"127.0.0.1:{_free_port()}"
    command = [sys.executable, "-m", "benchmarks.scale_measure", "--address", address, "--size", str(size), "--hello"]
    child = subprocess.Popen(command, env=_environment())
    time.sleep(2.0 + size / 500)  # they knock until somebody listens
    found = _seconds(lambda: gang.roll_call.meet(gang.Coordinates(address, 0, size), 240))
    if child.wait(240):
        raise SystemExit(f"a roll call of {size} failed")
    return found


def _hellos(address: str, size: int) -> None:
    """The other process of `_roll_call`."""
    threads = [
        threading.Thread(target=gang.roll_call.meet, args=(gang.Coordinates(address, rank, size), 240))
        for rank in range(1, size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# -- a start, and a run that is killed ---------------------------------------------------------------------------------


def _start() -> Iterator[Case]:
    """Yields the parts of a start on JAX; the first one warms the file cache, and does not count."""
    from benchmarks import startup

    starts = [startup.launch("jax") for _ in range(ROUNDS + 1)][1:]
    clock = [{name: spent[0] for name, spent in start.items()} for start in starts]
    imports = [one["python"] + one["keras"] + one["everstep"] for one in clock]
    first = [one["tracing"] + one["first step"] for one in clock]
    rest = [one["total"] - before - after for one, before, after in zip(clock, imports, first, strict=True)]
    yield _field("start: imports, JAX", "imports", "s", imports)
    yield _field("start: data, model, record", "build", "s", rest)
    yield _field("start: tracing, compiling and running a first step of an MLP", "first_step", "s", first)


def _killed() -> Iterator[Case]:
    """Yields the goodput of a real run that saves every 5 seconds and is killed every 20, and what the model says."""
    from benchmarks.reliability import goodput_under_kills
    from benchmarks.scale_model import kept_steps

    period, interval = 20.0, 5.0
    with tempfile.TemporaryDirectory() as folder:
        figures = goodput_under_kills.measure(Path(folder), "jax", period, 2, interval)
    yield Case("steps kept of a run that is killed every 20 s and saves every 5", "share", {OURS: [figures.ratio]})
    expected = kept_steps(interval, 0.0, period)
    yield Case("the same by the model", "share", {OURS: [expected]})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A process of a measurement of benchmarks.scale_model.")
    parser.add_argument("--address", required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--ranks", default="")
    parser.add_argument("--hello", action="store_true")
    given = parser.parse_args()
    if given.hello:
        _hellos(given.address, given.size)
    else:
        _members(given.address, given.size, range(*map(int, given.ranks.split(":"))))
