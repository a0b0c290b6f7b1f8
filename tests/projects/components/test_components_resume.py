"""A run that resumes: with more epochs, after damage, on a full disk, after an error of its own code."""

import contextlib
import json
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest
from components_project import DATASET, MODELS, write_run, write_source
from small_project import write

from everstep.components import Orchestrator
from everstep.errors import TrainingError, UsageError
from everstep.export.torch_program import ExportedProgram
from everstep.projects.components.export import damage, write_export
from everstep.projects.components.exported_model import load_exported, model_name
from everstep.projects.components.run_folder import open_run
from everstep.testing.problems import raises_problem
from everstep.types import CLOCKS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("untracked"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

BUILDERS = """

    from pathlib import Path


    class Rated(ModelBuilder):
        def get_compiled_model(self):
            model = super().get_compiled_model()
            model.optimizer.learning_rate = self.config_rate
            return model

        def _load_params(self, config):
            super()._load_params(config)
            self.config_rate = config.model_builder.rate


    class Fickle(ModelBuilder):
        '''Its model answers otherwise each time it is called, while there is a file of that name.'''

        def get_compiled_model(self):
            model = super().get_compiled_model()
            call = model.call
            model.call = lambda *args, **kwargs: call(*args, **kwargs) * (fickle() if FICKLE.exists() else 1.0)
            return model


    FICKLE = Path(__file__).parent / "fickle"


    def fickle(calls=[1]):
        calls.append(calls[-1] * 2)
        return float(calls[-1])
"""


def run(root, data, name="a", action="run"):
    return getattr(Orchestrator(name, root, data, verbose=False), action)()


def history(folder):
    """Every number of every epoch, but how long it took."""
    header, *rows = [line.split(",") for line in (folder / "history.csv").read_text().splitlines()]
    kept = [i for i, name in enumerate(header) if name not in CLOCKS]
    return [[row[i] for i in kept] for row in (header, *rows)]


def export(folder):
    return json.loads((folder / "exported" / "export.json").read_text())


def weights(folder):
    exported = load_exported(folder / "exported" / model_name())
    if isinstance(exported, ExportedProgram):
        return [value.numpy() for value in exported._weights.values()]
    return [np.asarray(variable) for variable in exported._loaded.trainable_variables]


def stamps(folder):
    """When the files of the export were written."""
    return {path: path.stat().st_mtime_ns for path in (folder / "exported").rglob("*") if path.is_file()}


@pytest.mark.full
@pytest.mark.backend
def test_longer_is_as_long_from_the_beginning(tmp_path, data):
    write_source(tmp_path)
    short = write_run(tmp_path, epochs=2)
    run(tmp_path, data)
    assert export(short)["epoch"] == 1
    write_run(tmp_path, epochs=4)
    results = run(tmp_path, data)
    long = write_run(tmp_path, "long", epochs=4)
    assert run(tmp_path, data, "long") == results
    assert history(short) == history(long)
    assert all(map(np.array_equal, weights(short), weights(long)))
    different = {"files"}  # a SavedModel's bytes are others each time
    assert {k: v for k, v in export(short).items() if k not in different} == {
        k: v for k, v in export(long).items() if k not in different
    }
    for name in ("validation_report.csv", "eval_report.csv", "reports/validation.json", "reports/test.parquet"):
        assert (short / name).read_bytes() == (long / name).read_bytes()


def test_an_export_is_replaced_only_by_one_that_is_whole(tmp_path, data):
    """One that answers otherwise than the model, and one that the disk does not take, leave the former where it is."""
    write_source(tmp_path, models=MODELS + BUILDERS)
    builder = {"model_builder_class": "models.Fickle"}
    folder = write_run(tmp_path, epochs=2, **builder)
    results = run(tmp_path, data)
    before = stamps(folder)

    write_run(tmp_path, epochs=3, **builder)
    (tmp_path / "src" / "fickle").touch()
    with raises_problem(
        TrainingError,
        reason=f"exported/{model_name()}', does not have the outputs of the trained model.*former export is unchanged",
    ):
        run(tmp_path, data)
    (tmp_path / "src" / "fickle").unlink()
    refusal = raises_problem(TrainingError, reason="exported' cannot be written: .*is unchanged; all epochs are saved")
    record = next(tmp_path.rglob("training/run.json"))  # names all files that this process has imported
    with refusal, _files_of_at_most(record.stat().st_size + 20_000):
        run(tmp_path, data)
    assert stamps(folder) == before
    assert not list(folder.rglob(".everstep-*"))
    assert run(tmp_path, data, action="evaluate") == results
    run(tmp_path, data)
    assert stamps(folder) != before


@contextlib.contextmanager
def _files_of_at_most(size):
    """No file can grow beyond that, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, former)


@pytest.mark.full
def test_another_learning_rate_is_refused_by_its_key(tmp_path, data):
    write_source(tmp_path, models=MODELS + BUILDERS)
    section = {"activation": "relu", "n_filters": 16, "dropout_rate": 0.2, "rate": 0.01}
    folder = write_run(tmp_path, model_builder_class="models.Rated", model_builder=section)
    results = run(tmp_path, data)
    before = stamps(folder)
    write_run(tmp_path, model_builder_class="models.Rated", model_builder={**section, "rate": 0.02})
    with pytest.raises(UsageError) as refused:
        run(tmp_path, data)
    for key in ("task.optimizer.learning_rate", "model_builder.rate"):
        assert key in str(refused.value)
    assert stamps(folder) == before
    assert run(tmp_path, data, action="evaluate") == results


@pytest.mark.backend
@pytest.mark.full
@pytest.mark.parametrize("kind", ["a byte", "a file less", "a file more", "the record", "an empty folder"])
def test_a_damaged_export_is_found_and_made_again(tmp_path, data, kind, caplog):
    write_source(tmp_path)
    folder = write_run(tmp_path)
    results, exported = run(tmp_path, data), folder / "exported"
    variables = next(path for path in exported.rglob("*") if path.name.endswith((".data-00000-of-00001", ".pt2")))
    if kind == "a byte":
        content = bytearray(variables.read_bytes())
        content[len(content) // 2] ^= 1
        variables.write_bytes(content)
    elif kind == "a file less":
        variables.unlink()
    elif kind == "a file more":
        (variables.parent / "stray").touch()
    elif kind == "the record":
        (exported / "export.json").write_text('{"epoch": 1')
    else:
        (exported / "export.json").unlink()
    with raises_problem(key="run", reason="is damaged|contains no export"):
        run(tmp_path, data, action="evaluate")
    before = history(folder)
    assert run(tmp_path, data) == results
    assert history(folder) == before
    said = [line for line in caplog.messages if "it is made again" in line]
    assert len(said) == (kind != "an empty folder"), "there is nothing to say about an export that is not there"


def test_what_is_wrong_with_a_damaged_export_is_named(tmp_path):
    write(tmp_path)
    opened = open_run("a", tmp_path)
    folder, file = opened.folder, opened.folder.exported / "model"

    def written(directory):
        (directory / "model").write_text("weights")
        return {}

    def damaged(change):
        write_export(folder, opened.config, written)
        assert damage(folder) == ""
        change()
        return damage(folder)

    assert damage(folder) == "", "there is none"
    assert damaged(lambda: file.write_text("weight")) == "the export is damaged: model has changed"
    assert damaged(file.unlink) == "the export is damaged: model is missing"
    assert damaged((file.parent / "more").touch) == "the export is damaged: more was added"
    assert "export.json is not valid JSON" in damaged(lambda: (file.parent / "export.json").write_text('{"epoch": 1'))
    assert "export.json does not say which" in damaged(lambda: (file.parent / "export.json").write_text("[]"))


CALLBACK = """

    class Failing(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1 and (Path(__file__).parent / "fails").exists():
                raise RuntimeError("the disk of my own")


    class Watched(ModelBuilder):
        def get_callbacks(self):
            return [Failing()]
"""


@pytest.mark.backend
@pytest.mark.full
def test_a_callback_that_fails_in_the_second_epoch(tmp_path, data):
    write_source(tmp_path, models=MODELS + BUILDERS + CALLBACK)
    folder = write_run(tmp_path, epochs=3, model_builder_class="models.Watched")
    (tmp_path / "src" / "fails").touch()
    with pytest.raises(RuntimeError, match="the disk of my own"):
        run(tmp_path, data)
    assert not (folder / "exported").exists()
    assert json.loads((folder / "run.json").read_text())["status"] == "failed"
    (tmp_path / "src" / "fails").unlink()
    results = run(tmp_path, data)
    whole = write_run(tmp_path, "whole", epochs=3, model_builder_class="models.Watched")
    assert run(tmp_path, data, "whole") == results
    assert history(folder) == history(whole)


@pytest.mark.full
def test_a_generator_that_fails_in_the_middle(tmp_path, data):
    """In one line, with the place; once it is repaired, the run resumes."""
    broken = DATASET.replace(
        "                for index in indices:",
        "                for count, index in enumerate(indices):\n"
        "                    if count == 20 and Path(__file__).with_name('fails').exists():\n"
        "                        raise OSError('no such picture')",
    ).replace("    import csv\n", "    import csv\n    from pathlib import Path\n", 1)
    write_source(tmp_path, dataset=broken)
    folder = write_run(tmp_path)
    (tmp_path / "src" / "fails").touch()
    reason = r"after step 2: .*generator\(\) failed at .*dataset.py:\d+: OSError: no such picture"
    with raises_problem(TrainingError, reason=reason):
        run(tmp_path, data)
    assert not (folder / "exported").exists()
    (tmp_path / "src" / "fails").unlink()
    results = run(tmp_path, data)
    assert results["test"]["eval_funcs"]


@pytest.mark.backend
@pytest.mark.full
def test_never_a_number(tmp_path, data):
    """A loss that is NaN from the first epoch: training ends with it and says so, and nothing is exported."""
    broken = MODELS.replace(
        "keras.losses.SparseCategoricalCrossentropy()", "lambda y, p: keras.ops.mean(p) * float('nan')"
    )
    write_source(tmp_path, models=broken)
    folder = write_run(tmp_path)
    with raises_problem(TrainingError, reason="the training loss is nan at step 1; nothing bad was saved") as failed:
        run(tmp_path, data)
    assert len(failed.value.history.epoch) == 1
    assert "learning rate" in failed.value.remedy
    assert "\n" not in str(failed.value)
    assert history(folder), "the epoch can be looked at"
    assert not (folder / "exported").exists()
    assert not (folder / "reports").exists()


UNUSED = """


    class Unused(ModelBuilder):
        def get_compiled_model(self):
            model = super().get_compiled_model()
            model.unused = keras.Variable([0.0], trainable=False, name="unused")
            return model

        def get_callbacks(self):
            return [Spoils()]


    class Spoils(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.unused.assign([float("nan")])
"""


@pytest.mark.full
def test_a_weight_that_is_nan_while_the_loss_is_finite(tmp_path, data):
    """It is named: that the metric was finite in no epoch would be false."""
    write_source(tmp_path, models=MODELS + UNUSED)
    folder = write_run(tmp_path, epochs=3, model_builder_class="models.Unused")
    with raises_problem(
        TrainingError, reason="model/unused is not finite after step 8; nothing bad was saved"
    ) as failed:
        run(tmp_path, data)
    assert np.isfinite(failed.value.history.history["val_loss"]).tolist() == [True]
    assert not (folder / "exported").exists()


@pytest.mark.full
def test_a_folder_that_cannot_be_written_to(tmp_path, data):
    """Permission bits say nothing to root, so the folder is mounted to be read only."""
    write_source(tmp_path)
    folder = str(write_run(tmp_path))
    mount = f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder}"
    apart = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*apart, mount], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    command = f"{sys.executable} -m everstep run a --project-root {tmp_path} --data-dir {data}"
    done = subprocess.run([*apart, f"{mount} && {command}"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"everstep: error: cannot lock the run directory {folder!r}: Read-only file system"
    )
