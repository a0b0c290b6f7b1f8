"""Real processes on this machine that agree, fail, freeze and are slow."""

import json
import re
import signal
import time

import pytest
from tests.gang.processes import Processes

from everstep import gang

pytestmark = pytest.mark.slow


def test_one_process_agrees_with_itself():
    alone = gang.join(environment={})
    assert alone is gang.current_gang()
    assert (alone.rank, alone.size, alone.is_first) == (0, 1, True)
    assert alone.share("x", 3) == 3
    assert alone.gather("x", 3) == [3]
    assert gang.is_true_of_any(alone, "x", True)
    gang.require_same(alone, "x", 3)
    gang.barrier(alone, "x")
    assert alone.requested_stop() is None


def test_three_processes_agree():
    done = Processes(
        """
        one = gang.join()
        assert one is gang.join() is gang.current_gang()
        got = []
        for i in range(30):
            got.append(one.share("length", 10 * i + one.rank))
            got.append(one.gather("all", [one.rank, i]))
        got.append([gang.is_true_of_any(one, "flag", one.rank == 2), gang.is_true_of_any(one, "flag", False)])
        if one.rank == 1:
            one.request_stop("SIGTERM")
            one.request_stop("SIGINT")  # the first reason counts
        while one.requested_stop() is None:  # it comes with a heartbeat
            time.sleep(0.1)
        got.append(one.requested_stop())
        gang.require_same(one, "the number", 7)
        try:
            gang.require_same(one, "the colour", "red" if one.rank < 2 else "blue", key="colour")
        except UsageError as error:
            got.append([error.key, error.reason.partition(" on rank 2")[0]])
        print(json.dumps(got))
        """,
        3,
    ).results()
    assert [code for code, _, _ in done.values()] == [0, 0, 0], done
    results = {rank: json.loads(out) for rank, (_, out, _) in done.items()}
    for got in results.values():
        assert got[:60] == [x for i in range(30) for x in (10 * i, [[r, i] for r in range(3)])]
        assert got[60:] == [[True, False], "SIGTERM", ["colour", results[0][62][1]]]
    assert "the colour differs between the processes: 'red' on rank 0, but 'blue'" in results[0][62][1]


def test_the_first_process_waits_for_the_others():
    done = Processes(
        """
        one = gang.join(spans_devices=True)
        gang.barrier(one, "the end")
        if one.rank == 1:
            time.sleep(3)
            one.request_stop("SIGTERM")
            assert one.requested_stop(at_once=True)
        """,
        2,
    ).results()
    assert [code for code, _, _ in done.values()] == [0, 0], done


def test_processes_at_different_places_are_named():
    done = Processes(
        """
        gang.service._LEAVE_SECONDS = 2
        one = gang.join()
        one.gather("the first" if one.rank == 0 else "the second", 1)
        """,
        2,
    ).results()
    assert done[0][0] == 1
    assert "rank 0 is at 'the first', rank 1 (pid" in done[0][2]


def test_a_value_for_one_reader_of_another_thread():
    done = Processes(
        """
        import threading
        gang.service.BEAT_SECONDS = 0.2
        one = gang.join()
        got = []
        def broadcast():
            time.sleep(0.3)
            one.broadcast("lengths/0", 7)
        def receive():
            got.append(one.receive("lengths/0"))
            got.append(one.receive("lengths/never", lambda: len(got) == 1))
        thread = threading.Thread(target=broadcast if one.is_first else receive)
        thread.start()
        gang.barrier(one, "meanwhile")
        thread.join()
        gang.barrier(one, "heard")
        one.forget("lengths/0")
        gang.barrier(one, "forgotten")
        while one.is_first and one._client.key_value_dir_get("everstep/broadcast"):
            time.sleep(0.1)
        print(json.dumps(got))
        """,
        2,
    ).results()
    assert [code for code, _, _ in done.values()] == [0, 0], done
    assert json.loads(done[1][1]) == [7, None]


def test_after_the_call_at_which_all_stop_every_process_knows_why():
    """Also before the next heartbeat."""
    done = Processes(
        """
        from everstep.engine.call_agreement import CallAgreement
        gang.service.BEAT_SECONDS = 60
        one = gang.join()

        def requested():
            if one.rank == 1:
                one.request_stop("SIGTERM")
            return one.rank == 1

        assert CallAgreement(lambda: False).stops(requested)
        print(one.requested_stop())
        """,
        2,
    ).results()
    assert [(code, out) for code, out, _ in done.values()] == [(0, "SIGTERM\n")] * 2, done


def test_a_failing_process_ends_the_others():
    done = Processes(
        """
        one = gang.join()
        if one.rank == 1:
            one.fail("no such file", exit_code=2)
            sys.exit(2)
        gang.barrier(one, "never")
        """,
        3,
    ).results()
    assert [code for code, _, _ in done.values()] == [2, 2, 2], done
    assert re.fullmatch(r"everstep: rank 1 \(pid \d+ on .*\) failed: no such file\n", done[0][2])
    assert [errors for _, _, errors in done.values()][1:] == ["", ""], "bad input is said by the first process alone"


@pytest.mark.parametrize(
    ("frozen", "seconds"),
    [(1, 15), pytest.param(0, 40, marks=pytest.mark.full), pytest.param(1, 40, marks=pytest.mark.full)],
)
def test_a_frozen_process_is_named(frozen, seconds):
    processes = Processes(
        f"""
        gang.service.LOST_SECONDS = {seconds}
        one = gang.join()
        if one.rank == {frozen}:
            print("now", flush=True)
            os.kill(os.getpid(), {int(signal.SIGSTOP)})
        gang.barrier(one, "never")
        """,
        3,
    )
    assert processes.all[frozen].stdout.readline() == "now\n"
    begin = time.monotonic()
    others = {rank: one for rank, one in processes.all.items() if rank != frozen}
    errors = {rank: one.communicate(timeout=120)[1] for rank, one in others.items()}
    took = time.monotonic() - begin
    processes.kill()
    assert [one.returncode for one in others.values()] == [1, 1]
    assert all(f"rank {frozen} (pid {processes.all[frozen].pid} on" in text for text in errors.values()), errors
    assert took < 60, "the others have named it, and ended"


def test_a_slow_process_is_named():
    """Others wait for it at a meeting, or in the middle of a step."""
    done = Processes(
        """
        import logging
        logging.basicConfig(format="%(message)s")
        gang.service.BEAT_SECONDS, gang.service.SLOW_SECONDS = 0.2, 2
        one = gang.join()
        if one.rank == 1:
            time.sleep(4)
        else:
            with one.waiting():
                time.sleep(4)
        gang.barrier(one, "a step")
        if one.rank == 1:
            time.sleep(6)
        gang.barrier(one, "a save")
        """,
        2,
    )
    pids = {rank: one.pid for rank, one in done.all.items()}
    done = done.results()
    assert [code for code, _, _ in done.values()] == [0, 0], done
    in_step, at_save = done[0][2].splitlines()
    assert in_step.startswith(f"other processes wait for rank 1 (pid {pids[1]} on ")
    assert in_step.endswith(") in the middle of a step for 2 s")
    assert at_save.startswith(f"rank 0 (pid {pids[0]} on ")
    assert f" waits for rank 1 (pid {pids[1]} on " in at_save
    assert at_save.endswith(") at 'a save' for 2 s")
    assert done[1][2] == ""
