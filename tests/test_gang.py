"""The gang: real processes on this machine that agree, fail and are missed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from everstep import gang
from everstep.errors import UsageError

_BEGIN = """
import json, os, sys, time
from everstep import gang
from everstep.errors import UsageError
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Processes:
    """Starts the same code as several processes, each with its coordinates."""

    def __init__(self, code: str, size: int, ranks: list[int] | None = None, port: int | None = None, **variables: str):
        code, port = _BEGIN + textwrap.dedent(code), port or free_port()
        self.all = {
            rank: subprocess.Popen(
                [sys.executable, "-c", code],
                env={
                    **os.environ,
                    gang.COORDINATOR: f"127.0.0.1:{port}",
                    gang.PROCESS_ID: str(rank),
                    gang.NUM_PROCESSES: str(size),
                    gang.JOIN_SECONDS: "60",
                    **variables,
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in (range(size) if ranks is None else ranks)
        }

    def results(self, timeout: float = 120) -> dict[int, tuple[int, str, str]]:
        """Returns exit code, output and errors of each."""
        try:
            out = {rank: one.communicate(timeout=timeout) for rank, one in self.all.items()}
        finally:
            self.kill()
        return {rank: (one.returncode, *out[rank]) for rank, one in self.all.items()}

    def kill(self) -> None:
        for one in self.all.values():
            if one.poll() is None:
                one.kill()
            for pipe in (one.stdout, one.stderr):
                pipe.close()
            one.wait()


def test_one_process_agrees_with_itself():
    alone = gang.join(environment={})
    assert alone is gang.current_gang()
    assert (alone.rank, alone.size, alone.is_first) == (0, 1, True)
    assert alone.share("x", 3) == 3
    assert alone.gather("x", 3) == [3]
    assert alone.any("x", True)
    alone.agree("x", 3)
    alone.barrier("x")
    assert alone.requested("stop") is None
    assert alone.rows(10) == slice(0, 10)


def test_three_processes_agree():
    done = Processes(
        """
        one = gang.join()
        assert one is gang.join() is gang.current_gang()
        got = []
        for i in range(30):
            got.append(one.share("length", 10 * i + one.rank))
            got.append(one.gather("all", [one.rank, i]))
        got.append([one.any("flag", one.rank == 2), one.any("flag", False)])
        if one.rank == 1:
            one.request("stop", "SIGTERM")
        while one.requested("stop") is None:  # it comes with a heartbeat
            time.sleep(0.1)
        got.append(one.requested("stop"))
        one.agree("the number", 7)
        try:
            one.agree("the colour", "red" if one.rank < 2 else "blue", key="colour")
        except UsageError as error:
            got.append([error.key, error.reason.partition(" on rank 2")[0]])
        got.append([one.rows(8).start, one.rows(8).stop])
        print(json.dumps(got))
        """,
        3,
    ).results()
    assert [code for code, _, _ in done.values()] == [0, 0, 0], done
    results = {rank: json.loads(out) for rank, (_, out, _) in done.items()}
    for rank, got in results.items():
        assert got[:60] == [x for i in range(30) for x in (10 * i, [[r, i] for r in range(3)])]
        assert got[60:63] == [[True, False], "SIGTERM", ["colour", results[0][62][1]]]
        assert got[63] == [[0, 2], [2, 5], [5, 8]][rank]
    assert "the colour differs between the processes: 'red' on rank 0, but 'blue'" in results[0][62][1]


def test_the_first_process_waits_for_the_others():
    done = Processes(
        """
        one = gang.join(spans_devices=True)
        one.barrier("the end")
        if one.rank == 1:
            time.sleep(3)
            one.request("more", "to say")
            assert one._client.key_value_dir_get(f"{gang._NEWS}/request")
        """,
        2,
    ).results()
    assert [code for code, _, _ in done.values()] == [0, 0], done


def test_processes_at_different_places_are_named():
    done = Processes(
        """
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
        one = gang.join()
        got = []
        def tell():
            time.sleep(0.3)
            one.publish("lengths/0", 7)
        def hear():
            got.append(one.hear("lengths/0", lambda: False))
            got.append(one.hear("lengths/never", lambda: len(got) == 1))
        thread = threading.Thread(target=tell if one.is_first else hear)
        thread.start()
        one.barrier("meanwhile")
        thread.join()
        one.barrier("heard")
        one.forget("lengths/0")
        one.barrier("forgotten")
        print(json.dumps(got))
        """,
        2,
    ).results()
    assert [code for code, _, _ in done.values()] == [0, 0], done
    assert json.loads(done[1][1]) == [7, None]


def test_a_failing_process_ends_the_others():
    done = Processes(
        """
        one = gang.join()
        if one.rank == 1:
            one.fail("no such file", exit_code=2)
            sys.exit(2)
        one.barrier("never")
        """,
        3,
    ).results()
    assert [code for code, _, _ in done.values()] == [2, 2, 2], done
    assert re.fullmatch(r"everstep: rank 1 \(pid \d+ on .*\) failed: no such file\n", done[0][2])
    assert [errors for _, _, errors in done.values()][1:] == ["", ""], "bad input is said by the first process alone"


@pytest.mark.parametrize("wrong", [[0], [1], [0, 1, 2]])
def test_a_process_that_cannot_begin_ends_the_others(wrong):
    """One line, by the first process: its own reason, or that of the others, who end at once."""
    done = Processes(
        f"""
        def show(error):
            print("error:", error, file=sys.stderr, flush=True) if not error.announced else None
            return 2

        try:
            if int(os.environ[gang.PROCESS_ID]) in {wrong}:
                raise UsageError("is no number", key="units", received="x")
            gang.join()
        except UsageError as error:
            sys.exit(gang.refuse_together(error, lambda: show(error)))
        """,
        3,
    ).results()
    assert [code for code, _, _ in done.values()] == [2, 2, 2], done
    who = "" if 0 in wrong else r" \(on rank 1 \(pid \d+ on .*\)\)"
    assert re.fullmatch(rf"error: units: received 'x', is no number{who}\n", done[0][2]), done
    assert [errors for _, _, errors in done.values()][1:] == ["", ""], done


def test_a_process_that_cannot_begin_says_so_if_nobody_listens(monkeypatch):
    monkeypatch.setattr(gang, "_REFUSING_SECONDS", 0.5)
    for rank in (0, 1):
        error = UsageError("is no number")
        where = {gang.COORDINATOR: f"127.0.0.1:{free_port()}", gang.PROCESS_ID: str(rank), gang.NUM_PROCESSES: "2"}
        assert gang.refuse_together(error, lambda error=error: int(error.announced) + 2, where) == 2


@pytest.mark.parametrize(
    ("frozen", "seconds"),
    [(1, 15), pytest.param(0, 40, marks=pytest.mark.full), pytest.param(1, 40, marks=pytest.mark.full)],
)
def test_a_frozen_process_is_named(frozen, seconds):
    processes = Processes(
        f"""
        gang._LOST_SECONDS = {seconds}
        one = gang.join()
        if one.rank == {frozen}:
            print("now", flush=True)
            os.kill(os.getpid(), {int(signal.SIGSTOP)})
        one.barrier("never")
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


@pytest.mark.parametrize("dead", [0, 1])
def test_a_process_that_dies_while_they_connect_is_named(dead):
    done = Processes(
        f"""
        if os.environ[gang.PROCESS_ID] == "{dead}":
            gang._connect = lambda *_: os._exit(9)
        gang.join()
        """,
        3,
    ).results()
    assert [code for code, _, _ in done.values()] == [9 if rank == dead else 1 for rank in range(3)], done
    for rank, (_, _, errors) in done.items():
        ended = f"everstep: rank {dead} (pid "
        assert rank == dead or (errors.startswith(ended) and errors.count("\n") == 1), errors
        assert rank == dead or "ended while the processes were connecting" in errors


def test_a_rank_that_never_comes_is_named():
    done = Processes("gang.join()", 3, ranks=[0, 2], **{gang.JOIN_SECONDS: "8"}).results()
    for _, _, errors in done.values():
        assert "UsageError" in errors
        assert "rank 1 of 3 processes did not come within 8 s" in errors


def test_the_first_rank_never_comes():
    ((_, _, errors),) = Processes("gang.join()", 2, ranks=[1], **{gang.JOIN_SECONDS: "2"}).results().values()
    assert "rank 0 did not answer within 2 s" in errors


def test_a_taken_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = gang.Coordinates(f"127.0.0.1:{port}", 0, 2)
        with pytest.raises(UsageError, match="cannot use this port") as raised:
            gang._roll_call(found, 5)
    assert (raised.value.key, raised.value.received) == (gang.COORDINATOR, f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}, None),  # the batch script itself
        (
            {gang.COORDINATOR: "a:1", gang.PROCESS_ID: "1", gang.NUM_PROCESSES: "2"},
            gang.Coordinates("a:1", 1, 2),
        ),
        (
            {gang.COORDINATOR: "job-0.svc:8476", "JOB_COMPLETION_INDEX": "3", gang.NUM_PROCESSES: "4"},
            gang.Coordinates("job-0.svc:8476", 3, 4),
        ),
        ({"JOB_COMPLETION_INDEX": "3"}, None),
        (
            {
                "SLURM_JOB_ID": "7",
                "SLURM_STEP_ID": "1",
                "SLURM_PROCID": "2",
                "SLURM_STEP_NUM_TASKS": "4",
                "SLURM_STEP_NODELIST": "gpu[07-09,12],big1",
            },
            gang.Coordinates(f"gpu07:{32768 + 7 * 16 + 1}", 2, 4),
        ),
    ],
)
def test_coordinates(variables, expected):
    assert gang.find_coordinates(variables) == expected


@pytest.mark.parametrize(
    ("variables", "key"),
    [
        ({gang.NUM_PROCESSES: "2"}, gang.COORDINATOR),
        ({gang.COORDINATOR: "a:1", gang.NUM_PROCESSES: "2"}, gang.PROCESS_ID),
        ({gang.COORDINATOR: "a:1", gang.PROCESS_ID: "2", gang.NUM_PROCESSES: "2"}, gang.PROCESS_ID),
        ({gang.COORDINATOR: "a", gang.PROCESS_ID: "0", gang.NUM_PROCESSES: "2"}, gang.COORDINATOR),
        ({gang.COORDINATOR: "a:1", gang.PROCESS_ID: "0", gang.NUM_PROCESSES: "two"}, gang.NUM_PROCESSES),
    ],
)
def test_wrong_coordinates(variables, key):
    with pytest.raises(UsageError) as raised:
        gang.find_coordinates(variables)
    assert raised.value.key == key


@pytest.mark.parametrize(
    ("nodes", "first"), [("a1", "a1"), ("a1,a2", "a1"), ("a[1-3]", "a1"), ("a[04,7]x,b", "a04x"), ("a[2],b", "a2")]
)
def test_first_node(nodes, first):
    assert gang.first_node(nodes) == first
