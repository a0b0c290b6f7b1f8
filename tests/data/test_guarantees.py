"""A stream's guarantee against its behaviour: every pipeline is really read, stopped and resumed."""

import re

import numpy as np
import pytest

import everstep as es
from everstep.data import ArrayStream, IterableStream, TFDataStream
from everstep.data.wrappers import MappedStream

pytestmark = pytest.mark.slow

tf = pytest.importorskip("tensorflow")
context = pytest.importorskip("tensorflow.python.eager.context")
config = pytest.importorskip("tensorflow.python.framework.config")

D = tf.data.Dataset
N = 24


@pytest.fixture(autouse=True)
def fresh_tensorflow():
    """No global seed and no deterministic operations, as in a new process."""
    seed, orderly = context.global_seed(), config.is_op_determinism_enabled()
    tf.random.set_seed(None)
    config.disable_op_determinism()
    yield
    tf.random.set_seed(seed)
    (config.enable_op_determinism if orderly else config.disable_op_determinism)()


def number(x):
    return tf.cast(x, tf.float32)


def noisy(**seed):
    return lambda x: number(x) + tf.random.uniform((), **seed)


def sometimes_noisy(x):
    return tf.cond(x > 2, lambda: tf.random.uniform(()), lambda: 0.0)


def stateless(x):
    return number(x) + tf.random.stateless_uniform((), (x, x))


def from_generator(draw):
    generator = tf.random.Generator.from_seed(3)
    return lambda x: number(x) + draw(generator)


def through_layer():
    keras = pytest.importorskip("keras")
    layer = keras.layers.RandomBrightness(0.5, seed=1)
    return lambda x: layer(tf.fill((1, 4, 4, 1), number(x)))[0, 0, 0, 0]


def counting():
    """Counts its calls in a variable, without effect on the result."""
    calls = tf.Variable(0, dtype=tf.int64)

    def count(x):
        calls.assign_add(1)
        return x

    return count


def slow(x):
    """Takes much longer for every third number."""
    rounds = tf.where(x % 3 == 0, 15, 1)
    last = tf.while_loop(lambda i, m: i < rounds, lambda i, m: (i + 1, m @ m), (0, tf.zeros((200, 200))))[1]
    return x + tf.cast(last[0, 0], tf.int64)


def python_numbers():
    yield from range(N)


def shuffled(**kwargs):
    return lambda i: D.range(6 * i, 6 * i + 6).shuffle(6, **kwargs)


def mixture_of_two(**kwargs):
    return D.sample_from_datasets([D.range(12), D.range(100, 112)], **kwargs)


def unordered(dataset):
    options = tf.data.Options()
    options.deterministic = False
    return dataset.with_options(options)


EXACT = {
    "in order": lambda: D.range(N),
    "seeded": lambda: D.range(N).shuffle(N, seed=1),
    "seed 0": lambda: D.range(N).shuffle(N, seed=0),
    "one order": lambda: D.range(N).shuffle(N, seed=1, reshuffle_each_iteration=False),
    "seeded and cached": lambda: D.range(N).shuffle(N, seed=1).cache(),
    "shuffle of one": lambda: D.range(N).shuffle(1),
    "one file": lambda: D.list_files(__file__).map(tf.strings.length).repeat(N),
    "shuffle and repeat": lambda: D.range(N).apply(tf.data.experimental.shuffle_and_repeat(N, 2, seed=1)),
    "seeded inside": lambda: D.range(4).interleave(shuffled(seed=2)),
    "seeded inside, parallel": lambda: D.range(4).interleave(shuffled(seed=2), cycle_length=4, num_parallel_calls=4),
    "shuffle of one inside": lambda: D.range(N).flat_map(lambda i: D.range(i, i + 1).shuffle(1)),
    "mixed": lambda: mixture_of_two(seed=1),
    "mixed anew": lambda: mixture_of_two(seed=1, rerandomize_each_iteration=True),
    "random": lambda: D.random(seed=1).take(N),
    "random anew": lambda: D.random(seed=1, rerandomize_each_iteration=True).take(N),
    "seeded noise": lambda: D.range(N).map(noisy(seed=5)),
    "stateless noise": lambda: D.range(N).map(stateless, num_parallel_calls=4),
    "parallel": lambda: D.range(N).map(slow, num_parallel_calls=4),
    "nothing parallel": lambda: unordered(D.range(N).map(stateless)),
    "counting": lambda: D.range(N).map(counting()),
    "python": lambda: D.from_generator(python_numbers, output_signature=tf.TensorSpec((), tf.int64)),
    "twice the same": lambda: (lambda d: D.zip((d, d)).map(lambda a, b: a + b))(D.range(N).shuffle(N, seed=1)),
}

