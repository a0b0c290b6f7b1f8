"""Signals at random instants: is the step reached the step saved, and how long does it take to end?

A run that does not end by itself gets SIGTERM at an instant drawn from its start to well into training, saving and
evaluating, and is started again, a hundred times. Then: SIGINT, a signal of a scheduler with its exit code, two signals
in quick succession, and SIGTERM in chosen phases (compiling, evaluating, saving, exporting); and a run with 1 GB of
state, which must be saved and have ended after 25 seconds.
"""

import dataclasses
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from everstep.testing.reliability.process import Job, Process

SIGNALS = 100
BAR_SECONDS = 25.0
GIGABYTE = 10**9
REQUEUE = 85


@dataclasses.dataclass(frozen=True)
class Answer:
    """How a process has answered.

    Attributes:
      name: What was done to it.
      seconds: From the signal to the end.
      step: The step committed.
      started: Whether the run had begun: before, there is nothing to save.
      wrong: What was not as it should be; empty if nothing.
    """

    name: str
    seconds: float
    step: int
    started: bool
    wrong: str = ""

    def line(self) -> str:
        """Returns the figures on one line."""
        return f"{self.name}: ended after {self.seconds:.1f} s at step {self.step} | {self.wrong or 'passed'}"


def send(
    job: Job,
    name: str,
    when: Callable[[Process], bool],
    numbers: tuple[int, ...] = (signal.SIGTERM,),
    code: int | None = None,
    status: str = "interrupted",
) -> Answer:
    """Starts a run, sends it signals when `when` returns, and checks how it ends."""
    process = job.start()
    before = job.newest_checkpoint()
    if not when(process):
        process.kill()
        return Answer(name, 0.0, 0, False, f"it ended too early: {process.said()}")
    started = job.holder() == process.pid
    began = time.monotonic()
    for number in numbers:
        process.send(number)
        time.sleep(0.05 if len(numbers) > 1 else 0)
    process.wait()
    seconds = time.monotonic() - began
    expected = 128 + numbers[0] if code is None else code
    wrong = _wrong(job, process, expected, status, started, before)
    return Answer(name, seconds, job.newest_checkpoint() or 0, started, wrong)


def _wrong(job: Job, process: Process, code: int, status: str, started: bool, before: int | None) -> str:
    """Returns what is wrong after the end of a process."""
    newest = job.newest_checkpoint()
    if process.code != code:
        return f"exit code {process.code}, not {code}: {process.said()}"
    if not started:  # nothing was computed: nothing may have changed
        return "" if newest == before or not process.was_ended else f"newest checkpoint {newest}, before it {before}"
    if process.was_ended:
        return "it was ended by the signal instead of answering it"
    if not job.directory.exists():  # it had done no step, and took its directory with it
        return "" if before is None else "the directory is missing"
    record, beat = job.record(), job.heartbeat()
    steps = {"run.json": record["step"], "checkpoint": newest or 0, "the process": beat or newest or 0}
    if len(set(steps.values())) > 1 or (newest or 0) < (before or 0):
        return f"steps differ: {steps}, before it {before}; {process.said()}"
    return "" if record["status"] == status else f"status {record['status']!r}, not {status!r}"


def after(seconds: float) -> Callable[[Process], bool]:
    """Returns a moment: so many seconds after the start."""
    return lambda process: not process.ends_within(seconds)


def at_random(folder: Path, backend: str, count: int, seed: int = 0) -> list[Answer]:
    """Sends SIGTERM at random instants to one run, which resumes each time."""
    choice = random.Random(seed)
    job = Job("reliability/phases", backend, folder / "random")
    process = job.start()
    process.until(lambda: (job.newest_checkpoint() or 0) > 0)
    began = time.monotonic()
    process.kill()
    life = process.seconds * 1.5 + 2 + (time.monotonic() - began)
    return [send(job, f"SIGTERM {number}", after(choice.uniform(0, life))) for number in range(1, count + 1)]


def in_phases(folder: Path, backend: str) -> list[Answer]:
    """Sends signals at chosen moments."""
    long = ("task.seconds_per_validation_batch=0.2", "trainer.validation_steps=20")
    requeue = ("runtime.stop_signals=[USR1]", f"runtime.requeue_exit_code={REQUEUE}")
    job = Job("reliability/phases", backend, folder / "phases", (*long, *requeue))
    ballast = ("task.state_bytes=100000000", "trainer.steps_per_loop=1", "trainer.checkpoint_interval=1")
    big = Job("reliability/phases", backend, folder / "saving", ballast)
    short = Job("reliability/phases", backend, folder / "exporting", ("trainer.train_steps=14",))
    evaluating = marked(job, "evaluating")
    return [
        send(job, "SIGTERM while compiling", marked(job, "compiling")),
        send(job, "SIGTERM while evaluating", evaluating),
        send(job, "SIGINT while evaluating", evaluating, (signal.SIGINT,)),
        send(job, "USR1 while training", training(job), (signal.SIGUSR1,), REQUEUE),
        send(job, "two SIGTERMs", training(job), (signal.SIGTERM, signal.SIGTERM)),
        send(job, "SIGINT, then SIGTERM", training(job), (signal.SIGINT, signal.SIGTERM)),
        send(big, "SIGTERM while saving", _writing(big, "checkpoints")),
        send(short, "SIGTERM while exporting, the last to do", _writing(short, "export"), status="finished"),
    ]


def with_state(folder: Path, backend: str, size: int = GIGABYTE) -> Answer:
    """Sends SIGTERM to a run with much state, when it has just begun to save it."""
    words = (f"task.state_bytes={size}", "trainer.checkpoint_interval=0", "trainer.validation_interval=1000000")
    job = Job("reliability/phases", backend, folder / "big", words)
    answer = send(job, f"SIGTERM with {size / 1e9:g} GB of state", training(job))
    if answer.seconds > BAR_SECONDS:
        return dataclasses.replace(answer, wrong=f"longer than {BAR_SECONDS:.0f} s; {answer.wrong}")
    return answer


def marked(job: Job, phase: str) -> Callable[[Process], bool]:
    """Returns a condition: the task is in a phase."""
    path = job.directory / f"{phase}.now"

    def when(process: Process) -> bool:
        path.unlink(missing_ok=True)
        return process.until(path.exists)

    return when


def training(job: Job) -> Callable[[Process], bool]:
    """Returns a condition: there is a new heartbeat."""

    def when(process: Process) -> bool:
        before = job.heartbeat() or 0
        return process.until(lambda: (job.heartbeat() or 0) > before)

    return when


def _writing(job: Job, part: str) -> Callable[[Process], bool]:
    """Returns a moment: when something below the run directory is being written."""
    return lambda process: process.until(lambda: any((job.directory / part).glob(".everstep-*")))


def summary(answers: list[Answer]) -> str:
    """Returns the figures on one line."""
    seconds = sorted(answer.seconds for answer in answers)
    wrong = [answer for answer in answers if answer.wrong]
    started = sum(answer.started for answer in answers)
    return (
        f"SIGTERMs at random instants {len(answers)} ({started} of them while the run was under way) | wrong exit code "
        f"or a step lost: {len(wrong)} | seconds to the end: median {seconds[len(seconds) // 2]:.1f}, longest "
        f"{seconds[-1]:.1f} | {'NOT PASSED' if wrong else 'passed'}"
    )
