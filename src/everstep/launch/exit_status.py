"""How a process ended, for other programs and for people."""

import dataclasses
import signal

_MEANING = {
    "SIGKILL": "most often the kernel, because memory ran out: see dmesg, try a smaller batch or a larger machine",
    "SIGSEGV": "native code crashed: a driver, a library, or a layer with its own kernel",
    "SIGABRT": "native code gave up; it says why in its last lines",
    "SIGBUS": "memory that a file backs is gone: often a full disk or a full /dev/shm",
    "SIGILL": "an instruction that this processor does not have: a package built for another one",
    "SIGFPE": "native code divided by zero",
    "SIGTERM": "somebody, or a scheduler, asked it to end",
    "SIGINT": "somebody interrupted it",
    "SIGHUP": "its terminal was closed",
    "SIGXCPU": "it used up its processor time",
}


@dataclasses.dataclass(frozen=True)
class Death:
    """The end of a process.

    Attributes:
      returncode: Its exit code; the negative number of the signal that ended it.
    """

    returncode: int

    @property
    def exit_code(self) -> int:
        """What a shell makes of it: the exit code, or 128 + the signal's number."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode

    @property
    def reason(self) -> str:
        """It in one word or two: `SIGKILL`, `exit 1`."""
        return f"exit {self.returncode}" if self.returncode >= 0 else _name(-self.returncode)

    def __str__(self) -> str:
        """It in a clause, with what usually lies behind it: `was ended by SIGSEGV (native code crashed…)`."""
        if self.returncode < 0:
            return _explained(f"was ended by {self.reason}", self.reason)
        name = _name(self.returncode - 128)  # a shell, or everstep itself, says so of a signal
        return _explained(f"ended with exit code {self.returncode}", name)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _explained(text: str, name: str) -> str:
    meaning = _MEANING.get(name)
    return text if meaning is None else f"{text} ({'' if name in text else f'{name}: '}{meaning})"
