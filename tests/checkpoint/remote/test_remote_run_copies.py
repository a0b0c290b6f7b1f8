"""Local copies of runs: uploading, readers, and a store that is unreachable at the start, meanwhile or at the end."""

import shutil
import threading
import time

import pytest
from tests.checkpoint.remote.machines import Machine, failing_at, remote_steps, save, steps

from everstep.checkpoint.remote import local_runs, local_view, publish, working_copy
from everstep.checkpoint.remote.lease import LEASE, Lease
from everstep.checkpoint.remote.mirror import Uploader
from everstep.checkpoint.remote.store import Store, StoreError
from everstep.errors import TrainingError, UsageError
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _quick(monkeypatch, tmp_path):
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("EVERSTEP_UPLOAD_SECONDS", "0.5")


def until(happened, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def begin(directory, step=10):
    directory.mkdir(exist_ok=True)
    (directory / "run.json").write_text('{"id": "run-1"}')
    save(directory, step)


@pytest.mark.stores("memory", "gs")
def test_a_run_is_in_the_store_when_the_block_ends(place, tmp_path, monkeypatch):
    url = place.url()
    with working_copy(url) as directory:
        assert not directory.exists()
        begin(directory)
        until(lambda: remote_steps(url) == [10])  # while it trains
        save(directory, 20)
    assert remote_steps(url) == [10, 20]
    assert LEASE not in Store(url).listing()
    assert not list(directory.parent.glob("*.staging"))
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "other"))
    with working_copy(url) as elsewhere:
        assert elsewhere != directory
        assert 20 in steps(elsewhere / "checkpoints")
        until(lambda: steps(elsewhere / "checkpoints") == [10, 20])  # the older one is fetched later


def test_a_local_directory_is_yielded_unchanged(tmp_path):
    with working_copy(tmp_path / "run") as directory:
        assert directory == tmp_path / "run"


@pytest.mark.stores("s3", "gs")
def test_a_store_that_is_unreachable_at_the_start_is_a_usage_error(place, tmp_path, monkeypatch):
    monkeypatch.setenv("EVERSTEP_STORE_TIMEOUT", "0.5")
    place.network.fault = "refuse"
    with raises_problem(reason=r"^cannot \w+ \S+://", remedy="check the URL, the network") as error:
        working_copy(place.url()).__enter__()
    assert "\n" not in str(error.value)
    assert not any(path.is_dir() for path in (tmp_path / "cache" / "runs").iterdir())


@pytest.mark.stores("s3")
def test_a_store_that_was_unreachable_for_a_while_gets_everything(place, caplog):
    url = place.url()
    with working_copy(url) as directory:
        begin(directory)
        until(lambda: remote_steps(url) == [10])
        place.network.fault = "error"
        save(directory, 20)
        until(lambda: "training continues, its results wait on this machine" in caplog.text)
        save(directory, 30)
        place.network.fault = "none"
        until(lambda: "has all results again" in caplog.text)
        assert remote_steps(url) == [10, 20, 30]
    assert caplog.text.count("training continues") == 1


class Pauses(threading.Event):
    """Records the requested timeouts, and waits less."""

    def __init__(self):
        super().__init__()
        self.timeouts = []

    def wait(self, timeout=None):
        self.timeouts.append(timeout)
        return super().wait(0.001)


@pytest.mark.stores("memory")
def test_pauses_between_retries_grow_only_while_nothing_arrives(place, tmp_path, monkeypatch):
    """On a network that loses much, but not everything, the pauses stay short."""
    machine = Machine(tmp_path / "machine", place.url())
    machine.begin()
    machine.save(10)
    lease = Lease(machine.mirror.store, 60)
    lease.acquire()
    uploader = Uploader(machine.mirror, lease)
    uploader._closing = pauses = Pauses()
    put = Store.put

    def losing(store, name, *args):
        if len(pauses.timeouts) > 3 or name.endswith("manifest.json"):
            machine.mirror._parts.clear()  # there is always more to upload
            raise StoreError("500")
        return put(store, name, *args)

    monkeypatch.setattr(Store, "put", losing)
    uploader._patience = 0.1
    uploader.start()
    until(lambda: len(pauses.timeouts) >= 7)
    assert str(uploader.close()) == "500"
    lease.release()
    assert pauses.timeouts[:7] == pytest.approx([0.05, 0.1, 0.1, 0.1, 0.2, 0.4, 0.8])


@pytest.mark.stores("s3")
def test_a_store_that_is_unreachable_at_the_end_fails_the_run_and_the_next_attempt_uploads_it(place, monkeypatch):
    monkeypatch.setenv("EVERSTEP_UPLOAD_PATIENCE", "0.5")
    url = place.url()
    incomplete = {"key": url, "reason": "does not have all of the run: cannot", "remedy": "the same command"}
    with raises_problem(TrainingError, **incomplete), working_copy(url) as directory:
        begin(directory)
        until(lambda: remote_steps(url) == [10])
        place.network.fault = "refuse"
        save(directory, 20)
    place.network.fault = "none"
    assert remote_steps(url) == [10]
    with working_copy(url) as again:
        assert steps(again / "checkpoints") == [10, 20]
    assert remote_steps(url) == [10, 20]


