"""Checks of the samples of the data loader, and of the batches behind augmentor and preprocessor."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from everstep.data import is_infinite, load_tensorflow, nest
from everstep.errors import UsageError
from everstep.evaluation import BatchReader
from everstep.projects.components.checks.runner import TRAINED, Skip, SplitSamples, Subject, Warn
from everstep.projects.components.data_splits import (
    DataSplit,
    SplitName,
    augmented,
    create_split,
    is_dataset,
    load_samples,
    require_batch_size,
    require_weights,
)
from everstep.projects.components.first_batch import shapes
from everstep.projects.components.validation_order import digest_of

_FEW = 8


def samples_of(name: SplitName) -> Callable[[Subject], str]:
    """Returns the check that a split has as many samples as announced, all of the same form."""

    def check(subject: Subject) -> str:
        found, forms = _read(subject, name)
        subject.samples[name] = found
        warnings = []
        if len(forms) > 1:
            warnings.append(f"{name} samples have {len(forms)} forms, batches need one: {'; '.join(list(forms)[:3])}")
        announced = getattr(subject.components.data_loader, f"create_{name}_generator")()[1]
        if isinstance(announced, float):  # numpy.float64 is one, too
            warnings.append(
                f"create_{name}_generator() returned {announced!r} samples: return an int; a computed float, as in "
                "len(rows) * 0.8, is rarely whole, and then rejected"
            )
        if warnings:
            raise Warn("\n".join(warnings))
        read = len(found.digests)
        how_many = f"all {found.count}" if read == found.count else f"the first {read} of {found.count}"
        return f"{how_many} {name} samples: {next(iter(forms))}"

    return check


def order(subject: Subject) -> str:
    """Validation data comes in the same order in every pass, with as many ids as samples."""
    first, second = subject.samples["validation"], _read(subject, "validation")[0]
    if not np.array_equal(first.digests, second.digests):
        row = int(np.argmax(first.digests != second.digests)) if len(first.digests) == len(second.digests) else 0
        raise UsageError(
            f"two passes over the validation data differ from sample {row} on: rows would get the ids of others",
            remedy="do not shuffle it",
        )
    components, ids = subject.components, None
    with components.calling("data_loader", "get_validation_index"):
        index = components.data_loader.get_validation_index()
        if index is not None:
            ids = _texts(list(index))
            if len(ids) != first.count:
                raise UsageError(
                    f"returned {len(ids)} ids for {first.count} validation samples", key="get_validation_index()"
                )
            _require_unique(ids, "validation")
    described = "are counted from 0" if ids is None else f"come from get_validation_index(), {ids[0]!r} first"
    return f"validation data comes in the same order in both passes, and its ids {described}"


def test_ids(subject: Subject) -> str:
    """Every test sample has an id of its own."""
    ids = subject.samples["test"].ids
    if ids is None:
        raise Warn("test samples have no third element: the ids of their rows are numbers from 0")
    _require_unique(ids, "test")
    return f"{len(ids)} test samples have {len(ids)} different ids, {ids[0]!r} first"


def splits(subject: Subject) -> str:
    """No sample is in two splits."""
    names: tuple[SplitName, ...] = ("training", "validation", "test")
    found = []
    for one, other in itertools.combinations(names, 2):
        first, second = subject.samples[one], subject.samples[other]
        rows = np.flatnonzero(np.isin(second.digests, first.digests))
        if len(rows):
            which = second.ids[rows[0]] if second.ids else int(rows[0])
            found.append(
                f"{len(rows)} of {len(second.digests)} {other} samples are {one} samples, too; the first is {which!r}"
            )
    if found:
        raise Warn("\n".join(found))
    return "no sample is in two of training, validation and test data"


def augmentation(subject: Subject) -> str:
    """Augmented samples are tuples of the same size as before, with arrays of the same shapes and types."""
    components = subject.components
    if components.augmentor is None:
        raise Skip
    flags = (components.config.do_train_augmentation, components.config.do_validation_augmentation)
    names = [name for name, flag in zip(TRAINED, flags, strict=True) if flag]
    for name in names:
        plain = _first_samples(load_samples(components, name)[0])
        changed = augmented(components, name, load_samples(components, name)[0])
        with components.calling("augmentor", "add_augmentation"):
            for row, (before, after) in enumerate(zip(plain, _first_samples(changed), strict=False)):
                _require_same_form(before, after, f"{name} sample {row}")
    return f"augmented {' and '.join(names)} samples keep their shapes and types"


def batches_of(name: SplitName) -> Callable[[Subject], str]:
    """Returns the check of a split's batches: sizes, number, form, values, and that each sample is in one of them."""

    def check(subject: Subject) -> str:
        components = subject.components
        if name != "test":
            x, y, third = (*next(create_split(components, name).batches()), None)[:3]
            subject.batches[name] = x, y, third
            numbered = NumberedLoader(components.data_loader)
            components = dataclasses.replace(components, data_loader=numbered)  # type: ignore[arg-type]
        split = create_split(components, name)
        subject.labels[name] = []
        sizes, thirds, subject.label_ranges[name] = _read_batches(split, subject.max_samples, subject.labels[name])
        _check_sizes(split, sizes, components.config.get("batch_size"))
        whole = sum(sizes) == split.count
        once = whole and _check_once(subject, split, thirds)
        if split.warning:
            raise Warn(split.warning)
        short = f", {sizes[-1]} in the last" if whole and sizes[-1] != sizes[0] else ""
        return (
            f"{split.count} {name} samples fill {split.n_iter} batches of {sizes[0]}{short}"
            f"{', each sample once' if once else ''}{'' if whole else f'; {sum(sizes)} samples were read'}"
        )

    return check


