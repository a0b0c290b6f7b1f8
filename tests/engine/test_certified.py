"""Programs that were shown to repeat their bits: the engine certifies those for the CPU, too, in these tests."""

import concurrent.futures
import dataclasses
import functools
import json
import logging
import shutil
import signal
import subprocess
import sys
import threading

import keras
import numpy as np
import pytest

import everstep
from everstep.engine import exactness
from everstep.engine.backend import create_engine
from everstep.errors import UsageError
from everstep.run.record import read
from everstep.testing import engines, models
from everstep.testing.engines.device_data import check_same_bits_from_the_device
from everstep.testing.engines.running import (
    check_other_shapes_compile_once,
    check_remainders_compile_nothing_new,
    check_same_bits_for_every_split,
)
from everstep.testing.tasks import Regression, running, seeded

if keras.backend.backend() != "jax":
    pytest.skip("only on JAX are programs certified", allow_module_level=True)

import jax

from everstep.engine import certified, programs
from everstep.engine.certified import Call, Certifier, fingerprint, racing_operations
from everstep.engine.jax import JaxBackend
from everstep.engine.machine_choices import Calls, MachineChoices, joined_choices
from everstep.engine.programs import Programs

pytestmark = pytest.mark.backend

X = np.random.default_rng(0).normal(size=(68, 8)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
EVERY, NO = 0.0, float("inf")  # from how many seconds on a step is long


@pytest.fixture(autouse=True)
def machine(tmp_path_factory, monkeypatch):
    """The folder of what is kept for all runs on this machine: each test begins without any."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def certifies(monkeypatch):
    """Returns a function that makes engines certify their programs from now on, and says which steps are long."""

    def chosen(long_step=EVERY):
        monkeypatch.setattr(JaxBackend, "_certifies", True)
        monkeypatch.setattr(certified, "LONG_STEP", long_step)

    return chosen


@pytest.fixture
def noisy(monkeypatch):
    """Returns a function that makes programs race that are lowered in one of these ways; "no" and a way: that fail."""
    ways, counted = [], iter(range(10**6))
    original = Certifier._compile

    def compiled(self, lowered, options):
        program = original(self, lowered, options)
        way = "option" if options.get("xla_gpu_deterministic_ops") else "autotuned"
        if f"no {way}" in ways:
            raise RuntimeError("UNIMPLEMENTED: there is no such kernel\nwith details")
        return _Racing(program, counted) if way in ways else program

    monkeypatch.setattr(Certifier, "_compile", compiled)
    return ways.extend


class _Racing:
    """A program whose last log is another number each time."""

    def __init__(self, program, numbers):
        self._program, self._numbers = program, numbers

    def __call__(self, state, block):
        values, logs, outputs = self._program(state, block)
        return values, [*logs[:-1], logs[-1] + next(self._numbers)], outputs

    def as_text(self):
        return "racing " + self._program.as_text()


def model():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(4, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    built = keras.Sequential([keras.Input((8,)), *layers])
    built.compile("adam", "mse")
    return built


def record_of_fit(directory, trained=None, epochs=1, **options):
    trained = trained or model()
    everstep.fit(trained, X, Y, batch_size=8, epochs=epochs, model_dir=directory, seed=0, verbose=0, **options)
    return read(directory)


def stored_programs(directory):
    return json.loads((directory / "programs" / "certified.json").read_text())


@pytest.fixture
def replays(monkeypatch):
    """The number of programs that were repeated so far."""
    found = []
    original = Call.repeat
    monkeypatch.setattr(Call, "repeat", lambda self, program: found.append(program) or original(self, program))
    return found


# -- runs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("long_step", [EVERY, NO])
def test_certified_programs_give_the_bits_of_the_plain_ones(tmp_path, certifies, long_step):
    plain = record_of_fit(tmp_path / "plain", validation_data=(X, Y))
    certifies(long_step)
    found = record_of_fit(tmp_path / "certified", validation_data=(X, Y))
    assert found["digest"] == plain["digest"]
    assert "exactness" not in plain
    assert not (tmp_path / "plain" / "programs").exists()
    several = long_step == NO
    calls = stored_programs(tmp_path / "certified")["calls"]
    assert {kind: (one["several"], one["autotuned"]) for kind, one in calls.items()} == {
        "train": (several, not several),
        "validation": (several, not several),
    }
    assert found["exactness"]["level"] == (exactness.OPTION if several else exactness.CERTIFIED)


def test_another_attempt_calls_steps_as_the_first_one_and_repeats_nothing(tmp_path, certifies, replays):
    certifies(EVERY)
    whole = record_of_fit(tmp_path / "whole", epochs=2)
    record_of_fit(tmp_path / "run", epochs=1)
    first, before = stored_programs(tmp_path / "run"), len(replays)
    certifies(NO)  # timed now, steps would be called otherwise
    found = record_of_fit(tmp_path / "run", epochs=2, allow_change="epochs")
    assert len(replays) == before
    assert stored_programs(tmp_path / "run") == first
    assert found["digest"] == whole["digest"]


OTHER = "is not the one that this run began with"


def test_another_run_on_this_machine_calls_steps_as_the_first_one(tmp_path, certifies):
    """A step is timed once: at the second run the clock may say something else, and the bits would differ."""
    certifies(EVERY)
    first = record_of_fit(tmp_path / "first")
    certifies(NO)  # timed now, steps would be called otherwise
    second = record_of_fit(tmp_path / "second")
    calls = [stored_programs(tmp_path / name)["calls"]["train"] for name in ("first", "second")]
    assert [(one["several"], one["autotuned"]) for one in calls] == [(False, True)] * 2
    assert second["digest"] == first["digest"]
    everstep.fit(model(), X, Y, batch_size=4, model_dir=tmp_path / "other", seed=0, verbose=0)
    assert stored_programs(tmp_path / "other")["calls"]["train"]["several"]  # another program


def test_a_machine_whose_cache_cannot_be_written_trains(tmp_path, certifies, machine, monkeypatch):
    (machine / "file").write_text("")
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(machine / "file"))
    certifies(EVERY)
    assert record_of_fit(tmp_path / "run")["status"] == "finished"


def test_the_data_of_a_run_stays_where_it_is(certifies, tmp_path, caplog):
    certifies(EVERY)
    with programs.keep_programs(tmp_path), running(create_engine, Regression(), seeded(models.mlp)) as rig:
        assert rig.engine.keeps_placement("train", fits=True, wanted=True)
        assert not rig.engine.keeps_placement("validation", fits=True, wanted=False)
    with programs.keep_programs(tmp_path), running(create_engine, Regression(), seeded(models.mlp)) as rig:
        assert rig.engine.keeps_placement("train", fits=True, wanted=False)
        assert not rig.engine.keeps_placement("validation", fits=True, wanted=True)
        assert not caplog.text
        assert not rig.engine.keeps_placement("train", fits=False, wanted=False)
        assert "so the bits may differ" in caplog.text


def test_the_program_of_another_model_is_told(tmp_path, certifies, caplog):
    certifies(EVERY)
    record_of_fit(tmp_path / "run", epochs=1)
    record_of_fit(tmp_path / "run", epochs=2, allow_change="epochs")
    assert OTHER not in caplog.text
    changed = model()
    changed.layers[0].activation = keras.activations.tanh
    record_of_fit(tmp_path / "run", changed, epochs=3, allow_change=["epochs", "task"])
    assert caplog.text.count("the program of the train steps " + OTHER) == 2  # for each of the two sizes of batches
    caplog.clear()
    record_of_fit(tmp_path / "run", changed, epochs=4, allow_change="epochs")
    assert OTHER not in caplog.text


def test_models_that_train_at_once_keep_their_programs_apart(tmp_path, certifies):
    certifies(EVERY)
    names = ["one", "two", "three"]
    opened = threading.Barrier(len(names))
    waiting = [keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: opened.wait(60)) for _ in names]
    built = [model() for _ in names]
    with concurrent.futures.ThreadPoolExecutor() as threads:
        done = [
            threads.submit(record_of_fit, tmp_path / name, one, callbacks=[callback])
            for name, one, callback in zip(names, built, waiting, strict=True)
        ]
        records = [one.result() for one in done]
    assert {record["exactness"]["level"] for record in records} == {exactness.CERTIFIED}
    assert len({json.dumps(stored_programs(tmp_path / name)["used"]) for name in names}) == 1
    assert all(len(stored_programs(tmp_path / name)["used"]) == 2 for name in names)


def test_a_second_fit_of_a_model_keeps_its_programs_with_the_new_run(tmp_path, certifies, replays):
    certifies(EVERY)
    trained = model()
    record_of_fit(tmp_path / "one", trained)
    before = len(replays)
    record_of_fit(tmp_path / "two", trained)
    assert len(replays) == before
    assert stored_programs(tmp_path / "two") == stored_programs(tmp_path / "one")


def test_a_model_that_was_trained_in_another_way_resumes_as_the_run_did(tmp_path, certifies):
    certifies(EVERY)
    record_of_fit(tmp_path / "long")
    whole = record_of_fit(tmp_path / "whole", epochs=2)
    certifies(NO)
    trained = model()
    record_of_fit(tmp_path / "short", trained)
    found = record_of_fit(tmp_path / "long", trained, epochs=2, allow_change="epochs")
    assert found["digest"] == whole["digest"]
    assert not stored_programs(tmp_path / "long")["calls"]["train"]["several"]


def test_a_program_that_races_is_compiled_with_the_option(tmp_path, certifies, noisy, caplog):
    plain = record_of_fit(tmp_path / "plain")
    certifies(EVERY)
    noisy(["autotuned"])
    found = record_of_fit(tmp_path / "run")
    assert found["exactness"]["level"] == exactness.OPTION
    assert "differed when a step was repeated" in found["exactness"]["reason"]
    assert found["digest"] == plain["digest"]
    assert not stored_programs(tmp_path / "run")["calls"]["train"]["autotuned"]
    assert "may end with other bits" not in caplog.text


def test_a_program_that_xla_cannot_make_is_compiled_with_the_option(tmp_path, certifies, noisy):
    plain = record_of_fit(tmp_path / "plain")
    certifies(EVERY)
    noisy(["no autotuned"])
    found = record_of_fit(tmp_path / "run")
    assert found["exactness"] == {
        "level": exactness.OPTION,
        "reason": "UNIMPLEMENTED: there is no such kernel",
    }
    assert found["digest"] == plain["digest"]


def test_a_repetition_needs_no_room_for_a_second_state():
    program = jax.jit(lambda state, block: ([value + block for value in state], [], None))
    call = Call([jax.numpy.ones(3), jax.numpy.ones(2)], jax.numpy.ones(()), changing=[0])
    assert call.repeat(program) == 0
    changed, same = call.results[0]
    before = call.state_before()
    assert np.array_equal(before[0], np.ones(3))
    assert before[1] is same
    assert sys.getrefcount(changed) == 2, "something else holds what the last run has changed"


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The Keras objects have the engine's arrays; JAX donates arrays on a CPU, too."""
    place = JaxBackend._place_variables

    def placed(self):
        place(self)
        self._is_shared = [True] * len(self._state_variables)

    monkeypatch.setattr(JaxBackend, "_place_variables", placed)


def test_the_first_call_leaves_no_second_state_on_the_device(certifies, as_on_a_gpu):
    certifies(EVERY)
    with running(create_engine, Regression(), seeded(models.mlp)) as rig:
        before = [variable.value for variable in rig.engine.model.trainable_variables]
        rig.run(1)
        assert all(value.is_deleted() for value in before)


def test_a_refused_step_leaves_the_state_as_it_was(certifies, noisy, as_on_a_gpu):
    certifies(EVERY)
    noisy(["autotuned", "option"])
    make = functools.partial(create_engine, deterministic=True)
    with running(make, Regression(), seeded(models.mlp)) as rig:
        before = rig.digest()
        with pytest.raises(UsageError):
            rig.run(1)
        assert rig.digest() == before
        rig.engine.push()
        assert not any(variable.value.is_deleted() for variable in rig.engine.variables.values())


@pytest.mark.parametrize("ways", [["autotuned", "option"], ["autotuned", "no option"]])
def test_where_nothing_repeats_auto_warns_and_trains(tmp_path, certifies, noisy, caplog, ways):
    certifies(NO)
    noisy(ways)
    found = record_of_fit(tmp_path / "run")
    assert found["status"] == "finished"
    assert found["exactness"]["level"] == exactness.NONE
    assert "may end with other bits" in caplog.text
    assert not stored_programs(tmp_path / "run")["calls"]["train"]["several"]


def test_where_nothing_repeats_true_refuses_by_the_name_of_the_argument(tmp_path, certifies, noisy):
    certifies(EVERY)
    noisy(["autotuned", "option"])
    with pytest.raises(UsageError) as caught:
        record_of_fit(tmp_path / "run", deterministic=True)
    [problem] = caught.value.problems
    assert (problem.key, problem.received) == ("deterministic", True)
    assert "differed when a step was repeated" in problem.reason
    assert problem.remedy == "leave it out, or use another device"


def test_without_determinism_nothing_is_compared(tmp_path, certifies, noisy):
    certifies(NO)
    noisy(["autotuned"])
    found = record_of_fit(tmp_path / "run", deterministic=False)
    assert found["exactness"] == {"level": exactness.NONE, "reason": exactness.NOT_REQUESTED}
    assert stored_programs(tmp_path / "run")["calls"]["train"]["several"]
    assert stored_programs(tmp_path / "run")["programs"] == {}


def test_steps_are_single_where_several_in_a_call_give_other_bits(certifies, monkeypatch):
    def trained():
        with running(create_engine, Regression(), seeded(models.mlp), long_calls=True) as rig:
            rig.run(12, 12)
            return rig.digest(), rig.engine

    plain, _ = trained()
    certifies(NO)
    assert trained()[0] == plain
    monkeypatch.setattr(Call, "differs_from", lambda self, single_steps: bool(self._run(single_steps)))
    digest, engine = trained()
    assert digest == plain
    calls = engine.backend._certifier.programs.calls("train")
    assert (calls.several, calls.autotuned) == (False, False)
    assert "other bits" in calls.reason
    assert engine.call_length.longest == 1


def test_another_device_starts_anew_and_says_so(tmp_path, certifies, caplog, monkeypatch):
    certifies(EVERY)
    record_of_fit(tmp_path / "run")
    monkeypatch.setattr(programs, "where", lambda: {"device": "another", "jaxlib": "1"})
    certifies(NO)
    record_of_fit(tmp_path / "run", epochs=2, allow_change="epochs")
    assert "device cpu -> another" in caplog.text
    assert stored_programs(tmp_path / "run")["device"] == "another"
    assert stored_programs(tmp_path / "run")["calls"]["train"]["several"]


def test_a_run_that_cannot_keep_its_programs_trains(tmp_path, certifies, caplog):
    certifies(EVERY)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "programs").write_text("not a folder")
    assert record_of_fit(tmp_path / "run")["status"] == "finished"
    assert caplog.text.count("cannot be kept") == 1