@pytest.mark.stores("s3")
def test_a_run_that_a_signal_stops_uploads_its_last_state_within_the_grace_time(place, monkeypatch, caplog):
    url = place.url()
    with pytest.raises(SystemExit), working_copy(url) as directory:  # noqa: PT012
        begin(directory)
        raise SystemExit(143)
    assert remote_steps(url) == [10]
    monkeypatch.setenv("EVERSTEP_UPLOAD_PATIENCE", "1")
    monkeypatch.setenv("EVERSTEP_STORE_TIMEOUT", "600")
    monkeypatch.setattr("everstep.checkpoint.remote.lease._SECONDS_TO_RELEASE", 0.5)
    with pytest.raises(SystemExit), working_copy(url) as directory:  # noqa: PT012
        save(directory, 20)
        place.network.trouble = "stall"
        began = time.monotonic()
        raise SystemExit(143)
    assert time.monotonic() - began < 300  # not the time limit of the store
    assert "does not have all of the run: not done within 1 s" in caplog.text
    [abandoned] = [thread for thread in threading.enumerate() if thread.name == "everstep-upload"]
    caplog.clear()
    place.network.trouble = ""
    abandoned.join(300)
    assert not abandoned.is_alive()
    assert "uploads nothing more" not in caplog.text  # in a process that goes on, it is silent
    assert remote_steps(url) == [10]


@pytest.mark.stores("memory")
def test_a_run_that_never_started_leaves_nothing_in_the_store(place):
    url = place.url()
    with raises_problem(reason="bad request"), working_copy(url) as directory:
        begin(directory, step=0)
        until(lambda: remote_steps(url) == [0])
        shutil.rmtree(directory)  # as run_experiment does with a directory that it created in vain
        raise UsageError("bad request")
    assert Store(url).listing() == {}


@pytest.mark.stores("file", "s3")
def test_a_second_machine_is_refused_with_the_name_of_the_first(place, tmp_path, monkeypatch):
    url = place.url()
    with working_copy(url) as directory:
        begin(directory)
        with raises_problem(key=url, reason=r"is being trained by process \d+ on host \S+", remedy="wait"):
            working_copy(url).__enter__()
        monkeypatch.setattr("everstep.liveness.socket.gethostname", lambda: "elsewhere")
        monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "other"))
        with raises_problem(key=url, reason=r"is being trained by process \d+ on host \S+", remedy="wait"):
            working_copy(url).__enter__()


@pytest.mark.stores("gs")
def test_readers_have_their_own_copy(place, tmp_path):
    url = place.url()
    trained = Machine(tmp_path / "machine", url)
    trained.begin()
    trained.save(10)
    trained.mirror.commit()
    seen = local_view(url)
    assert steps(seen / "checkpoints") == [10]
    trained.save(20)
    (seen / "mine.html").write_text("written by the reader")
    shutil.rmtree(trained.directory / "checkpoints" / "10")
    (trained.directory / "config.yaml").unlink()
    trained.mirror.commit()
    with working_copy(url, training=False) as again:
        assert again == seen
        assert {path.name for path in seen.iterdir()} == {"mine.html", "run.json", "history.csv", "checkpoints"}
        assert steps(seen / "checkpoints") == [20]
    assert [found for found, _ in local_runs(url.rpartition("/")[0]) if found == url] == [url]
    with raises_problem(key="run", reason="there is no run at"):
        local_view(f"{url}-not")


@pytest.mark.stores("memory")
def test_a_follower_sees_new_checkpoints(place, tmp_path):
    url = place.url()
    trained = Machine(tmp_path / "machine", url)
    trained.begin()
    trained.save(10)
    trained.mirror.commit()
    with working_copy(url, training=False, follow=True) as seen:
        trained.save(20)
        trained.mirror.commit()
        until(lambda: 20 in steps(seen / "checkpoints"))


@pytest.mark.stores("memory")
def test_a_follower_may_start_before_the_run(place, tmp_path, caplog):
    url = place.url()
    with working_copy(url, training=False, follow=True) as seen:
        assert not (seen / "run.json").exists()
        trained = Machine(tmp_path / "machine", url)
        trained.begin()
        trained.save(10)
        trained.mirror.commit()
        until(lambda: 10 in steps(seen / "checkpoints"))
    assert "cannot be read now" not in caplog.text


@pytest.mark.stores("file", "s3")
def test_a_folder_is_published(place, tmp_path, monkeypatch):
    """Former files are removed; after a failure halfway, the file that marks a complete model is missing."""
    model = tmp_path / "model"
    for name in ("deep/weights", "saved_model.pb"):
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).write_bytes(b"w" * 100)
    url = place.url()
    publish(model, url)
    assert Store(url).get_bytes("deep/weights") == b"w" * 100
    publish(model / "saved_model.pb", f"{url}/copy")
    monkeypatch.setenv("EVERSTEP_UPLOAD_PATIENCE", "0.1")
    with failing_at("deep/"), raises_problem(TrainingError, key=url, reason="was not written", remedy="same command"):
        publish(model, url)
    assert sorted(Store(url).listing()) == ["copy", "deep/weights"]
    (model / "deep" / "weights").rename(model / "deep" / "other")
    publish(model, url)
    assert sorted(Store(url).listing()) == ["deep/other", "saved_model.pb"]
    with raises_problem(key="source", reason="there is no such file or folder"):
        publish(tmp_path / "nothing", url)
