import json
import math
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everstep.tracking.delivery import DeliveryProgress
from everstep.tracking.spool import Spool, point_count

pytestmark = pytest.mark.slow


@pytest.fixture
def spool(tmp_path):
    opened = Spool(tmp_path / "spool", "server", clock=lambda: 1700000000.5)
    opened.open()
    return opened


def steps(spool):
    return [record["step"] for record in spool.records() if record["type"] == "metrics"]


def log(spool, *numbers):
    for step in numbers:
        spool.metrics(step, {"loss": 1.0 / step}, "train")


def test_a_record_is_a_line_stamped_once(spool):
    spool.metrics(10, {"loss": 0.5}, "train")
    spool.append({"type": "status", "status": "finished"})
    lines = [json.loads(line) for line in spool.path.read_text().splitlines()]
    assert lines == [
        {"time": 1700000000500, "type": "metrics", "step": 10, "kind": "train", "values": {"loss": 0.5}},
        {"time": 1700000000500, "type": "status", "status": "finished"},
    ]
    assert list(spool.records()) == lines


def test_every_number_is_strict_json_and_comes_back(spool):
    values = {"nan": math.nan, "inf": math.inf, "minus": -math.inf, "tiny": 5e-324, "third": 1 / 3}
    spool.metrics(1, values, "train")
    json.loads(spool.path.read_text(), parse_constant=pytest.fail)
    (record,) = spool.records()
    read = {name: float(value) for name, value in record["values"].items()}
    assert repr(read) == repr(values)


def test_several_system_readings_at_one_step(spool):
    for load in (10.0, 20.0):
        spool.metrics(5, {"system/cpu_utilization_percentage": load}, "system", once=False)
        spool.metrics(5, {"loss": load}, "train")
    assert [tuple(record["values"].values()) for record in spool.records()] == [(10.0,), (10.0,), (20.0,)]


def test_nothing_is_written_before_the_first_record(spool, tmp_path):
    spool.flush()
    spool.close()
    assert not list(tmp_path.iterdir())
    assert spool.read(0).records == []


def test_a_resumed_run_records_each_point_once(spool):
    log(spool, 1, 2, 3)
    spool.metrics(3, {"validation_loss": 2.0}, "validation")
    spool.close()
    again = Spool(spool.path.parent, "server")
    again.open()
    log(again, 2, 3, 4)
    again.metrics(3, {"validation_loss": 2.0, "accuracy": 0.5}, "validation")
    assert steps(again) == [1, 2, 3, 3, 4, 3]
    assert list(again.records())[-1]["values"] == {"accuracy": 0.5}  # the one name that is new


def test_a_parameter_is_recorded_once_and_changes_are_returned(spool):
    assert spool.params({"a": "1", "b": "2"}) == {}
    again = Spool(spool.path.parent, "server")
    again.open()
    assert again.params({"a": "1", "b": "3", "c": "4"}) == {"b": "3"}
    assert [record["values"] for record in again.records()] == [{"a": "1", "b": "2"}, {"c": "4"}]


def test_reading_continues_where_it_ended(spool):
    log(spool, 1, 2)
    first = spool.read(0)
    assert spool.read(first.end).records == []
    log(spool, 3)
    second = spool.read(first.end)
    assert [record["step"] for record in first.records + second.records] == [1, 2, 3]
    assert second.end == spool.path.stat().st_size


def test_a_long_record_among_many_is_read_whole(spool):
    log(spool, *range(1, 1001))
    spool.params({"text": "x" * 300_000})
    log(spool, *range(1001, 2001))
    records = list(spool.records())
    assert len(records) == 2001
    assert point_count(records) == 2000


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(min_value=0, max_value=10**6))
def test_cut_anywhere_the_whole_records_remain(spool, cut):
    spool.path.unlink(missing_ok=True)
    spool.open()
    log(spool, 1, 2, 3, 4)
    spool.close()
    text = spool.path.read_bytes()
    size = cut % (len(text) + 1)
    os.truncate(spool.path, size)
    spool.open()
    whole = text[:size].count(b"\n")
    assert steps(spool) == [1, 2, 3, 4][:whole]
    log(spool, 1, 2, 3, 4)
    assert spool.path.read_bytes() == text


def test_a_half_line_is_not_read_while_it_is_written(spool):
    log(spool, 1)
    with open(spool.path, "ab") as file:
        file.write(b'{"time": 1, "type"')
    assert steps(spool) == [1]


def test_lines_that_are_no_records_are_skipped_with_a_warning(spool, caplog):
    log(spool, 1)
    with open(spool.path, "ab") as file:
        file.write(b"\x00\x00garbage\n[1]\n")
    log(spool, 2)
    assert steps(spool) == [1, 2]
    assert "garbage" in caplog.text
    assert caplog.text.count("no record") == 2


def test_many_threads_write_whole_lines(spool):
    def write(thread):
        for step in range(200):
            spool.metrics(step, {f"loss{thread}": float(step)}, "train")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert point_count(spool.records()) == 800


def test_a_full_disk_delays_records_and_loses_none(spool, caplog):
    """The limit on the size of files makes the kernel take a part of a line, and then nothing."""
    log(spool, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (spool.path.stat().st_size + 20, hard))
    try:
        log(spool, 2, 3)
        assert steps(spool) == [1]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(caplog.records) == 1
    log(spool, 4)
    assert steps(spool) == [1, 2, 3, 4]


def test_unwritten_records_are_reported_at_the_end(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    spool = Spool(tmp_path / "file" / "spool", "server")
    log(spool, 1)
    spool.close()
    assert "1 records were not written" in caplog.text


def test_a_killed_process_leaves_what_it_logged(tmp_path):
    code = f"""
        from everstep.tracking.spool import Spool
        spool = Spool({str(tmp_path)!r}, "server")
        spool.open()
        for step in range(1, 10**6):
            spool.metrics(step, {{"loss": float(step)}}, "train")
            print(step, flush=True)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True) as process:
        printed = 0
        while printed < 50:
            printed = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        printed = int(([str(printed), *process.stdout.read().split()])[-1])
    spool = Spool(tmp_path, "server")
    spool.open()
    recorded = steps(spool)
    assert recorded == list(range(1, len(recorded) + 1))
    assert printed <= len(recorded) <= printed + 1


def test_progress_is_kept_per_server_and_spool(spool, tmp_path):
    log(spool, 1, 2)
    end = spool.read(0).end
    DeliveryProgress(tmp_path / "sent.json", "http://one", end, "abc").save()
    load = lambda server: DeliveryProgress.load(tmp_path / "sent.json", server, spool)  # noqa: E731
    assert (load("http://one").offset, load("http://one").remote_id) == (end, "abc")
    assert (load("http://two").offset, load("http://two").remote_id) == (0, None)
    os.truncate(spool.path, end - 5)
    assert load("http://one").offset == 0


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"server": "http://one", "offset": "x", "remote_id": null}'])
def test_damaged_progress_means_from_the_beginning(spool, tmp_path, text):
    (tmp_path / "sent.json").write_text(text)
    assert DeliveryProgress.load(tmp_path / "sent.json", "http://one", spool).offset == 0