def test_a_run_that_keeps_nothing_trains(certifies):
    certifies(EVERY)
    trained = model()
    history = everstep.fit(trained, X, Y, batch_size=8, epochs=2, verbose=0, seed=0)
    assert len(history.history["loss"]) == 2


def test_the_first_steps_say_how_far_bits_can_be_repeated(tmp_path, certifies, caplog):
    certifies(EVERY)
    with caplog.at_level(logging.INFO, "everstep"):
        record_of_fit(tmp_path / "run")
    assert caplog.text.count("bits of the steps on this device: certified") == 1


PROGRAM = """
import os, signal, sys
import keras, numpy as np
import everstep
from everstep.engine import certified
from everstep.engine.jax import JaxBackend

directory, long_step, killed_in = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
JaxBackend._certifies, certified.LONG_STEP = True, long_step
keras.utils.set_random_seed(0)
layers = [keras.layers.Dense(4, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
model = keras.Sequential([keras.Input((8,)), *layers])
model.compile("adam", "mse")
x = np.random.default_rng(0).normal(size=(68, 8)).astype("float32")
kill = lambda epoch, logs: os.kill(os.getpid(), signal.SIGKILL) if epoch == killed_in else None
callbacks = [keras.callbacks.LambdaCallback(on_epoch_begin=kill)]
everstep.fit(model, x, x[:, :1], batch_size=8, epochs=3, seed=0, verbose=0, model_dir=directory, callbacks=callbacks)
"""


