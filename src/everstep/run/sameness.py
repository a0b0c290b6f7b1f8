"""Whether a run goes on with what it was trained with so far: the data, the versions of the libraries.

The configuration, which is compared key by key, has a module of its own, `changes`.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from everstep.data.arrays import ArrayStream
from everstep.data.counted import CountedStream
from everstep.data.rows import RowsStream
from everstep.data.stream import Stream
from everstep.errors import UsageError
from everstep.run.environment import environment, fingerprint
from everstep.run.file_fingerprints import fingerprints as of_files

logger = logging.getLogger(__name__)

DATA = "data"
"""What `--allow-change` calls the data."""

FILES, FIRST_BATCH = "files", "first_batch"
"""Under which names the fingerprints of files, and of a first batch, are kept."""


def fingerprints(trainer: Any) -> dict[str, Any]:
    """Returns what identifies the data: digests of arrays and files, the kind and length of other streams.

    Of training data that only the user's own code knows, the first batch stands for the rest.
    """
    streams = {"train": trainer.train_stream, "validation": trainer.validation_stream}
    found = {kind: _fingerprint(stream) for kind, stream in streams.items() if stream is not None}
    if trainer.train_stream is not None and _is_opaque(trainer.train_stream):
        found["train"][FIRST_BATCH] = fingerprint(trainer.train_example)
    return found


def _fingerprint(stream: Stream) -> dict[str, Any]:
    if isinstance(stream, ArrayStream):
        return fingerprint(stream.arrays)
    if isinstance(stream, RowsStream):
        return fingerprint(stream.parts)
    if isinstance(stream, CountedStream):  # a way to read the other one
        return _fingerprint(stream.made_of[""])
    parts = {name: _fingerprint(part) for name, part in stream.made_of.items()}
    inside = {f"{name}/{key}".strip("/"): value for name, part in parts.items() for key, value in part.items()}
    files = {FILES: of_files(stream.files)} if stream.files else {}
    return {**inside, **files, "kind": type(stream).__name__, "batches_per_epoch": stream.batches_per_epoch}


def _is_opaque(stream: Stream) -> bool:
    """Tells whether nothing is known of the content of a stream but what it yields."""
    if stream.made_of:
        return all(map(_is_opaque, stream.made_of.values()))
    return not (isinstance(stream, ArrayStream | RowsStream) or stream.files)


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
        if old == new or name == FIRST_BATCH:  # a shuffle that nobody seeds draws another one each time
            continue
        if name.rpartition("/")[2] == FILES:
            yield from _changed_files(old, new)
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping) and old["shape"] == new["shape"]:
            yield f"array {name or 'x'} has other content"
        else:
            yield f"array {name or 'x'} was {_brief(old)}, now it is {_brief(new)}"


def _changed_files(before: Any, now: Any) -> Iterator[str]:
    """Yields which files differ; nothing where the record is too old to know."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return
    for name in sorted({*before, *now}):
        if name not in before or name not in now:
            yield f"file {name} is {'new' if name in now else 'gone'}"
        elif before[name] != now[name]:
            yield f"file {name} has other content"


def _brief(described: Any) -> str:
    return f"{described['dtype']}{described['shape']}" if isinstance(described, Mapping) else str(described)
