"""Goodput, from the records of runs that were made up: every step is accounted for, whatever happens to a run."""

import dataclasses
import datetime
import random
from typing import Any

import pytest

from everstep.run.kept_work import goodput

BEGIN = datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC)


def at(seconds: float | None) -> str | None:
    return None if seconds is None else (BEGIN + datetime.timedelta(seconds=seconds)).isoformat()


def attempt(begin: int, end: int, *times: float | None, reason: str | None = "done", again: int = 0) -> dict[str, Any]:
    """One attempt as `run.json` has it; times are those of its start, its first step and its end."""
    started, first, ended = times
    return {
        "from_step": begin,
        "to_step": end,
        "steps_again": again,
        "reason": reason,
        "started": at(started),
        "first_step": at(first),
        "ended": at(ended),
    }


def record(step: int, *attempts: dict[str, Any]) -> dict[str, Any]:
    return {"step": step, "attempts": list(attempts)}


def test_a_kill_at_step_14_with_a_checkpoint_of_step_7_costs_seven_steps():
    found = goodput(record(35, attempt(0, 14, 0, 2, 16, reason="killed"), attempt(7, 35, 20, 21, 49)))
    assert (found.steps_kept, found.steps_computed) == (35, 42)
    assert (found.recomputing, found.starting, found.down, found.seconds) == (7, 1, 4, 49)
    assert str(found) == (
        "83.3%: 35 steps kept of 42 computed in 2 attempts; "
        "restarts took 12 of 49 s (7 recomputing, 1 starting, 4 down): killed ×1"
    )


def test_time_without_a_lost_step_is_no_part_of_the_ratio():
    found = goodput(record(35, attempt(0, 14, 0, 2, 16, reason="SIGTERM"), attempt(14, 35, 36, 43, 51)))
    assert found.ratio == 1
    assert "restarts took 27 of 51 s (0 recomputing, 7 starting, 20 down): SIGTERM ×1" in str(found)


def test_pauses_after_a_finished_attempt_do_not_count():
    found = goodput(record(20, attempt(0, 10, 0, 1, 11), attempt(10, 20, 100_000, 100_001, 100_011)))
    assert (found.seconds, found.down, found.starting, found.reasons) == (22, 0, 0, {})
    assert str(found) == "100.0%: 20 steps kept of 20 computed in 2 attempts"


def test_a_run_that_begins_at_a_later_epoch_has_not_computed_those_before():
    assert goodput(record(150, attempt(100, 150, 0, 1, 2))).ratio == 1


def test_a_heartbeat_that_never_reached_the_disk_makes_no_run_better_than_perfect():
    found = goodput(record(35, attempt(0, 0, 0, None, 0, reason="killed"), attempt(7, 35, 5, 6, 30)))
    assert (found.steps_kept, found.steps_computed) == (35, 35)


def test_a_damaged_checkpoint_takes_steps_of_an_earlier_attempt_along():
    first, second = attempt(0, 20, 0, 0, 20, reason="killed"), attempt(20, 30, 20, 20, 30, reason="killed")
    found = goodput(record(40, first, second, attempt(10, 40, 30, 30, 60)))
    assert (found.steps_kept, found.steps_computed, found.recomputing) == (40, 60, 20)


def test_what_a_failed_attempt_has_not_saved_is_not_kept():
    failed = attempt(0, 48, 0, 2, 50, reason="DivergedError: …") | {"saved_step": 8}
    assert (goodput(record(48, failed)).steps_kept, goodput(record(48, failed)).steps_computed) == (8, 48)
    again = attempt(8, 48, 60, 61, 101, reason="DivergedError: …") | {"saved_step": 8}
    found = goodput(record(48, failed, again))
    assert (found.steps_kept, found.steps_computed, found.recomputing) == (8, 88, 80)


def test_a_running_attempt_counts_up_to_its_last_heartbeat():
    found = goodput(record(9, attempt(0, 5, 0, 1, 6, reason="killed"), attempt(5, 9, 8, 10, None, reason=None)))
    assert (found.steps_kept, found.steps_computed) == (9, 9)
    assert found.restarting <= found.seconds == 10


def test_nothing_has_been_computed_yet():
    assert goodput(record(0)).ratio == goodput(record(0, attempt(0, 0, 0, None, None, reason=None))).ratio == 1


@dataclasses.dataclass
class MadeUp:
    """A run that is killed, stopped, rolled back and extended at random, with what really happened to its steps."""

    random: random.Random
    step: int = 0
    computed: int = 0
    clock: float = 0.0
    saved: list[int] = dataclasses.field(default_factory=lambda: [0])
    attempts: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def attempt(self) -> None:
        begin = self.step = self.saved[-1]
        started, first, again = self.wait(), None, 0
        for _ in range(self.random.randint(0, 40)):
            self.step, self.computed = self.step + 1, self.computed + 1
            first = first or self.wait()
            if self.random.random() < 0.2:
                self.saved.append(self.step)
            elif self.random.random() < 0.05:
                again += self.step - max(begin, self.saved[-1])
                self.step = max(begin, self.saved[-1])
        reason = self.random.choice(["killed", "SIGTERM", "TrainingError", "done"])
        if reason in ("SIGTERM", "done") and self.saved[-1] != self.step:
            self.saved.append(self.step)
        elif len(self.saved) > 1 and self.random.random() < 0.1:
            self.saved.pop()  # found to be damaged
        times = started, first, self.wait()
        self.attempts.append(attempt(begin, self.step, *times, reason=reason, again=again))
        self.wait()

    def wait(self) -> float:
        self.clock += self.random.random() * 10
        return self.clock


@pytest.mark.parametrize("seed", range(40))
def test_every_step_of_a_made_up_run_is_accounted_for(seed):
    run = MadeUp(random.Random(seed))
    for _ in range(run.random.randint(1, 8)):
        run.attempt()
    found = goodput(record(run.step, *run.attempts))
    assert found.steps_computed == run.computed
    assert found.steps_kept == run.step, "it began with nothing"
    assert 0 <= found.ratio <= 1
    assert min(found.recomputing, found.starting, found.down) >= 0
    assert found.restarting <= found.seconds + 1e-6 <= run.clock + 1e-6
    assert (found.recomputing > 0) == (run.computed > run.step)
    assert sum(found.reasons.values()) == sum(one["reason"] != "done" for one in run.attempts[:-1])