@pytest.mark.full
@pytest.mark.parametrize("deletes_cache", [False, True])
def test_a_killed_process_resumes_with_the_same_bits(tmp_path, deletes_cache):
    def trained(directory, long_step, killed_in=-1):
        arguments = [str(tmp_path / directory), str(long_step), str(killed_in)]
        done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True)
        assert done.returncode == (-signal.SIGKILL if killed_in >= 0 else 0), done.stderr
        assert OTHER not in done.stderr
        return read(tmp_path / directory)

    whole = trained("whole", EVERY)
    trained("killed", EVERY, killed_in=1)
    if deletes_cache:
        shutil.rmtree(tmp_path / "killed" / ".compiled", ignore_errors=True)
    found = trained("killed", NO)  # what the killed process has decided counts
    assert found["digest"] == whole["digest"]
    assert len(found["attempts"]) == 2
    assert stored_programs(tmp_path / "killed")["calls"].keys() == {"train"}
    assert not stored_programs(tmp_path / "killed")["calls"]["train"]["several"]


# -- the engine contract --------------------------------------------------------------------------------------------


def test_same_bits_from_the_device(certifies):
    certifies(NO)
    check_same_bits_from_the_device(create_engine, "mlp")


COUNTING = (check_remainders_compile_nothing_new, check_other_shapes_compile_once)


