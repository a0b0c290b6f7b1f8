"""Whether a run goes on with what it was trained with so far: the data, the versions of the libraries.

The configuration, which is compared key by key, has a module of its own, `changes`.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from everstep.data.arrays import ArrayStream
from everstep.data.stream import Stream
from everstep.errors import UsageError
from everstep.run.environment import environment, fingerprint

logger = logging.getLogger(__name__)

DATA = "data"
"""What `--allow-change` calls the data."""


def fingerprints(trainer: Any) -> dict[str, Any]:
    """Returns what identifies the data: digests of arrays, the kind and length of other streams and their parts."""
    streams = {"train": trainer.train_stream, "validation": trainer.validation_stream}
    return {kind: _fingerprint(stream) for kind, stream in streams.items() if stream is not None}


def _fingerprint(stream: Stream) -> dict[str, Any]:
    if isinstance(stream, ArrayStream):
        return fingerprint(stream.arrays)
    parts = {name: _fingerprint(part) for name, part in stream.made_of.items()}
    inside = {f"{name}/{key}".strip("/"): value for name, part in parts.items() for key, value in part.items()}
    return {**inside, "kind": type(stream).__name__, "batches_per_epoch": stream.batches_per_epoch}


def packages() -> dict[str, str]:
    """Returns the versions of what computes."""
    return dict(environment()["packages"])


def check_data(before: Mapping[str, Any], now: Mapping[str, Any], allow_change: Sequence[str]) -> None:
    """Refuses other training data than the checkpoint was trained on.

    Raises:
      UsageError: It differs, and nobody said that it may; names what does.
    """
    differences = list(_differences(before.get("train", {}), now.get("train", {})))
    if not differences or DATA in allow_change:
        for difference in differences:
            logger.warning("resuming with other data: %s", difference)
        return
    raise UsageError(
        f"the run was trained on other data: {'; '.join(differences)}: go on with the former data, name another "
        f"directory, or allow the change: {DATA} (--allow-change {DATA})"
    )


def warn_of_versions(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Says which libraries have changed: the arithmetic may have, too."""
    changed = [f"{name} {old} -> {now[name]}" for name, old in before.items() if name in now and now[name] != old]
    if changed:
        logger.warning("resuming with other versions, so the bits may differ: %s", ", ".join(changed))


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping) and old["shape"] == new["shape"]:
            yield f"array {name or 'x'} has other content"
        else:
            yield f"array {name or 'x'} was {_brief(old)}, now it is {_brief(new)}"


def _brief(described: Any) -> str:
    return f"{described['dtype']}{described['shape']}" if isinstance(described, Mapping) else str(described)
