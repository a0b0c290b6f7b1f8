"""Real processes that meet: one is missing, dies, or cannot begin."""

import re
import socket

import pytest
from tests.gang.processes import Processes, free_port

from everstep import gang
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow


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
    monkeypatch.setattr(gang.roll_call, "_REFUSING_SECONDS", 0.5)
    for rank in (0, 1):
        error = UsageError("is no number")
        where = {gang.COORDINATOR: f"127.0.0.1:{free_port()}", gang.PROCESS_ID: str(rank), gang.NUM_PROCESSES: "2"}
        assert gang.refuse_together(error, lambda error=error: int(error.announced) + 2, where) == 2


@pytest.mark.parametrize("dead", [0, 1])
def test_a_process_that_dies_while_they_connect_is_named(dead):
    done = Processes(
        f"""
        if os.environ[gang.PROCESS_ID] == "{dead}":
            gang.service.connect = lambda *_: os._exit(9)
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
        with raises_problem(key="EVERSTEP_COORDINATOR", reason="cannot use this port") as raised:
            gang.roll_call.meet(found, 5)
    assert (raised.value.key, raised.value.received) == (gang.COORDINATOR, f"127.0.0.1:{port}")


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_wrong_seconds(text):
    with pytest.raises(UsageError) as raised:
        gang.roll_call.join_seconds({gang.JOIN_SECONDS: text})
    assert (raised.value.key, raised.value.received) == (gang.JOIN_SECONDS, text)
