"""The samples of the data loader, one by one, before anything is done to them."""

import hashlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from everstep.components.checks.fitting import shapes
from everstep.components.checks.outcome import Doubt
from everstep.components.checks.subject import Samples, Subject
from everstep.components.flows import Split, load_samples
from everstep.components.tf_datasets import is_dataset
from everstep.data import nest
from everstep.data.tf_pipeline import has_no_end
from everstep.errors import UsageError
from everstep.evaluation.batch import Reader


def samples_of(split: Split) -> Callable[[Subject], str]:
    """Returns the check that a split has as many samples as announced, all of one form."""

    def check(subject: Subject) -> str:
        found, forms = _read(subject, split)
        subject.samples[split] = found
        if len(forms) > 1:
            raise Doubt(f"{split} samples have {len(forms)} forms: {'; '.join(list(forms)[:3])}: batches need one form")
        return f"{_how_many(len(found.digests), found.count)} {split} samples: {next(iter(forms))}"

    return check


def order(subject: Subject) -> str:
    """Validation data comes in the same order in every pass, with as many ids as there are samples."""
    first, second = subject.samples["validation"], _read(subject, "validation")[0]
    if not np.array_equal(first.digests, second.digests):
        row = int(np.argmax(first.digests != second.digests)) if len(first.digests) == len(second.digests) else 0
        raise UsageError(
            f"two passes over the validation data differ from sample {row} on: rows would get the ids of others; do "
            "not shuffle it"
        )
    index = _validation_index(subject)
    ids = "are counted from 0" if index is None else f"come from get_validation_index(), {index[0]!r} first"
    return f"validation data comes in one order in both passes, and its ids {ids}"


def test_ids(subject: Subject) -> str:
    """Every test sample has an id of its own."""
    ids = subject.samples["test"].ids
    if ids is None:
        raise Doubt("test samples have no third element: their rows get the numbers from 0 as ids")
    _require_unique(ids, "test")
    return f"{len(ids)} test samples have {len(ids)} different ids, {ids[0]!r} first"


def apart(subject: Subject) -> str:
    """No sample is in two splits."""
    splits: tuple[Split, ...] = ("training", "validation", "test")
    found = []
    for one, other in itertools.combinations(splits, 2):
        first, second = subject.samples[one], subject.samples[other]
        rows = np.flatnonzero(np.isin(second.digests, first.digests))
        if len(rows):
            which = second.ids[rows[0]] if second.ids else int(rows[0])
            found.append(
                f"{len(rows)} of {len(second.digests)} {other} samples are {one} samples, too: the first is {which!r}"
            )
    if found:
        raise Doubt("\n".join(found))
    return "no sample is in two of training, validation and test data"


def _validation_index(subject: Subject) -> list[str] | None:
    components, count = subject.components, subject.samples["validation"].count
    with components.calling("data_loader", "get_validation_index"):
        index = components.data_loader.get_validation_index()
        ids = None if index is None else _texts(list(index))
    if ids is None:
        return None
    if len(ids) != count:
        raise UsageError(f"get_validation_index() returned {len(ids)} ids for {count} validation samples")
    _require_unique(ids, "validation")
    return ids


def _read(subject: Subject, split: Split) -> tuple[Samples, dict[str, None]]:
    """Reads a split once; returns what it is, and the forms that its samples have."""
    components = subject.components
    samples, count = load_samples(components, split)
    limit = min(count, subject.max_samples or count)
    forms: dict[str, None] = {}
    digests, thirds = [], []
    with components.calling("data_loader", f"create_{split}_generator"):
        rows = iter(samples.as_numpy_iterator() if is_dataset(samples) else samples)
        for row, sample in enumerate(itertools.islice(rows, limit)):
            x, y, third = _parts(sample, split, row)
            forms.setdefault(_form(x, y, third, split))
            digests.append(_digest(x))
            thirds.append(third)
        if len(digests) < limit:
            raise UsageError(f"the loader gave {len(digests)} {split} samples and announced {count}")
        is_finite = is_dataset(samples) and not has_no_end(samples)
        _check_next(rows, digests, split, count, is_finite)
    ids = _texts(thirds) if split == "test" and None not in thirds else None
    weights = None if split == "test" or None in thirds else np.array([_weight(w, split) for w in thirds])
    return Samples(count, np.array(digests, np.uint64), ids, weights), forms


def _check_next(rows: Iterator[Any], digests: list[int], split: Split, count: int, is_finite: bool) -> None:
    """Looks at the sample after the last one: data without end begin again, other data are at their end.

    Training data without end may begin again with other samples, those that a loader makes up as it goes.
    """
    if len(digests) < count or (split == "training" and not is_finite) or (after := next(rows, None)) is None:
        return
    if is_finite or _digest(_parts(after, split, count)[0]) not in digests:
        raise UsageError(
            f"the loader announced {count} {split} samples, but goes on with another one: return the number there is"
        )


def _parts(sample: Any, split: Split, row: int) -> tuple[Any, Any, Any]:
    if not isinstance(sample, tuple | list) or not 2 <= len(sample) <= 3:
        size = f" of {len(sample)}" if isinstance(sample, tuple | list) else ""
        third = "data_id" if split == "test" else "sample_weight"
        raise UsageError(f"{split} sample {row} is a {type(sample).__name__}{size}, expected (x, y, {third})")
    x, y, third = (*sample, None)[:3]
    return x, y, third


def _form(x: Any, y: Any, third: Any, split: Split) -> str:
    kinds = [nest.map_leaves(lambda leaf: np.asarray(leaf).dtype.name, part) for part in (x, y)]
    last = "" if third is None else ", an id" if split == "test" else ", a weight"
    return f"x {shapes(x)} {kinds[0]}, y {shapes(y)} {kinds[1]}{last}".replace("'", "")


def _weight(value: Any, split: Split) -> float:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise UsageError(f"a {split} sample has the weight {value!r:.60}, expected one number")
    return float(array.reshape(()))


def _digest(x: Any) -> int:
    """Returns a number for the content of an input."""
    digest = hashlib.blake2b(digest_size=8)
    for leaf in nest.flatten(x):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())
    return int.from_bytes(digest.digest(), "little")


def _texts(values: list[Any]) -> list[str]:
    """Returns ids as the rows of a report will have them."""
    numbers = np.zeros(len(values))
    return Reader().read((values, numbers, numbers)).ids


def _require_unique(ids: list[str], split: Split) -> None:
    seen: set[str] = set()
    for row, each in enumerate(ids):
        if each in seen:
            raise UsageError(f"the {split} id {each!r} is there twice, again at sample {row}: give each its own")
        seen.add(each)


def _how_many(read: int, count: int) -> str:
    return f"all {count}" if read == count else f"the first {read} of {count}"
