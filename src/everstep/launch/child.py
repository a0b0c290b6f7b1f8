"""The supervised command: its process, its standard error, the signals passed to it, and how it ended."""

import contextlib
import dataclasses
import math
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from everstep import liveness
from everstep.errors import UsageError

_GRACE_SECONDS = 30.0


class Supervised(Protocol):
    """What a supervisor starts, waits for, and starts again: one process, or several that live and die together."""

    def send(self, number: int) -> None:
        """Sends a signal; called in a signal handler."""

    def wait(self) -> "ExitStatus":
        """Waits for the end, and returns how it ended."""

    def last_lines(self) -> list[str]:
        """Returns the last lines written to standard error."""

    def end_process_group(self) -> bool:
        """Ends what was left running; returns whether there was anything."""


class Child:
    """A command in a process group of its own, so that a Ctrl-C at the terminal reaches it only through us.

    Standard output is inherited, standard error is relayed, standard input is empty: a command that may be restarted
    cannot have a dialogue.

    Args:
      command: Program and arguments.
      environment: The environment of the command.
      write: Where its standard error goes, and then its standard output as well; None for ours.
      write_out: Where its standard output goes, if that is another place.

    Raises:
      UsageError: The program cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        write: Callable[[bytes], None] | None = None,
        write_out: Callable[[bytes], None] | None = None,
    ) -> None:
        self._stderr = OutputRelay(write)
        self._stdout = None if write_out is None else OutputRelay(write_out)
        try:
            self._process = subprocess.Popen(
                list(command),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=None if write is None else (self._stdout or self._stderr).child_end,
                stderr=self._stderr.child_end,
                process_group=0,
            )
        except (OSError, ValueError) as error:
            raise UsageError(
                f"cannot be started: {getattr(error, 'strerror', None) or error}",
                key="COMMAND",
                received=command[0],
                remedy="check the command after --",
            ) from error
        finally:
            for relay in self._relays():
                relay.start()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def host(self) -> str:
        """The machine that the process runs on."""
        return socket.gethostname()

    def send(self, number: int) -> None:
        """Sends a signal to the command itself, not to the processes it has started."""
        self._process.send_signal(number)

    def ended(self) -> "ExitStatus | None":
        """Returns how the command ended; None while it runs."""
        code = self._process.poll()
        return None if code is None else ExitStatus(code)

    def wait(self) -> "ExitStatus":
        """Waits for the end of the command."""
        status = ExitStatus(self._process.wait())
        for relay in self._relays():
            relay.join()
        return status

    def is_stopped(self) -> bool:
        """Whether the process is stopped by a signal, as by SIGSTOP."""
        return liveness.is_stopped(self.pid)

    def last_lines(self, count: int = 15) -> list[str]:
        """Returns the last lines that the command wrote to standard error."""
        return self._stderr.last_lines(count)

    def end_process_group(self) -> bool:
        """Ends what a dead command left running: with SIGTERM, and after a grace period with SIGKILL.

        A worker that outlives its trainer keeps memory and devices that the next attempt needs. A trainer that outlives
        the shell script that started it still has to save.

        Returns:
          Whether anything was running.
        """
        if not liveness.is_group_alive(self.pid):
            return False
        for number, seconds in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, 1.0)):
            with contextlib.suppress(OSError):
                os.killpg(self.pid, number)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                if not liveness.is_group_alive(self.pid):
                    return True
                time.sleep(0.05)
        return True

    def _relays(self) -> "list[OutputRelay]":
        return [self._stderr] if self._stdout is None else [self._stderr, self._stdout]


_MEANING = {
    "SIGKILL": "most often the kernel, because memory ran out: see dmesg, try a smaller batch or a larger machine",
    "SIGSEGV": "native code crashed: a driver, a library, or a layer with its own kernel",
    "SIGABRT": "native code aborted; its last lines have the reason",
    "SIGBUS": "memory that a file backs is gone: often a full disk or a full /dev/shm",
    "SIGILL": "an instruction that this processor does not have: a package built for another one",
    "SIGFPE": "native code divided by zero",
    "SIGTERM": "a user or a scheduler requested a stop",
    "SIGINT": "a user interrupted it",
    "SIGHUP": "its terminal was closed",
    "SIGXCPU": "it used up its processor time",
}


@dataclasses.dataclass(frozen=True)
class ExitStatus:
    """How a process ended.

    Attributes:
      returncode: The exit code; the negative number of the signal that ended the process.
      who: The process, as the subject of a sentence.
    """

    returncode: int
    who: str = "the command"

    @property
    def exit_code(self) -> int:
        """The exit code as a shell reports it: 128 + the number of the signal that ended the process."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode

    @property
    def reason(self) -> str:
        """The short form: `SIGKILL`, `exit 1`."""
        return f"exit {self.returncode}" if self.returncode >= 0 else _signal_name(-self.returncode)

    def __str__(self) -> str:
        """The clause for a message, with the usual cause: `was ended by SIGSEGV (native code crashed…)`."""
        if self.returncode < 0:
            meaning = _MEANING.get(self.reason)
            return f"was ended by {self.reason}" + (f" ({meaning})" if meaning else "")
        name = _signal_name(self.returncode - 128)  # how a shell, or everstep itself, reports a signal
        meaning = _MEANING.get(name)
        return f"ended with exit code {self.returncode}" + (f" ({name}: {meaning})" if meaning else "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_STDERR = 2
_BYTES_KEPT = 16384
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class OutputRelay:
    """Copies a child's standard error, or its standard output, in a thread, and keeps the last lines.

    On a terminal the child gets a terminal too, so that it shows the progress it would show without us.

    Args:
      write: Where it is copied; then the child gets no terminal. None for our standard error.

    Attributes:
      child_end: The descriptor to start the child with; `start` closes it here.
    """

    def __init__(self, write: Callable[[bytes], None] | None = None) -> None:
        self._write = write or _write_to_stderr
        on_terminal = write is None and os.isatty(_STDERR)
        self._our_end, self.child_end = _new_terminal() if on_terminal else os.pipe()
        self._kept = b""
        self._thread = threading.Thread(target=self._copy, name="stderr", daemon=True)

    def start(self) -> None:
        """Starts copying, once the child has its end."""
        os.close(self.child_end)
        self._thread.start()

    def join(self, seconds: float = 1.0) -> None:
        """Waits for the rest, but not for ever: processes that the child started may keep its end open."""
        self._thread.join(seconds)

    def last_lines(self, count: int = 15) -> list[str]:
        """Returns the last lines that are not empty; of a line written over and over, its last state."""
        text = _CONTROL.sub("", self._kept.decode("utf-8", errors="replace"))
        lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n")]
        return [line for line in lines if line][-count:]

    def _copy(self) -> None:
        while data := self._read():
            self._kept = (self._kept + data)[-_BYTES_KEPT:]
            with contextlib.suppress(OSError):  # a closed standard error must not block the child
                self._write(data)
        os.close(self._our_end)

    def _read(self) -> bytes:
        try:
            return os.read(self._our_end, 65536)
        except OSError:  # what Linux raises when the other end of a terminal is closed
            return b""


def _write_to_stderr(data: bytes) -> None:
    while data:
        data = data[os.write(_STDERR, data) :]


def _new_terminal() -> tuple[int, int]:
    """Returns both ends of a raw terminal of our terminal's size."""
    import pty  # none of these exists on every platform
    import termios
    import tty

    ours, childs = pty.openpty()
    tty.setraw(childs)
    with contextlib.suppress(OSError, termios.error):
        termios.tcsetwinsize(childs, termios.tcgetwinsize(_STDERR))
    return ours, childs


_FORWARDED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")
_STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}
_OUTLIVED_SECONDS = 60.0


