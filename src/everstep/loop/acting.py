"""Calling actions: user code that may look at the Keras objects, and change them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everstep.loop.saver import undisturbed

Action = Callable[[Mapping[str, Any]], None]
"""Called with the logs of a loop or an evaluation; may look at the Keras objects and change them."""


def act(actions: Sequence[Action], logs: Mapping[str, Any], trainer: Any) -> None:
    """Calls actions in their order; meanwhile the Keras objects show the trainer's state, and are it afterwards."""
    if not actions:
        return
    engine = getattr(trainer, "engine", None)
    with undisturbed(trainer):
        if engine is not None:
            engine.push()
        for action in actions:
            action(logs)
        if engine is not None:
            engine.pull()
