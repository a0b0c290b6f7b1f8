"""Older checkpoints of a run in a store, and comparing such a run with a local one."""

import shutil
from pathlib import Path

import pytest
from tests.checkpoint.remote import remote_program

from everstep.checkpoint import complete_checkpoints
from everstep.cli.main import main
from everstep.run.checkpoint_selection import choose
from everstep.testing.problems import raises_problem
from everstep.trained.finding import local_run

pytestmark = pytest.mark.slow


@pytest.mark.stores("memory")
def test_only_the_requested_steps_are_fetched(place, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    url = place.url()
    remote_program.train(url)
    assert list(complete_checkpoints(Path(local_run(url), "checkpoints"))) == [12]
    with raises_problem(
        key="--checkpoint", received="5", reason=f"'{url}' has no step 5", remedy="there are: 4, 8, 12"
    ):
        local_run(url, "5")
    found = Path(local_run(url, "4,12"))
    assert list(complete_checkpoints(found / "checkpoints")) == [4, 12]
    assert choose(found, "4,12").steps == [4, 12]
    assert choose(Path(local_run(url, "last:3")), "last:3").steps == [4, 8, 12]

    shutil.copytree(found, "other")
    config = Path("other/config.yaml").read_text()
    Path("other/config.yaml").write_text(config.replace("train_steps: 12", "train_steps: 13"))
    capsys.readouterr()
    assert main(("runs", "compare", url, "other", "--out", "c.png")) == 0
    assert "trainer.train_steps" in capsys.readouterr().out
    assert Path("c.png").stat().st_size > 1000
    assert main(("export", url, "--checkpoint", "8")) == 2
    assert "--out" in capsys.readouterr().err
