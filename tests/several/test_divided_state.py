"""Variables that are divided over several processes: saved by all of them, restored by any number, the same bits."""

import json
import signal

import pytest
from tests.gang.processes import Processes
from tests.several.launched import HERE, ended, hit, launch, losses, record, start
from tests.several.test_several_processes import check_repaired

from everstep.checkpoint import arrays, manifest
from everstep.checkpoint.digests import digest

pytestmark = [pytest.mark.backend, pytest.mark.daily("jax"), pytest.mark.timeout(1200)]

FSDP = "runtime.sharding=fsdp"
WIDE = ("task.units=8192", "trainer.optimizer_config.learning_rate=0.001")
"""A model whose training is stable: at ten times the rate, a difference of one bit grows to a percent in 200 steps."""


def processes(size, folder, **runtime):
    """Runs `divided.py` as so many processes; returns what each prints."""
    devices = runtime.pop("devices", 1)
    code = f"""
    import pathlib
    one = gang.join(spans_devices=True)
    sys.path.insert(0, {str(HERE)!r})
    import divided
    divided.run(one, pathlib.Path({str(folder)!r}), {runtime!r})
    """
    flags = f"--xla_force_host_platform_device_count={devices}"
    done = Processes(code, size, KERAS_BACKEND="jax", XLA_FLAGS=flags).results(900)
    assert [exit_code for exit_code, _, _ in done.values()] == [0] * size, done
    return [json.loads(out.splitlines()[-1]) for _, out, _ in done.values()]


def check_saved_by_two(folder, **runtime):
    """Two processes save their parts; returns what they had."""
    first, second = found = processes(2, folder, **runtime)
    assert all(one["is_spread"] for one in found)
    assert first["digest"] == second["digest"]
    assert first["kernel"], "what a callback reads is not what is exported"
    assert digest(arrays.read(folder / "3")[0]) == first["digest"]
    for one in found:
        assert all(wrong == [0, 0] for wrong in one["wrong_sums"].values()), "sums over processes are wrong"
        assert one["predicted"] <= one["used"] < one["predicted"] * 1.1 + (1 << 18)
    return first


def test_two_processes_save_their_parts(tmp_path):
    check_saved_by_two(tmp_path, sharding="fsdp")


@pytest.mark.full
def test_other_numbers_and_other_meshes_restore_the_same_bits(tmp_path):
    two = check_saved_by_two(tmp_path, sharding="fsdp")
    assert len(two["wrong_sums"]) == 3
    (one,) = processes(1, tmp_path)
    assert not one["is_spread"]
    assert one["digest"] == two["digest"]
    assert one["loss"] == pytest.approx(two["loss"], rel=1e-5)
    ways = [
        (4, {"sharding": "fsdp"}),
        (4, {"sharding": "fsdp", "mesh": {"data": 2, "model": 2}}),
        (2, {"sharding": {"dense/kernel": [None, "model"]}, "mesh": {"data": 1, "model": 2}}),
        (2, {}),
    ]
    for size, runtime in ways:
        for one in processes(size, tmp_path, **runtime):
            assert one["digest"] == two["digest"], runtime
            assert one["loss"] == pytest.approx(two["loss"], rel=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("mesh", [{"data": 2, "model": 2}, {"data": 4}])
def test_two_processes_with_two_devices_each(tmp_path, mesh):
    two = check_saved_by_two(tmp_path, sharding="fsdp", mesh=mesh, devices=2)
    (one,) = processes(1, tmp_path)
    assert one["digest"] == two["digest"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "two"
    code, text = ended(launch(directory, 2, FSDP, *WIDE))
    assert code == 0, text
    newest = max((directory / "checkpoints").iterdir(), key=lambda path: int(path.name))
    assert manifest.verify(newest).format == manifest.IN_PARTS
    assert record(directory)["environment"]["engine"]["sharding"] == "fsdp"
    return directory


@pytest.mark.full
@pytest.mark.parametrize(("rank", "saving"), [(0, False), (1, False), (0, True), (1, True)])
def test_kills(uninterrupted, tmp_path, rank, saving):
    killed = launch(tmp_path / "killed", 2, FSDP, *WIDE, restarts=3)
    pid = hit(tmp_path / "killed", killed, rank, signal.SIGKILL, saving=saving)
    check_repaired(killed, tmp_path / "killed", uninterrupted, f"rank {rank} (pid {pid} on", "SIGKILL")
    check_states(tmp_path / "killed", uninterrupted)


def check_states(directory, uninterrupted):
    """The digests of all recorded states are those of the uninterrupted run, and of what is on disk.

    A kill between the commit of a checkpoint and its line in the record leaves the line out.
    """
    states = record(directory)["states"]
    assert states.items() <= record(uninterrupted)["states"].items()
    assert len(states) >= len(record(uninterrupted)["states"]) - 1
    for path in (directory / "checkpoints").iterdir():
        weights = {key: array for key, array in arrays.read(path)[0].items() if key.startswith("model/")}
        assert states[path.name] == digest(weights)


@pytest.mark.full
@pytest.mark.parametrize("sharding", [FSDP, "runtime.sharding=replicated"])
def test_frozen_weights_are_saved_once_by_all(tmp_path, sharding):
    words = (sharding, *WIDE, "task.frozen=true")
    code, text = ended(launch(tmp_path / "whole", 2, *words))
    assert code == 0, text
    (base,) = (tmp_path / "whole/base").iterdir()
    assert (base / "parts").is_dir() == (sharding == FSDP)
    assert all(manifest.read(path).base for path in (tmp_path / "whole/checkpoints").iterdir())
    weights = arrays.read(tmp_path / "whole/checkpoints/200")[0]
    assert (
        digest({key: array for key, array in weights.items() if key.startswith("model/")})
        == (record(tmp_path / "whole")["weights_digest"])
    )
    killed = launch(tmp_path / "killed", 2, *words, restarts=3)
    pid = hit(tmp_path / "killed", killed, 1, signal.SIGKILL)
    check_repaired(killed, tmp_path / "killed", tmp_path / "whole", f"rank 1 (pid {pid} on", "SIGKILL")
    longer = (*words, "trainer.train_steps=220", "--allow-change=trainer.train_steps")
    code, text = ended(start(tmp_path / "killed", *longer))  # alone
    assert code == 0, text


@pytest.mark.full
def test_a_run_goes_on_with_other_numbers_of_processes(uninterrupted, tmp_path):
    directory = tmp_path / "run"
    for size, steps in ((2, 60), (1, 120), (4, 200)):
        words = (FSDP, *WIDE, f"trainer.train_steps={steps}", "--allow-change=trainer.train_steps")
        run = launch(directory, size, *words) if size > 1 else start(directory, *words)
        code, text = ended(run)
        assert code == 0, text
    assert [attempt["processes"] for attempt in record(directory)["attempts"]] == [2, 1, 4]
    pairs = zip(losses(directory), losses(uninterrupted), strict=True)
    for (step, loss), (_, expected) in pairs:
        assert loss == pytest.approx(expected, rel=1e-5), step