def weights(subject: Subject) -> str:
    """Sample weights are finite numbers of at least 0, one for each sample."""
    found = []
    for name in TRAINED:
        raw, third = subject.samples[name].weights, subject.batches[name][2]
        if raw is None or third is None:
            continue
        with subject.components.naming("data_loader"):
            require_weights(raw, f"{name} samples")
        require_weights(third, f"a {name} batch")
        for values, what in ((raw, f"{name} samples"), (third, f"a {name} batch")):
            if not np.any(values):
                raise UsageError(f"all weights of {what} are 0, so nothing would be learned")
        if np.shape(third) != (len(nest.flatten(subject.batches[name][1])[0]),):
            raise UsageError(f"the weights of a {name} batch have the shape {np.shape(third)}, not one for each sample")
        found.append(f"{name} from {raw.min():g} to {raw.max():g}")
    if not found:
        raise Skip("samples have no weights")
    return f"weights are finite and not negative: {', '.join(found)}"


class NumberedLoader:
    """A data loader whose training and validation samples have their number, from 0, in place of the weight.

    The numbers show which samples have passed through a pipeline.

    Args:
      loader: The loader of the samples.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class of the loader, which errors name."""
        return self._loader.__class__

    def create_training_generator(self) -> tuple[Any, int]:
        """Returns the training samples, numbered."""
        return _numbered(*self._loader.create_training_generator())

    def create_validation_generator(self) -> tuple[Any, int]:
        """Returns the validation samples, numbered."""
        return _numbered(*self._loader.create_validation_generator())


def _numbered(samples: Any, count: float) -> tuple[Any, int]:
    count = int(count)  # a loader may return a whole number as float
    if is_dataset(samples):
        tf = load_tensorflow("reading a tf.data.Dataset")
        return samples.enumerate().map(lambda row, one: (one[0], one[1], tf.cast(row % count, tf.float32))), count
    return ((one[0], one[1], float(row % count)) for row, one in zip(itertools.count(), samples, strict=False)), count