class Receiver(Protocol):
    """What signals are passed on to."""

    def send(self, number: int) -> None:
        """Sends a signal."""


class SignalForwarding:
    """Within the block, signals to this process are passed on to the current child, or to the next one, once.

    A signal that this process was started to ignore, as `nohup` does with SIGHUP, stays ignored. Outside the main
    thread Python cannot handle signals, and the block changes nothing.
    """

    def __init__(self) -> None:
        self._received: list[tuple[int, float]] = []  # with the times; handlers only ever append
        self._counts_from = -math.inf
        self._child: Receiver | None = None
        self._waiting: list[int] = []
        self._former: dict[int, Any] = {}

    def attach(self, child: "Receiver") -> None:
        """Makes `child` the receiver of signals, beginning with those that came while it was starting."""
        self._child = child
        while self._waiting:
            child.send(self._waiting.pop(0))

    def detach(self) -> None:
        """Keeps signals until there is a child again, and forgets those that the dead child had outlived."""
        self._child = None
        self._counts_from = time.monotonic() - _OUTLIVED_SECONDS

    def stop_requested(self, exit_code: int | None = None) -> signal.Signals | None:
        """Returns the signal that forbids a restart; None if there is none.

        SIGTERM and SIGINT request a stop. The others may mean anything: one that the child survived for a minute was no
        such request, unless it then ended with the exit code of that signal, after a long save.

        Args:
          exit_code: The exit code of the child, if one has ended.
        """
        for number, at in self._received:
            if number in _STOP_SIGNALS or at >= self._counts_from or exit_code == 128 + number:
                return signal.Signals(number)
        return None

    def sleep(self, seconds: float) -> None:
        """Sleeps until the time is over or a signal arrives."""
        deadline = time.monotonic() + seconds
        while self.stop_requested() is None and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(0.05, left))

    def __enter__(self) -> "SignalForwarding":
        if threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in _FORWARDED if hasattr(signal, name)):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._former[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)

    def _handle(self, number: int, frame: object) -> None:
        self._received.append((number, time.monotonic()))
        if self._child is None:
            self._waiting.append(number)
        else:
            self._child.send(number)
