"""Two processes train a run whose directory is in an object store: killed, they resume to the same bits."""

import fsspec
import pytest
from tests.checkpoint.remote.servers import environment, fresh_url, running
from tests.several.launched import ended, hit, launch, record, start

from everstep.checkpoint.remote import local_view
from everstep.checkpoint.remote.cache import key

pytestmark = [pytest.mark.full, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    fsspec.get_filesystem_class("s3").clear_instance_cache()  # clients of other modules use other servers
    with running("s3", tmp_path_factory.mktemp("s3")) as found:
        yield found


@pytest.fixture
def s3(server, tmp_path, monkeypatch):
    """A new URL in a store that runs on this machine."""
    caches = {"EVERSTEP_CACHE_DIR": str(tmp_path / "cache"), "EVERSTEP_UPLOAD_SECONDS": "1"}
    for name, value in {**environment("s3", server.uri), **caches}.items():
        monkeypatch.setenv(name, value)
    return fresh_url("s3", tmp_path, "run")


def test_a_run_in_a_store_is_killed_and_resumed(s3, tmp_path, monkeypatch):
    url, copy = f"--model-dir={s3}", tmp_path / "cache" / "runs" / key(s3)
    interrupted = launch(tmp_path / "killed", 2, url, restarts=3)
    pid = hit(copy, interrupted, rank=1)
    code, text = ended(interrupted)
    assert code == 0, text
    assert f"rank 1 (pid {pid} on" in text
    code, text = ended(launch(tmp_path / "whole", 2))
    assert code == 0, text
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "another machine"))
    found = record(local_view(s3))
    assert [attempt["processes"] for attempt in found["attempts"]] == [2, 2]
    assert found["digest"] == record(tmp_path / "whole")["digest"]
    code, text = ended(launch(tmp_path / "evaluated", 2, url, "--mode=eval"))
    assert code == 0, text


def test_another_machine_resumes_a_run_in_a_store_alone(s3, tmp_path, monkeypatch):
    url = f"--model-dir={s3}"
    code, text = ended(launch(tmp_path / "two", 2, url, "trainer.train_steps=60"))
    assert code == 0, text
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "another machine"))
    code, text = ended(start(tmp_path / "one", url, "--allow-change=trainer.train_steps"))
    assert code == 0, text
    assert [attempt["processes"] for attempt in record(local_view(s3))["attempts"]] == [2, 1]