def _read(subject: Subject, name: SplitName) -> tuple[SplitSamples, dict[str, None]]:
    """Reads a split once; returns its samples, and the forms that they have."""
    components = subject.components
    samples, count = load_samples(components, name)
    limit = min(count, subject.max_samples or count)
    forms: dict[str, None] = {}
    digests, thirds = [], []
    with components.calling("data_loader", f"create_{name}_generator"):
        rows = iter(samples.as_numpy_iterator() if is_dataset(samples) else samples)
        for row, sample in enumerate(itertools.islice(rows, limit)):
            x, y, third = _parts(sample, name, row)
            last = "" if third is None else ", an id" if name == "test" else ", a weight"
            forms.setdefault(f"x {_form(x)}, y {_form(y)}{last}".replace("'", ""))
            digests.append(_digest(x))
            thirds.append(third)
        if len(digests) < limit:
            raise UsageError(f"{name} data announced {count} samples, but has {len(digests)}")
        is_finite = is_dataset(samples) and not is_infinite(samples)
        _check_end(rows, digests, name, count, is_finite)
    ids = _texts(thirds) if name == "test" and None not in thirds else None
    has_weights = name != "test" and None not in thirds
    weights = np.array([_weight(third, name) for third in thirds]) if has_weights else None
    return SplitSamples(count, np.array(digests, np.uint64), ids, weights), forms


def _check_end(rows: Iterator[Any], digests: list[int], name: SplitName, count: int, is_finite: bool) -> None:
    """Reads the sample after the last one: endless data begins again, other data has none.

    Endless training data may also continue with other samples, which a loader generates.
    """
    if len(digests) < count or (name == "training" and not is_finite) or (after := next(rows, None)) is None:
        return
    if is_finite or _digest(_parts(after, name, count)[0]) not in digests:
        raise UsageError(f"{name} data announced {count} samples, but has more", remedy="return the actual number")


def _parts(sample: Any, name: SplitName, row: int) -> tuple[Any, Any, Any]:
    if not isinstance(sample, tuple | list) or not 2 <= len(sample) <= 3:
        third = "data_id" if name == "test" else "sample_weight"
        raise UsageError(f"{name} sample {row} must be (x, y, {third}), but is {_kind(sample)}")
    x, y, third = (*sample, None)[:3]
    return x, y, third


def _kind(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple | list) else f"an object of {type(value).__name__}"


def _form(tree: Any) -> str:
    return f"{shapes(tree)} {nest.map_leaves(lambda leaf: np.asarray(leaf).dtype.name, tree)}"


def _weight(value: Any, name: SplitName) -> float:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise UsageError(f"the weight of a {name} sample must be one number, but is {value!r:.60}")
    return float(array.reshape(()))


def _digest(x: Any) -> int:
    arrays = [np.ascontiguousarray(leaf) for leaf in nest.flatten(x)]
    forms = [np.array(f"{array.dtype}{array.shape}") for array in arrays]
    return digest_of([part for pair in zip(forms, arrays, strict=True) for part in pair])


def _texts(values: list[Any]) -> list[str]:
    """Returns ids as the rows of a report will have them."""
    numbers = np.zeros(len(values))
    return BatchReader().read((values, numbers, numbers)).ids


def _require_unique(ids: list[str], name: SplitName) -> None:
    seen: set[str] = set()
    for row, each in enumerate(ids):
        if each in seen:
            raise UsageError(f"the {name} id {each!r} occurs twice, again at sample {row}", remedy="make ids unique")
        seen.add(each)


def _first_samples(samples: Any) -> Iterator[Any]:
    return itertools.islice(samples.as_numpy_iterator() if is_dataset(samples) else samples, _FEW)


def _require_same_form(before: Any, after: Any, what: str) -> None:
    if not isinstance(after, tuple | list) or len(after) != len(before):
        raise UsageError(f"changes {what} from {_kind(before)} to {_kind(after)}", key="add_augmentation()")
    for name, one, other in zip(("x", "y"), before, after, strict=False):
        if _form(one) != _form(other):
            raise UsageError(f"changes {name} of {what} from {_form(one)} to {_form(other)}", key="add_augmentation()")


def _read_batches(
    split: DataSplit, limit: int | None, labels: list[np.ndarray]
) -> tuple[list[int], list[Any], list[tuple[float, float]]]:
    """Returns the sizes of the batches, their third parts and the range of labels; collects labels of one number."""
    sizes: list[int] = []
    thirds: list[Any] = []
    ranges: list[tuple[float, float]] = []
    form = ""
    for number, batch in enumerate(split.batches()):
        form = form or _row_form(batch)
        _check_batch(batch, form, f"{split.name} batch {number}")
        sizes.append(len(nest.flatten(batch[1])[0]))
        thirds.append(batch[2] if len(batch) > 2 else None)
        if isinstance(batch[1], np.ndarray) and batch[1].size == len(batch[1]):
            labels.append(batch[1])
        ranges = _widened(ranges, batch[1])
        if limit is not None and sum(sizes) >= limit:
            break
    return sizes, thirds, ranges


