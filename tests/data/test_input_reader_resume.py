"""A reader resumes with the very next batch, in the same process and in another one, in every form."""

import contextlib
import hashlib
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from record_files import numbers, parse, reader, write

from everstep.testing import streams
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow

tf = pytest.importorskip("tensorflow")

STATE = {"epoch": 1, "batch": 3}


def noisy(features):
    return {**parse(features), "noise": tf.random.uniform([])}


def stateless(features):
    return {**parse(features), "noise": tf.random.stateless_uniform([], [1, features["id"]])}


def even(sample):
    return sample["id"] % 5 != 0


def mixed(parts):
    return tf.data.Dataset.sample_from_datasets([parts["a"], parts["b"]], seed=1)


def forms(folder):
    """Returns functions that make a new stream of each form, by name."""
    plain, zipped = write(folder / "plain"), write(folder / "zipped", compression="GZIP")
    one = write(folder / "one", shards=1)
    makers = {
        "several files": lambda **more: reader(plain, **more),
        "one file": lambda **more: reader(one, **more),
        "evaluation": lambda **more: reader(plain, is_training=False, **more),
        "GZIP": lambda **more: reader(zipped, compression="GZIP", **more),
        "interleave": lambda **more: reader(plain, cycle_length=2, block_length=3, **more),
        "cache": lambda **more: reader(plain, cache=True, **more),
        "filter": lambda **more: reader(plain, {"filter_fn": even}, **more),
        "filter and cache": lambda **more: reader(plain, {"filter_fn": even}, cache=True, **more),
        "stateless noise": lambda **more: reader(plain, {"parser_fn": stateless}, **more),
        "noise": lambda **more: reader(plain, {"parser_fn": noisy}, **more),
        "noise after the batch": lambda **more: reader(
            plain, {"postprocess_fn": lambda batch: {**batch, "n": tf.random.uniform([1])}}, **more
        ),
        "noise and cache": lambda **more: reader(plain, {"parser_fn": noisy}, cache=True, **more),
        "combined": lambda **more: reader({"a": plain, "b": one}, {"combine_fn": mixed}, is_training=False, **more),
    }
    return {name: lambda repeat, make=make: make(repeat=repeat).read() for name, make in makers.items()}


FORMS = [
    *("several files", "one file", "evaluation", "GZIP", "interleave", "cache", "filter", "filter and cache"),
    *("stateless noise", "noise", "noise after the batch", "noise and cache", "combined"),
]


@pytest.fixture(scope="module")
def streams_by_form(tmp_path_factory):
    found = forms(tmp_path_factory.mktemp("forms"))
    assert list(found) == FORMS
    return found


@pytest.fixture(autouse=True)
def global_seed():
    tf.random.set_seed(7)  # as a run does before it builds its data


@pytest.mark.full
def test_resumes_in_another_process(streams_by_form, tmp_path):
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
            "PYTHONHASHSEED": "5",
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    straight = json.loads(done.stdout.splitlines()[-1])
    for name, make in streams_by_form.items():
        stream = make(True)
        assert stream.why_not_exact == "", name
        stream.restore(STATE)
        assert [digest(next(stream)) for _ in range(3)] == straight[name], name


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("check", streams.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.full
def test_contract(streams_by_form, name, check):
    check(streams_by_form[name])


@pytest.mark.parametrize("name", ["several files", "one file", "GZIP", "interleave", "cache", "evaluation"])
def test_every_sample_once(streams_by_form, name):
    read = numbers(streams_by_form[name](False))
    assert len(set(read)) == len(read)
    assert len(read) == (23 if name == "evaluation" else 20)  # full batches only, in training


def test_a_mixture_resumes(tmp_path):
    path = {"a": write(tmp_path / "a", 12), "b": write(tmp_path / "b", 4, first=100)}
    straight, resumed = (reader(path, {"combine_fn": mixed}).read() for _ in range(2))
    read = [next(straight) for _ in range(20)]
    assert straight.why_not_exact == ""
    resumed.restore({"epoch": 0, "batch": 14})
    assert all(streams.same_batch(next(resumed), batch) for batch in read[14:])


@contextlib.contextmanager
def without_determinism():
    """TensorFlow refuses unseeded operations if a run of another test has enabled determinism."""
    config = importlib.import_module("tensorflow.python.framework.config")
    before = config.is_op_determinism_enabled()
    config.disable_op_determinism()
    try:
        yield
    finally:
        if before:
            config.enable_op_determinism()


def test_functions_that_cannot_resume_exactly_are_reported(tmp_path):
    def unseeded(parts):
        return tf.data.Dataset.sample_from_datasets([parts["a"], parts["b"]])

    path = {"a": write(tmp_path / "a"), "b": write(tmp_path / "b")}
    with without_determinism():
        tf.random.set_seed(None)
        assert "a random choice" in reader(path, {"combine_fn": unseeded}).read().why_not_exact
        assert "RandomUniform in a function has no seed" in reader(path["a"], {"parser_fn": noisy}).read().why_not_exact


def test_skipped_records_are_not_parsed(tmp_path):
    parsed = []

    def counted(features):
        tf.py_function(lambda number: parsed.append(int(number)), [features["id"]], [])
        return parse(features)

    stream = reader(write(tmp_path), {"parser_fn": counted}, is_training=False, prefetch_buffer_size=1).read()
    stream.restore({"epoch": 0, "batch": 4})
    assert next(stream)["id"].tolist() == [16, 17, 18, 19]
    assert min(parsed) == 12


def test_data_that_became_shorter_is_detected(tmp_path):
    stream = reader(write(tmp_path)).read()
    stream.restore({"epoch": 0, "batch": 7})
    with raises_problem(reason="the data ends before it"):
        next(stream)


def digest(batch):
    parts = [np.asarray(batch[key]).tobytes() for key in sorted(batch)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def straight_to_state(stream):
    """Reads from the start, and returns the digests of the three batches that follow STATE."""
    while stream.state() != STATE:
        next(stream)
    return [digest(next(stream)) for _ in range(3)]


if __name__ == "__main__":
    tf.random.set_seed(7)
    print(json.dumps({name: straight_to_state(make(True)) for name, make in forms(Path(sys.argv[1])).items()}))