NO_SEED = {
    "shuffle": lambda: D.range(N).shuffle(N),
    "one order": lambda: D.range(N).shuffle(N, reshuffle_each_iteration=False),
    "cached": lambda: D.range(N).shuffle(N).cache(),
    "shuffle and repeat": lambda: D.range(N).apply(tf.data.experimental.shuffle_and_repeat(N, 2)),
    "inside": lambda: D.range(4).interleave(shuffled()),
    "mixed": lambda: mixture_of_two(),
    "random": lambda: D.random().take(N),
    "noise": lambda: D.range(N).map(noisy()),
    "noise further in": lambda: D.range(N).map(sometimes_noisy),
    "choice by noise": lambda: D.range(2 * N).filter(lambda x: tf.random.uniform(()) > 0.2),
}

CARRIED = {
    "uniform": lambda: D.range(N).map(from_generator(lambda generator: generator.uniform(()))),
    "normal": lambda: D.range(N).map(from_generator(lambda generator: generator.normal(()))),
    "cached": lambda: D.range(N).map(from_generator(lambda generator: generator.normal(()))).cache(),
    "layer": lambda: D.range(N).map(through_layer()),
}


def cases(builders):
    return pytest.mark.parametrize("build", [pytest.param(build, id=name) for name, build in builders.items()])


def stream(build, **kwargs):
    """Returns a stream after a peek, as a trainer peeks before it restores the saved position."""
    made = TFDataStream(build().batch(4), repeat=True, **kwargs)
    made.peek()
    return made


def resumes(build, epoch=1, batch=2):
    """Whether a second stream, restored to a position of the first, continues with the same batches."""
    first, second = stream(build), stream(build)
    while first.state() != {"epoch": epoch, "batch": batch}:
        next(first)
    second.restore(first.state())
    return all(np.array_equal(next(first), next(second)) for _ in range(9))


@cases(EXACT)
def test_exact_pipelines_have_an_empty_guarantee(build):
    assert stream(build).why_not_exact == ""
    assert resumes(build)


@cases(NO_SEED)
def test_a_missing_seed_is_reported(build):
    assert "has no seed" in stream(build).why_not_exact
    assert not resumes(build)


@cases(NO_SEED)
def test_a_global_seed_replaces_a_missing_one_if_it_is_set_before(build):
    def after():
        tf.random.set_seed(7)
        return build()

    assert stream(after).why_not_exact == ""
    assert resumes(after)


def test_a_global_seed_has_no_effect_on_an_existing_dataset():
    made = [D.range(N).shuffle(N) for _ in range(2)]
    tf.random.set_seed(7)
    assert "has no seed" in stream(lambda: made[0]).why_not_exact
    assert not resumes(lambda: made.pop())


@cases(CARRIED)
def test_state_that_outlives_a_pass_is_reported(build):
    assert "state is lost after the first pass" in stream(build).why_not_exact
    # After two passes: the peek's pass, as far as TensorFlow reads it ahead, draws at most the numbers of one.
    assert not resumes(build, epoch=2)


@cases({name: CARRIED[name] for name in ("uniform", "layer")})
def test_one_endless_pass_resumes_with_its_state(build):
    assert stream(lambda: build().repeat()).why_not_exact == ""
    assert resumes(lambda: build().repeat(), epoch=0, batch=8)
    assert TFDataStream(build().repeat().batch(4)).why_not_exact  # each evaluation is a pass