def _widened(ranges: list[tuple[float, float]], y: Any) -> list[tuple[float, float]]:
    """Returns the smallest and largest label of each part so far; none where labels are no numbers."""
    leaves = nest.flatten(y)
    if any(leaf.dtype.kind not in "biuf" for leaf in leaves):
        return []
    now = [(float(leaf.min()), float(leaf.max())) for leaf in leaves]
    return [(min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(ranges or now, now, strict=True)]


def _check_batch(batch: tuple[Any, ...], form: str, what: str) -> None:
    if _row_form(batch) != form:
        raise UsageError(f"{what} has samples of the form {_row_form(batch)}, the first one of {form}")
    for name, part in zip(("x", "y"), batch, strict=False):
        for leaf in nest.flatten(part):
            if leaf.dtype.hasobject:
                raise UsageError(f"{name} of {what} contains Python objects", remedy="build arrays of one type")
            if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                row = int(np.argwhere(~np.isfinite(leaf))[0][0])
                raise UsageError(f"{name} of {what} is not finite, first in its sample {row}")


def _row_form(batch: tuple[Any, ...]) -> str:
    """Returns shapes and types of one sample of a batch."""
    rows = [nest.map_leaves(lambda leaf: f"{leaf.dtype.name}{list(leaf.shape[1:])}", part) for part in batch[:2]]
    return f"x {rows[0]}, y {rows[1]}".replace("'", "")


def _check_sizes(split: DataSplit, sizes: list[int], batch_size: int | None) -> None:
    full = sizes[0]
    if batch_size is not None:
        require_batch_size(full, batch_size, split.count, split.name)
    odd = [size for size in sizes[:-1] if size != full]
    if odd or sizes[-1] > full:
        raise UsageError(f"{split.name} batches have {full} samples, but one has {(odd or sizes[-1:])[0]}")
    expected = -(-split.count // full)
    if split.n_iter != expected:
        raise UsageError(f"{split.count} samples in batches of {full} are {expected} batches, not {split.n_iter}")


def _check_once(subject: Subject, split: DataSplit, thirds: list[Any]) -> bool:
    """Returns whether every sample is known to be in one batch, and in one only."""
    if any(third is None for third in thirds):
        return False
    joined = np.concatenate([np.asarray(third).reshape(-1) for third in thirds])
    if split.name == "test":
        return _check_ids(subject, joined)
    found = lost_and_doubled(joined, split.count)
    if found is None:
        return False
    lost, doubled = found
    if lost or doubled:
        raise UsageError(
            f"of {split.count} {split.name} samples, {len(lost)} are in no batch and {len(doubled)} in several; the "
            f"first one is sample {min([*lost, *doubled])}"
        )
    return True


def lost_and_doubled(thirds: np.ndarray, count: int) -> tuple[list[int], list[int]] | None:
    """Returns which sample numbers are missing, and which occur twice; None where the numbers were changed."""
    numbers = thirds.reshape(-1)
    if numbers.dtype.kind not in "iuf" or (numbers != np.floor(numbers)).any():
        return None
    if (numbers < 0).any() or (numbers >= count).any() or (len(set(numbers.tolist())) == 1 and count > 1):
        return None
    times = np.bincount(numbers.astype(np.int64), minlength=count)
    return np.flatnonzero(times == 0).tolist(), np.flatnonzero(times > 1).tolist()


def _check_ids(subject: Subject, ids: np.ndarray) -> bool:
    expected = subject.samples["test"].ids
    if expected is None:
        return False
    found = [each.decode() if isinstance(each, bytes) else str(each) for each in ids.tolist()]
    wrong = next((row for row, pair in enumerate(zip(expected, found, strict=True)) if pair[0] != pair[1]), None)
    if wrong is not None:
        raise UsageError(
            f"test batches are not in the loader's order: row {wrong} has the id {found[wrong]!r}, not "
            f"{expected[wrong]!r}"
        )
    return True
