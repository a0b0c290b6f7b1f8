"""The same flow in a notebook: progress below the cell, and the curves as a picture that grows."""

import os

import nbclient
import nbformat
import pytest


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_cell_shows_progress_and_curves(project, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", os.environ.get("KERAS_BACKEND", "jax"))
    code = 'from everstep.flow import run_flow\ndone = run_flow("Numbers_B", ["Numbers_B.epoch=2"])\ndone.metrics'
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(project)}}).execute()
    outputs = notebook.cells[0].outputs
    text = "".join(output.get("text", "") for output in outputs)
    assert "Numbers_B <- Numbers_A <- FlowTask" in text
    assert "training_loss" in text
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 1
    assert "test acc" in outputs[-1]["data"]["text/plain"]
