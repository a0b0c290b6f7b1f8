"""Grain pipelines: resumed by Grain's state, with worker processes, in Grain's orders."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from everstep.data import DataConfig, GrainStream, make_stream
from everstep.data.wrappers import MappedStream
from everstep.errors import UsageError
from everstep.testing import streams
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow

grain = pytest.importorskip("grain")
from grain_program import Source as Unprinted  # noqa: E402 - it needs Grain

PROGRAM = Path(__file__).parent / "grain_program.py"
SAMPLES, BATCH = 8, 3
QUIET = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


class Source:
    """Samples that contain their index, and a list of the indices that were read."""

    def __init__(self, size=SAMPLES):
        self.size, self.read = size, []

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.read.append(int(index))
        return {"id": index, "row": np.array([index, 10 * index], "float32")}

    def __repr__(self):
        return "Source()"


def map_dataset():
    return grain.MapDataset.source(Source()).seed(7)


def samples():
    return map_dataset().shuffle()


def noisy(element, rng):
    return {**element, "noise": rng.normal()}


def loader(batched=True, epochs=1, workers=0, seed=3, source=None, shuffle=False):
    """A DataLoader. To shuffle so few samples, Grain needs milliseconds for each: most tests need no other order."""
    sampler = grain.samplers.IndexSampler(
        SAMPLES, grain.sharding.NoSharding(), shuffle=shuffle, num_epochs=epochs, seed=seed
    )
    operations = [grain.transforms.Batch(BATCH)] if batched else []
    return grain.DataLoader(
        data_source=source or Source(),
        sampler=sampler,
        operations=operations,
        worker_count=workers,
        read_options=QUIET,
    )


def keep(element):
    return element["id"] % 5 != 1


PIPELINES = {
    "map dataset": lambda: samples().batch(BATCH),
    "map dataset of samples": lambda: map_dataset().random_map(noisy),
    "iter dataset": lambda: map_dataset().to_iter_dataset(QUIET).batch(BATCH),
    "data loader": loader,
    "map dataset with a filter": lambda: map_dataset().filter(keep),
    "two rounds": lambda: samples().repeat(2).batch(BATCH),
    "iter dataset of samples": lambda: map_dataset().to_iter_dataset(QUIET).filter(keep).random_map(noisy),
    "windows": lambda: grain.experimental.WindowShuffleIterDataset(
        map_dataset().to_iter_dataset(QUIET), window_size=4, seed=2
    ).batch(BATCH),
    "data loader of samples": lambda: loader(batched=False, shuffle=True),
    "data loader of a source without a name": lambda: loader(source=Unprinted()),
}
WHOLE = list(PIPELINES)[:4]
CASES = [(name, check) for name in WHOLE for check in streams.CHECKS]
CASES += [(name, streams.check_restores_without_bookmarks) for name in PIPELINES if name not in WHOLE]


def grain_streams(name):
    return lambda repeat: GrainStream(PIPELINES[name](), batch_size=BATCH, repeat=repeat)


@pytest.mark.parametrize(("name", "check"), CASES, ids=lambda case: getattr(case, "__name__", case))
def test_contract(name, check):
    check(grain_streams(name))


@pytest.mark.parametrize("check", [streams.check_restores_without_bookmarks], ids=lambda check: check.__name__)
def test_contract_of_a_wrapping_stream(check):
    check(lambda repeat: MappedStream(grain_streams("iter dataset")(repeat), lambda batch: batch["id"]))


def test_a_map_dataset_is_reshuffled_in_every_epoch():
    streams.check_every_sample_once(grain_streams("map dataset"), SAMPLES, shuffled=True)
    streams.check_every_sample_once(grain_streams("map dataset of samples"), SAMPLES, shuffled=False)
    assert grain_streams("map dataset")(True).batches_per_epoch == 3
    assert grain_streams("map dataset with a filter")(True).batches_per_epoch is None


def test_epochs_equal_the_rounds_of_grains_repeat():
    stream = grain_streams("map dataset")(True)
    rounds = iter(samples().repeat().to_iter_dataset(QUIET))
    for _ in range(3):
        epoch = np.concatenate([next(stream)["id"] for _ in range(3)])
        assert epoch.tolist() == [element["id"] for element in itertools.islice(rounds, SAMPLES)]


@pytest.mark.parametrize("name", ["iter dataset", "data loader"])
def test_epochs_of_other_pipelines_are_the_same(name):
    stream = grain_streams(name)(True)
    epochs = [[next(stream)["id"].tolist() for _ in range(3)] for _ in range(2)]
    assert epochs[0] == epochs[1]
    assert sorted(sum(epochs[0], [])) == list(range(SAMPLES))


ENDLESS = {
    "map dataset": lambda: samples().repeat().batch(BATCH),
    "iter dataset": lambda: samples().repeat().to_iter_dataset(QUIET).batch(BATCH),
    "repeated iter dataset": lambda: grain.experimental.RepeatIterDataset(
        samples().to_iter_dataset(QUIET).batch(BATCH)
    ),
    "data loader": lambda: loader(epochs=None),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_pipelines_have_no_epochs(name):
    def stream():
        return GrainStream(ENDLESS[name](), repeat=True)

    assert GrainStream(ENDLESS[name]()).never_ends
    straight = stream()
    assert straight.batches_per_epoch is None
    read = [(next(straight), straight.state()) for _ in range(8)]
    assert [state["epoch"] for _, state in read] == [0] * 8
    resumed = stream()
    resumed.restore(json.loads(json.dumps(read[5][1])))
    assert all(streams.same_batch(next(resumed), batch) for batch, _ in read[6:])


@pytest.mark.parametrize("name", PIPELINES)
def test_finite_pipelines_have_an_end(name):
    assert not grain_streams(name)(False).never_ends


def test_a_limited_pipeline_has_an_end():
    limited = grain.experimental.LimitIterDataset(ENDLESS["iter dataset"](), 2)
    assert not GrainStream(limited).never_ends
    assert len(list(GrainStream(limited))) == 2


FAR = {
    "map dataset": lambda source: grain.MapDataset.source(source).batch(10),
    "iter dataset": lambda source: grain.MapDataset.source(source).to_iter_dataset(QUIET).batch(10),
    "data loader": lambda source: grain.DataLoader(
        data_source=source,
        sampler=grain.samplers.SequentialSampler(1000, grain.sharding.NoSharding()),
        operations=[grain.transforms.Batch(10)],
        read_options=QUIET,
    ),
}


@pytest.mark.parametrize("name", FAR)
def test_resuming_reads_nothing_before_the_position(name):
    stream = GrainStream(FAR[name](Source(1000)))
    for _ in range(90):
        next(stream)
    source = Source(1000)
    resumed = GrainStream(FAR[name](source))
    source.read.clear()  # the first element of a MapDataset is read to see whether it is a batch
    resumed.restore(stream.state())
    assert next(resumed)["id"].tolist() == list(range(900, 910))
    assert min(source.read) == 900


def test_a_map_dataset_needs_no_bookmark():
    source = Source(1000)
    stream = GrainStream(FAR["map dataset"](source))
    source.read.clear()
    stream.restore({"epoch": 0, "batch": 90})
    assert next(stream)["id"][0] == 900
    assert min(source.read) == 900


def test_the_bookmark_is_grains_state():
    stream = grain_streams("iter dataset")(True)
    next(stream)
    assert stream.state() == {"epoch": 0, "batch": 1, "bookmark": {"next_index": 3}}


def refusal(pipeline, state):
    """Returns the error for a state of another pipeline."""
    stream = GrainStream(pipeline(), batch_size=BATCH)
    stream.restore(state)
    with pytest.raises(UsageError) as error:
        next(stream)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_another_pipeline_is_refused():
    stream = grain_streams("data loader")(True)
    next(stream)
    assert "Sampler in checkpoint does not match" in refusal(lambda: loader(seed=9), stream.state())
    assert "DataSource in checkpoint" in refusal(lambda: loader(source=range(SAMPLES)), stream.state())
    assert "Worker count" in refusal(lambda: loader(workers=1), stream.state())
    assert "out of range" in refusal(
        PIPELINES["iter dataset"], {"epoch": 0, "batch": 9, "bookmark": {"next_index": 99}}
    )
    assert "start a new run" in refusal(PIPELINES["windows"], {"epoch": 0, "batch": 1, "bookmark": {"next_index": 3}})


def test_another_number_of_workers_is_refused():
    def pipeline(workers):
        options = grain.MultiprocessingOptions(num_workers=workers)
        return lambda: samples().to_iter_dataset(QUIET).batch(BATCH).mp_prefetch(options)

    bookmark = GrainStream(pipeline(2)())._start(0).state()
    error = refusal(pipeline(3), {"epoch": 0, "batch": 1, "bookmark": bookmark})
    assert "the number of workers, or of datasets read in turn, has changed" in error


def test_an_operation_over_the_whole_iterator_weakens_the_guarantee():
    class Pairs(grain.transforms.Map):
        def map(self, element):
            return element

    def operation(elements):
        yield from elements

    sampler = grain.samplers.SequentialSampler(SAMPLES, grain.sharding.NoSharding())

    def loader_stream(last):
        return GrainStream(grain.DataLoader(data_source=Source(), sampler=sampler, operations=[Pairs(), last]))

    assert loader_stream(Pairs()).why_not_exact == grain_streams("map dataset")(True).why_not_exact == ""
    assert "whose state Grain does not save" in loader_stream(operation).why_not_exact


def test_sources_are_recognised():
    config = DataConfig(global_batch_size=BATCH)
    for pipeline in PIPELINES.values():
        assert isinstance(make_stream(pipeline(), config, training=True, seed=0), GrainStream)
    training = make_stream(samples(), config, training=True, seed=0)
    assert training.repeat
    assert training.batches_per_epoch == 2  # full batches only
    assert [len(batch["id"]) for batch in make_stream(samples(), config, training=False, seed=0)] == [3, 3, 2]
    with raises_problem(key="global_batch_size", received=0):
        GrainStream(samples(), batch_size=0)


def test_ragged_samples_are_refused():
    ragged = grain.MapDataset.range(4).map(lambda n: (n, np.zeros(n)))
    with raises_problem(reason="different shapes"):
        next(GrainStream(ragged, batch_size=2))


def run_program(folder, *arguments):
    """Returns the exit code and the printed lines; uses a file, as a worker left behind would keep a pipe open."""
    command = [sys.executable, str(PROGRAM), str(folder / "state"), *map(str, arguments)]
    with open(folder / "printed", "w+") as printed:
        done = subprocess.run(command, stdout=printed, timeout=600)
        printed.seek(0)
        return done.returncode, printed.read().splitlines()


@pytest.mark.full
def test_killed_and_resumed_with_workers(tmp_path):
    """A killed run resumes with the next batch, and leaves no worker behind."""
    straight = _straight(8)
    killed, (*first, workers) = run_program(tmp_path, 4, 1, "die")
    assert killed == -signal.SIGKILL
    assert json.loads(workers)
    assert _gone(json.loads(workers))
    ended, rest = run_program(tmp_path, 4, 1, "end")
    assert ended == 0
    assert [json.loads(line) for line in [*first, *rest]] == straight


def _straight(count):
    """Returns the batches of one process without workers: the same, as one worker keeps the order."""
    from grain_program import loader as of_program

    stream = GrainStream(of_program(0), repeat=True)
    batches = [next(stream) for _ in range(count)]
    return [[batch["id"].tolist(), batch["noise"].tolist()] for batch in batches]


def _gone(pids):
    until = time.monotonic() + 300
    while any(map(_alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(_alive, pids))


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.full
def test_resumed_with_two_workers():
    """Real workers, also at positions after one or both of them have ended."""

    def stream():
        options = grain.MultiprocessingOptions(num_workers=2)
        return GrainStream(samples().to_iter_dataset(QUIET).batch(2).mp_prefetch(options), repeat=True)

    straight = stream()
    read = [(next(straight), straight.state()) for _ in range(9)]
    for place in (1, 3, 4, 5):
        resumed = stream()
        resumed.restore(json.loads(json.dumps(read[place - 1][1])))
        for batch, state in read[place : place + 3]:
            assert streams.same_batch(next(resumed), batch)
            assert resumed.state() == state
