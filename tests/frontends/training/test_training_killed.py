"""A job killed after epoch 1 and inside epoch 4 of 6, or stopped by a signal inside epoch 5.

The result is that of an undisturbed job.
"""

import contextlib
import csv
import json
import re
import signal
from pathlib import Path

import fsspec
import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tests.checkpoint.remote.servers import BadNetwork, environment, fresh_url, running
from training_program import EPOCHS, LABELS, STEPS, Nursery, arrays

from everstep.checkpoint.remote import local_view, publish
from everstep.checkpoint.remote.store import Store

pytestmark = [pytest.mark.backend, pytest.mark.full]  # every day: tests/frontends/test_entry_points.py


@pytest.fixture(scope="module")
def nursery():
    with contextlib.closing(Nursery()) as forks:
        yield forks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """TFRecords on TensorFlow; on JAX the job reads arrays."""
    if keras.backend.backend() != "tensorflow":
        return ""
    from everstep.data.tfrecord import write_arrays

    folder = tmp_path_factory.mktemp("records")
    for split, count in (("train", STEPS * 8 + 3), ("valid", 10)):
        images, labels = arrays(count, seed=count)
        texts = [LABELS[label] for label in labels]
        write_arrays(folder, split, {"image": images, "label": np.array(texts)}, shards=2 if split == "train" else 1)
    return str(folder)


@pytest.fixture(scope="module")
def ended(tmp_path_factory, nursery, folder):
    """The uninterrupted job, and the one that was killed, both done."""
    root = tmp_path_factory.mktemp("jobs")
    whole, cut = root / "whole", root / "cut"
    code, output = nursery.run(whole, folder=folder)
    assert code == 0, output
    codes = []
    for at in ("begin 1", "batch 3.1", ""):
        code, output = nursery.run(cut, at=at, folder=folder)
        codes.append((code, meta(cut)))
    assert codes[-1][0] == 0, output
    return whole, cut, codes


def meta(job):
    return json.loads((job / "job_meta.json").read_text())


def test_ends(ended):
    """By the signals, and each time the job's record names the epochs that are saved."""
    *_, codes = ended
    assert [code for code, _ in codes] == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert [found["last_epoch"] for _, found in codes][1:] == [3, 6]
    assert meta(ended[1]) == {"last_epoch": EPOCHS, "last_checkpoint": "00006"}


def test_same_weights_and_history(ended):
    whole, cut, _ = ended
    wanted, found = (json.loads(Path(f"{job}.json").read_text()) for job in (whole, cut))
    assert found == wanted
    assert found["epochs"] == list(range(EPOCHS))
    assert len(set(found["history"]["loss"])) == EPOCHS  # it has learned something
    digests = [json.loads((job / "run.json").read_text())["digest"] for job in (whole, cut)]
    assert digests[0] == digests[1]
    attempts = json.loads((cut / "run.json").read_text())["attempts"]
    assert [attempt["from_step"] for attempt in attempts] == [0, 1 * STEPS, 3 * STEPS]


@pytest.mark.full
def test_asked_to_end_inside_an_epoch(nursery, folder, ended, tmp_path):
    """Saved at the exact step, from which the next attempt resumes."""
    codes = [nursery.run(tmp_path / "job", at=at, folder=folder)[0] for at in ("batch 4.2 by SIGTERM", "")]
    assert codes == [128 + signal.SIGTERM, 0]
    wanted, found = (json.loads(Path(f"{job}.json").read_text()) for job in (ended[0], tmp_path / "job"))
    assert found == wanted
    attempts = json.loads((tmp_path / "job" / "run.json").read_text())["attempts"]
    assert [attempt["from_step"] for attempt in attempts] == [0, 4 * STEPS + 3]


def test_history_csv(ended):
    whole, cut, _ = ended
    tables = [Path(f"{job}-artifacts", "history.csv").read_text() for job in (whole, cut)]
    assert tables[0] == tables[1]
    rows = list(csv.DictReader(tables[1].splitlines()))
    assert [row["epoch"] for row in rows] == [str(epoch) for epoch in range(EPOCHS)]
    assert [float(row["val_loss"]) for row in rows] == json.loads(Path(f"{cut}.json").read_text())["history"][
        "val_loss"
    ]


def test_logs_increase_strictly(ended):
    """In the raw files, in the order in which a TensorBoard reads them: no step comes twice."""
    _, cut, _ = ended
    for kind in ("train", "validation"):
        files = sorted((cut / "logs" / kind).glob("*tfevents*"))
        events = [event for path in files for event in EventFileLoader(str(path)).Load()]
        steps = [event.step for event in events if event.HasField("summary")]
        assert len(files) > 1
        assert steps == list(range(EPOCHS))
        shown = EventAccumulator(str(cut / "logs" / kind)).Reload()
        history = json.loads(Path(f"{cut}.json").read_text())["history"]
        name = "loss" if kind == "train" else "val_loss"
        assert [e.value for e in shown.Scalars("epoch_loss")] == pytest.approx(history[name])
    assert any(tag.endswith("histogram") for tag in shown.Tags()["histograms"]) or kind == "validation"


