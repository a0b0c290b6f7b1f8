"""`everstep.fit` in a real kernel: what is in the notebook when it is saved."""

import nbclient
import nbformat
import pytest

pytestmark = pytest.mark.slow

CELLS = (
    """
import everstep, keras, numpy as np
keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("adam", "mse", metrics=["mae"])
""",
    "history = everstep.fit(model, x, x[:, :1], epochs=12, validation_split=0.25, model_dir='runs/a')",
    "history",
    "everstep.fit(model, x, x[:, :1], verbose=2)",
    "everstep.fit(model, x, x[:, :1], epochs=12, validation_split=0.25, model_dir='runs/a')",
    "everstep.show_report('runs/a')",
    """
from pathlib import Path
from everstep.report import side_by_side
everstep.fit(model, x, x[:, :1], epochs=2, model_dir='runs/b', verbose=0)
side_by_side.side_by_side([Path('runs/a'), Path('runs/b')])
""",
)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """The outputs of each cell."""
    cells = [nbformat.v4.new_code_cell(cell.strip()) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    resources = {"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    return [cell.outputs for cell in notebook.cells]


def html(output):
    return output["data"]["text/html"]


def test_nothing_is_red(outputs):
    streams = [output for cell in outputs for output in cell if output.output_type == "stream"]
    assert not [output.text for output in streams if output.name == "stderr"]


def test_progress_is_one_table_with_the_last_epochs_and_the_best(outputs):
    shown = [output for output in outputs[1] if output.output_type == "display_data"]
    assert len(shown) == 1
    text = shown[0]["data"]["text/plain"].splitlines()
    assert text[0].startswith("trained 24 steps")
    assert text[1].split() == ["epoch", "loss", "mae", "val_loss", "val_mae"]
    assert len(text) - 2 in (8, 9)
    assert text[-1].split()[0] == "12/12"
    assert html(shown[0]).count("<tr") == len(text) - 1
    assert "earlier rows not shown" in html(shown[0])
    assert "<script" not in html(shown[0])


def test_lines_beside_it_are_few(outputs):
    lines = "".join(output.text for output in outputs[1] if output.output_type == "stream").splitlines()
    assert lines[0].startswith("model: ")
    assert not [line for line in lines if line.startswith(("train |", " eval |", "┃"))]


def test_the_history_shows_its_curves_and_names_its_run(outputs):
    (shown,) = outputs[2]
    assert html(shown).count("<svg") == 2
    assert "12 epochs" in html(shown)
    assert "show_report(&#x27;runs/a&#x27;)" in html(shown)
    assert shown["data"]["text/plain"].startswith("<History of 12 epochs: ")


def test_a_run_that_is_finished_shows_its_table_again(outputs):
    text = next(o["data"]["text/plain"] for o in outputs[4] if o.output_type == "display_data")
    assert text.splitlines()[-1].split()[0] == "12/12"


def test_the_report_is_part_of_the_notebook(outputs):
    (shown,) = outputs[5]
    assert html(shown).startswith("<iframe srcdoc=")
    assert "&lt;title&gt;a&lt;/title&gt;" in html(shown)


def test_a_comparison_is_a_table(outputs):
    shown = outputs[6][-1]
    assert "<table" in html(shown)
    assert shown["data"]["text/plain"] == "<comparison of a, b>"