@pytest.mark.parametrize("long_step", [EVERY, NO], ids=["long", "short"])
@pytest.mark.parametrize("check", COUNTING)
def test_few_programs_are_made(check, long_step, certifies, monkeypatch):
    """The first one in two ways where steps are short, to find out how long they take; each further one in one."""
    certifies(long_step)
    made, engines_made, original = [], [], Certifier._compile
    monkeypatch.setattr(Certifier, "_compile", lambda *args: made.append(args) or original(*args))

    def make(*args):
        engines_made.append(create_engine(*args))
        return engines_made[-1]

    check(make)
    [engine] = engines_made
    assert len(made) == engine.compilations + (long_step == NO)


@pytest.mark.full
@pytest.mark.parametrize("long_step", [EVERY, NO], ids=["long", "short"])
@pytest.mark.parametrize("check", [check for check in engines.CHECKS if check not in COUNTING])
def test_the_engine_contract(check, long_step, certifies):
    certifies(long_step)
    check(create_engine)


@pytest.mark.full
@pytest.mark.parametrize("kind", models.MODELS)
def test_same_bits_for_every_split_of_every_model(kind, certifies):
    certifies(NO)
    check_same_bits_for_every_split(create_engine, kind)


# -- what can race --------------------------------------------------------------------------------------------------

