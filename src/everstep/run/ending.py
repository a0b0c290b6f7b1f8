"""How training ended, for the record: whether it was stopped early, and which weights the run has now."""

from collections.abc import Mapping

from everstep.loop import Controller, Schedule
from everstep.run.final_weights import logs_at
from everstep.run.record import Run


def record_ending(run: Run, controller: Controller, schedule: Schedule, is_exported: bool) -> None:
    """Records whether training was stopped early, and which weights it ended with.

    Args:
      run: The run, whose training is done.
      controller: The loop.
      schedule: Where its epochs end.
      is_exported: Whether the model was exported.
    """
    step, record = controller.step, run.record
    stopped = {"step": step, "epoch": schedule.epoch_number(step), "reason": controller.stopped}
    record["stopped_early"] = stopped if controller.stopped and step < controller.progress.target else None
    restored = next((one for one in (hook.restored_step for hook in controller.hooks) if one is not None), None)
    found = _step_of_same_weights(record["states"], step) if restored is None else restored
    weights = {"step": found, "epoch": schedule.epoch_number(found), "exported": is_exported}
    earlier = found != step
    metrics = logs_at(run.directory / "history.csv", record["metrics"], found) if earlier else {}
    record["final_weights"] = weights | ({"metrics": metrics} if earlier else {})


def _step_of_same_weights(states: Mapping[str, str], step: int) -> int:
    """Returns the saved step that had the weights of the last one, if others lie between; else the last one.

    A callback that restores weights in a way of its own is known by that.
    """
    digests = {int(name): digest for name, digest in states.items() if int(name) <= step}
    same = [saved for saved, digest in digests.items() if digest == digests.get(step)]
    first = min(same, default=step)
    return first if any(saved not in same for saved in digests if saved > first) else step
