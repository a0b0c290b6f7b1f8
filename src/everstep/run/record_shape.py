"""Whether the record of a run has the shape that its readers count on: a file may be edited, or another program's."""

from collections.abc import Iterator, Mapping
from typing import Any

_NUMBER, _TEXT, _NONE = (int,), (str,), (type(None),)
_TOP = {
    "status": (*_TEXT, *_NONE),
    "step": _NUMBER,
    "epoch": _NUMBER,
    "train_steps": (*_NUMBER, *_NONE),
    "attempts": (list,),
    "metrics": (dict,),
    "code": (dict,),
    "environment": (dict,),
    "data": (dict,),
    "cost": (dict,),
}
_ATTEMPT = {
    "started": _TEXT,
    "ended": (*_TEXT, *_NONE),
    "from_step": _NUMBER,
    "to_step": _NUMBER,
    "reason": (*_TEXT, *_NONE),
}


def damage(record: Mapping[str, Any]) -> str | None:
    """Returns the first key of a record that is missing or has no usable value, `attempts[0].started`; None if all do.

    Times are texts here; whether they are times is for those to see who read them.
    """
    return next(_wrong(record), None)


def _wrong(record: Mapping[str, Any]) -> Iterator[str]:
    yield from _unlike(record, _TOP, "")
    for number, attempt in enumerate(record["attempts"]):
        yield from _unlike(attempt, _ATTEMPT, f"attempts[{number}].")
        if not isinstance(attempt.get("steps_again", 0), int):  # not every version wrote it
            yield f"attempts[{number}].steps_again"
    yield from (f"metrics.{kind}" for kind, logs in record["metrics"].items() if not isinstance(logs, dict))


def _unlike(part: Any, shape: Mapping[str, tuple[type, ...]], path: str) -> Iterator[str]:
    if not isinstance(part, dict):
        yield path.removesuffix(".")
        return
    for key, types in shape.items():
        if key not in part or not isinstance(part[key], types):
            yield f"{path}{key}"