SCATTER = (
    "  %scatter.1 = f32[20,4]{1,0} scatter(%zeros, %indices, %updates), update_window_dims={1}, "
    "inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, %flag, to_apply=%region_0.1"
)


@pytest.mark.parametrize(
    ("text", "racing"),
    [
        (SCATTER.replace("%flag, ", ""), {"scatter"}),
        (SCATTER.replace("%flag", "unique_indices=true"), set()),
        (SCATTER.replace("%flag, ", "").replace("f32", "s32"), set()),
        ("  %s = f32[2,4]{1,0} select-and-scatter(%x, %y, %z), window={size=1x2}, select=%ge, scatter=%add",
         {"select-and-scatter"}),
        ("  %add.3 = f32[4]{0} add(%a, %b)", set()),
    ],
)  # fmt: skip
def test_sums_in_any_order_can_race(text, racing):
    assert racing_operations(f"ENTRY %main {{\n{text}\n}}") == racing


@pytest.mark.parametrize(("keys", "racing"), [(256, set()), (257, {"the gradient of flash attention"})])
def test_the_gradient_of_flash_attention_can_race_with_many_keys(keys, racing):
    gradients = ", ".join(f"bf16[2,4,{length},64]{{3,2,1,0}}" for length in (512, keys, keys))
    text = (
        f"  %cudnn-fmha.3 = ({gradients}, u8[0]{{0}}) "
        'custom-call(%q, %k, %v), custom_call_target="__cudnn$fmhaSoftmaxBackward", backend_config={}'
    )
    assert racing_operations(text) == racing