def test_views_name_checkpoints_that_are_there(ended):
    _, cut, _ = ended
    views = {path.stem: json.loads(path.read_text()) for path in sorted((cut / "epochs").iterdir())}
    assert max(views) == "00006"
    for name, view in views.items():
        assert view["step"] == int(name) * STEPS
        assert (cut / view["checkpoint"] / "manifest.json").is_file()


def test_saved_model_has_no_optimizer(ended):
    _, cut, _ = ended
    if keras.backend.backend() == "torch":
        names = list(pytest.importorskip("torch").export.load(f"{cut}-artifacts/model.pt2").state_dict)
    else:
        tf = pytest.importorskip("tensorflow")
        names = [name for name, _ in tf.train.list_variables(f"{cut}-artifacts/saved_model/variables/variables")]
    assert names
    assert not [name for name in names if "optimizer" in name.lower() or "momentum" in name.lower()]


@pytest.mark.full
def test_early_stopping_counts_over_attempts(nursery, tmp_path):
    """On a loss that never gets better, patience 2 is three epochs in all, also if a kill comes before the third."""
    for at in ("begin 2", ""):
        code, output = nursery.run(tmp_path / "job", at=at, epochs=20, constant=True)
    assert code == 0, output
    assert json.loads((tmp_path / "job.json").read_text())["epochs"] == [0, 1, 2]
    assert meta(tmp_path / "job")["last_epoch"] == 3


# -- in a store --------------------------------------------------------------------------------------------------------


def stored(scheme, root, url, clean):
    """What another machine sees of a job: every byte checked, and nothing listed that does not exist."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**clean, "EVERSTEP_CACHE_DIR": str(root / "seen")}.items():
            patch.setenv(name, value)
        fsspec.get_filesystem_class(scheme).clear_instance_cache()
        seen = local_view(url)
        there = Store(url).listing()
    for path in sorted((seen / "epochs").glob("*.json")):
        assert f"{json.loads(path.read_text())['checkpoint']}/manifest.json" in there
    saved = [int(name.split("/")[1]) for name in there if re.fullmatch(r"checkpoints/\d+/manifest.json", name)]
    assert meta(seen)["last_epoch"] * STEPS <= max(saved)
    return seen


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_the_same_in_a_store(scheme, nursery, folder, ended, tmp_path, caplog, capsys, monkeypatch):
    """Each attempt on a machine that knows nothing, on a network that fails in every way: nothing is lost, nor torn."""
    with running(scheme, tmp_path) as server, BadNetwork(server.uri) as network:
        clean, url = environment(scheme, server.uri), fresh_url(scheme, tmp_path, "job")
        data = upload_records(folder, f"{url}-data", clean, monkeypatch)
        network.troubles = ["error", "truncate", "reset", "stall"]
        times = {"EVERSTEP_STORE_TIMEOUT": "3", "EVERSTEP_UPLOAD_SECONDS": "1"}
        for at in ("begin 1", "batch 3.1", ""):
            variables = {
                **environment(scheme, network.uri),
                **times,
                "EVERSTEP_CACHE_DIR": str(tmp_path / f"machine {at}"),
            }
            code, output = nursery.run(tmp_path / "job", at=at, folder=data, url=url, environment=variables)
            assert code == (-signal.SIGKILL if at else 0), output
            seen = stored(scheme, tmp_path, url, clean)
        assert network.met > 8
        with capsys.disabled():
            print(f"\n{scheme}: {network.met} of {network.requests} requests met trouble")
        artifacts = f"{url}-artifacts"
        names, table = sorted(Store(artifacts).listing()), Store(artifacts).get_bytes("history.csv").decode()
    wanted, found = (json.loads(Path(f"{job}.json").read_text()) for job in (ended[0], tmp_path / "job"))
    assert found == wanted
    assert meta(seen) == {"last_epoch": EPOCHS, "last_checkpoint": "00006"}
    assert table == Path(f"{ended[0]}-artifacts", "history.csv").read_text()
    served = "model.pt2" if keras.backend.backend() == "torch" else "saved_model/saved_model.pb"
    assert {"history.csv", served} <= set(names)
    assert not [name for name in names if name.startswith(".")]
    assert "damaged" not in caplog.text
    attempts = json.loads((seen / "run.json").read_text())["attempts"]
    assert [attempt["from_step"] for attempt in attempts] == [0, 1 * STEPS, 3 * STEPS]
    files = sorted((seen / "logs" / "train").glob("*tfevents*"))
    events = [event for path in files for event in EventFileLoader(str(path)).Load()]
    assert [event.step for event in events if event.HasField("summary")] == list(range(EPOCHS))


def upload_records(folder, url, clean, monkeypatch):
    for name, value in clean.items():
        monkeypatch.setenv(name, value)
    if not folder:
        return ""
    publish(folder, url)
    return url