@pytest.mark.parametrize("draw", [noisy(seed=5), from_generator(lambda generator: generator.uniform(()))])
def test_random_numbers_in_a_parallel_map_are_reported(draw):
    def build(calls):
        return TFDataStream(D.range(N).map(draw, num_parallel_calls=calls).repeat().batch(4), repeat=True)

    assert "parallel function" in build(4).why_not_exact
    assert "parallel function" in build(tf.data.AUTOTUNE).why_not_exact
    assert build(1).why_not_exact == ""


def test_random_numbers_in_a_parallel_interleave_are_reported():
    def build(**kwargs):
        return lambda: D.range(4).interleave(lambda i: D.range(6).map(noisy(seed=5)), cycle_length=4, **kwargs)

    assert "parallel function" in stream(build(num_parallel_calls=4)).why_not_exact
    assert stream(build()).why_not_exact == ""
    assert resumes(build())


UNORDERED = {
    "map": lambda: D.range(N).map(slow, num_parallel_calls=4, deterministic=False),
    "map by option": lambda: unordered(D.range(N).map(slow, num_parallel_calls=4)),
    "interleave by option": lambda: unordered(D.range(4).interleave(D.range, cycle_length=4, num_parallel_calls=4)),
    "batch": lambda: D.range(N).batch(1, num_parallel_calls=4, deterministic=False).unbatch(),
}


@cases(UNORDERED)
def test_an_undefined_order_is_reported(build):
    assert "undefined order" in stream(build).why_not_exact


@cases({name: UNORDERED[name] for name in ("map", "map by option")})
def test_op_determinism_makes_the_order_exact(build):
    """It has an effect when the dataset is read, even if the dataset was created before."""
    made = [build() for _ in range(2)]
    tf.config.experimental.enable_op_determinism()
    assert stream(lambda: made[0]).why_not_exact == ""
    assert resumes(lambda: made.pop())


def test_the_argument_of_a_step_overrides_the_option():
    build = UNORDERED["map by option"]
    assert build().options().deterministic is False
    ordered = unordered(D.range(N).map(slow, num_parallel_calls=4, deterministic=True))
    assert stream(lambda: ordered).why_not_exact == ""


def test_every_weakness_is_reported_once_with_its_remedy():
    dataset = D.range(N).shuffle(N).shuffle(N).map(from_generator(lambda generator: generator.uniform(())))
    why = stream(lambda: dataset).why_not_exact
    assert why.count("has no seed") == 1
    assert "give it a seed" in why
    assert why.count("after the first pass") == 1
    assert "\n" not in why


def test_guarantees_of_other_sources():
    arrays = ArrayStream(np.arange(4), 2, shuffle=True)
    weak = TFDataStream(D.range(N).shuffle(N).batch(4))
    assert (
        arrays.why_not_exact
        == IterableStream(lambda: iter([])).why_not_exact
        == IterableStream([1, 2]).why_not_exact
        == ""
    )
    assert "pass the function" in IterableStream(iter([np.ones(2)])).why_not_exact
    assert MappedStream(weak, lambda batch: batch).why_not_exact == weak.why_not_exact != ""
    assert MappedStream(arrays, lambda batch: batch).why_not_exact == ""


def trained(dataset, directory):
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    es.fit(model, dataset, validation_data=dataset, model_dir=directory)


@pytest.mark.backend
def test_a_run_reports_a_weak_guarantee_at_its_start(tmp_path, capsys):
    samples = D.from_tensor_slices((np.ones((8, 1), "float32"), np.ones((8, 1), "float32")))
    unseeded, exact = samples.shuffle(8).batch(4), samples.shuffle(8, seed=1).batch(4)
    trained(unseeded, tmp_path / "unseeded")
    lines = capsys.readouterr().err.splitlines()
    weak = [line for line in lines if "does not resume exactly" in line]
    assert [line.split()[1] for line in weak] == ["train", "validation"]
    assert all(re.search("a shuffle .* has no seed.*give it a seed", line) for line in weak)
    assert lines.index(weak[-1]) < next(at for at, line in enumerate(lines) if line.startswith("plan: epoch 1 "))
    trained(exact, tmp_path / "exact")
    lines = capsys.readouterr().err
    assert "plan: epoch 1 of 2 steps" in lines
    assert "resume exactly" not in lines