def test_the_operations_of_a_compiled_program_are_found():
    def added(table, places, rows):
        return table.at[places].add(rows)

    shapes = [jax.ShapeDtypeStruct(*one) for one in (((20, 4), "float32"), ((64,), "int32"), ((64, 4), "float32"))]
    assert racing_operations(jax.jit(added).lower(*shapes).compile().as_text()) == {"scatter"}


def test_a_program_is_the_same_wherever_its_source_code_is():
    def added(x):
        return x * 2 + 1

    first = jax.jit(added).lower(1.0).compile()

    def added(x):
        return x * 2 + 1

    second, other = jax.jit(added).lower(1.0).compile(), jax.jit(added).lower(1).compile()
    assert fingerprint(first) == fingerprint(second) != fingerprint(other)


# -- what is kept ---------------------------------------------------------------------------------------------------


def entry(operation, kernel):
    result = f"  result {{\n    gemm {{\n      algorithm: {kernel}\n    }}\n  }}\n"
    return f'results {{\n  device: "a GPU"\n  hlo: "{operation}"\n{result}}}\n'


def test_choices_are_added_and_the_first_ones_stay():
    before = "version: 3\n" + entry("a", 1) + entry("b", 2)
    joined = joined_choices(before, "version: 3\n" + entry("b", 7) + entry("c", 3))
    assert joined == "version: 3\n" + entry("b", 2) + entry("c", 3) + entry("a", 1)
    assert joined_choices("", before) == before


def test_the_kernels_of_a_machine_are_those_that_were_chosen_first():
    of_machine = MachineChoices({"device": "NVIDIA H200", "jaxlib": "1"})
    assert of_machine.kernels() == ""
    of_machine.add_kernels("version: 3\n" + entry("a", 1))
    of_machine.add_kernels("version: 3\n" + entry("a", 2) + entry("b", 3))
    assert of_machine.kernels() == "version: 3\n" + entry("a", 1) + entry("b", 3)
    assert MachineChoices({"device": "NVIDIA H200", "jaxlib": "2"}).kernels() == ""


@pytest.mark.parametrize("text", ["", "[]", "{", '{"train a": 1}', '{"train a": {"unknown": 1}}'])
def test_a_damaged_file_of_the_machine_counts_as_none(machine, text):
    of_machine = MachineChoices({"device": "cpu"})
    of_machine.add_calls("train b", Calls(True, False))
    (machine / "programs" / "cpu" / "calls.json").write_text(text)
    assert of_machine.calls("train a") is None


DAMAGED = [
    *("", "[]", "{", '{"programs": {"a": ""}}', '{"device": "cpu", "jaxlib": "1", "calls": []}'),
    '{"device": "cpu", "jaxlib": "1", "calls": {"train": {"of another version": 1}}, "programs": {"a": ""}}',
]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file_counts_as_none(tmp_path, text):
    (tmp_path / "certified.json").write_text(text)
    found = Programs(tmp_path)
    assert (found.changed, found.verdict("a"), found.calls("train")) == ("", None, None)


def test_runs_agree_where_both_have_decided():
    one, other = Programs(), Programs()
    one.decide("train", Calls(several=True, autotuned=False, step_ms=0.1))
    assert one.agrees_with(other)
    other.decide("train", Calls(several=True, autotuned=False, step_ms=0.2))
    assert one.agrees_with(other)
    other.decide("train", dataclasses.replace(Calls(several=True, autotuned=False), several=False))
    assert not one.agrees_with(other)


def test_runs_with_other_programs_do_not_agree():
    one, other = Programs(), Programs()
    one.use("train ab", "tuned so")
    other.use("validation ab", "tuned so")
    assert one.agrees_with(other)
    other.use("train ab", "tuned otherwise")
    assert not one.agrees_with(other)
