"""Real signals, to this process and to others."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from everstep.run.signals import Interrupted, Signals, signal_number
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow


def test_signals_set_a_flag_and_the_former_handlers_come_back():
    def former(number, frame):
        raise AssertionError

    before = signal.signal(signal.SIGTERM, former), signal.getsignal(signal.SIGINT)
    try:
        with Signals() as signals:
            assert signals.reason is None
            os.kill(os.getpid(), signal.SIGTERM)
            assert (signals.received, signals.reason) == (signal.SIGTERM, "SIGTERM")
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == (former, before[1])
    finally:
        signal.signal(signal.SIGTERM, before[0])


ENDS = """
import os, signal, sys, time
from everstep.run.signals import Signals
with Signals(["USR1"], 85) as signals:
    os.kill(os.getpid(), signal.SIGUSR1)
    code = signals.interrupted().exit_code
class Late:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
late = Late()  # deleted while the interpreter ends
sys.exit(code)
"""


def test_a_signal_while_the_interpreter_ends_does_not_change_how():
    assert subprocess.run([sys.executable, "-c", ENDS]).returncode == 85


@pytest.mark.parametrize("requeue", [None, 85])
def test_a_run_that_stops_itself_is_not_requeued(requeue):
    """Nor in the other processes of its gang."""
    with Signals(["USR1"], requeue) as signals:
        signals.request("it is 07:00", by_hook=True)
        other = Signals(["USR1"], requeue)
        other.adopt(signals.as_text())
    assert [one.interrupted().exit_code for one in (signals, other)] == [3, 3]


@pytest.mark.parametrize(
    ("sent", "requeue", "code"),
    [
        (signal.SIGTERM, None, 143),
        (signal.SIGINT, None, 130),
        (signal.SIGUSR1, None, 138),
        (signal.SIGTERM, 85, 143),
        (signal.SIGINT, 85, 130),
        (signal.SIGUSR1, 85, 85),
        (None, 85, 85),
        (None, None, 143),
    ],
)
def test_exit_codes(sent, requeue, code):
    with Signals(["USR1"], requeue) as signals:
        if sent is None:
            thread = threading.Thread(target=signals.request, args=("the machine goes away",))
            thread.start()
            thread.join()
        else:
            os.kill(os.getpid(), sent)
        error = signals.interrupted()
    assert error.exit_code == error.code == code
    assert str(error) == error.reason == ("the machine goes away" if sent is None else sent.name)


def test_sigterm_can_ask_for_a_requeue():
    with Signals(["TERM"], 85) as signals:
        os.kill(os.getpid(), signal.SIGTERM)
    assert signals.interrupted().exit_code == 85


def test_the_first_signal_counts_and_others_print_how_to_end_it(capfd):
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert capfd.readouterr().err == ""
        os.kill(os.getpid(), signal.SIGTERM)
        signals.request("a notice")
        assert (signals.received, signals.reason) == (signal.SIGINT, "SIGINT")
    text = capfd.readouterr().err
    assert text.startswith("everstep: SIGTERM: the state is being saved already (SIGINT)")
    assert f"kill -9 {os.getpid()}" in text
    assert text.count("\n") == 1


def test_outside_the_main_thread_nothing_changes():
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def run():
        with Signals(["USR1"]) as signals:
            seen.extend([signal.getsignal(signal.SIGTERM), signals.reason])
            signals.request("a notice")
            seen.append(signals.reason)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before, None, "a notice"]


@pytest.mark.parametrize("name", ["USR1", "SIGUSR1", " sigusr1 "])
def test_names(name):
    assert signal_number(name) == signal.SIGUSR1


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("SIGUSR3", {"received": "SIGUSR3", "remedy": "did you mean 'USR2' or 'USR1'"}),
        ("KILL", {"received": "KILL", "remedy": "known:"}),
        ("SEGV", {"received": "SEGV", "reason": "can stop a run"}),
        ("10", {"received": "10", "remedy": "known:"}),
    ],
)
def test_wrong_names(name, fields):
    with raises_problem(**fields) as error:
        Signals([name])
    assert repr(name) in str(error.value)


@pytest.mark.parametrize("code", [0, 1, 2, 256, -1])
def test_wrong_exit_codes(code):
    with raises_problem(key="runtime.requeue_exit_code", received=code, reason="must be from 4 to 255"):
        Signals(["USR1"], code)


def python(script):
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)


def test_an_interruption_is_no_exception_and_ends_python_with_its_code():
    assert not issubclass(Interrupted, Exception)
    done = python("""if True:
        import os, signal
        from everstep.run.signals import Signals
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGTERM)
            try:
                raise signals.interrupted()
            except Exception:
                print("swallowed")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "")


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_worker_processes_end_on_signals(start, tmp_path):
    script = tmp_path / "main.py"
    script.write_text(f"""if True:
        import multiprocessing, time
        from everstep.run.signals import Signals

        def work(queue):
            queue.put("alive")
            time.sleep(600)

        if __name__ == "__main__":
            context = multiprocessing.get_context("{start}")
            with Signals() as signals:
                queue = context.Queue()
                worker = context.Process(target=work, args=(queue,))
                worker.start()
                print(queue.get(), flush=True)
                worker.terminate()
                worker.join(300)
                print(worker.exitcode, signals.reason)
    """)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600)
    assert done.stdout.split() == ["alive", "-15", "None"], done.stderr


def test_a_ctrl_c_at_the_terminal_leaves_the_run_its_workers():
    """The terminal sends it to the whole process group."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            """if True:
        import os, signal, time
        from everstep.run.signals import Signals
        with Signals() as signals:
            here, there = os.pipe()
            worker = os.fork()
            if worker == 0:
                os.write(there, b"!")
                time.sleep(600)
                os._exit(0)
            os.read(here, 1)
            os.killpg(0, signal.SIGINT)
            time.sleep(0.1)
            print(signals.reason, os.waitpid(worker, os.WNOHANG))
            os.kill(worker, signal.SIGTERM)
            print(os.waitpid(worker, 0)[1])
            """,
        ],
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.communicate(timeout=300)[0] == "SIGINT (0, 0)\n15\n"
