"""The batches that come out of augmentor and preprocessor."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from everstep.components.checks.fitting import shapes
from everstep.components.checks.numbered import NumberedLoader, lost_and_doubled
from everstep.components.checks.outcome import Doubt, NotNeeded
from everstep.components.checks.subject import TRAINED, Subject
from everstep.components.flows import Flow, Split, augmented, load_samples, make_flow
from everstep.components.tf_datasets import is_dataset
from everstep.data import nest
from everstep.errors import UsageError

_FEW = 8


def augmentation(subject: Subject) -> str:
    """Augmented samples look like those they were made of: tuples of the same size, arrays of the same form."""
    components = subject.components
    if components.augmentor is None:
        raise NotNeeded
    flags = (components.config.do_train_augmentation, components.config.do_validation_augmentation)
    done = [split for split, wanted in zip(TRAINED, flags, strict=True) if wanted]
    for split in done:
        _compare(subject, split)
    return f"augmented {' and '.join(done)} samples keep their shapes and types"


def batches_of(split: Split) -> Callable[[Subject], str]:
    """Returns the check of a split's batches: sizes, number, form, values; and that every sample is in one of them."""

    def check(subject: Subject) -> str:
        components = subject.components
        if split != "test":
            subject.batches[split] = _first(make_flow(components, split))
            components = dataclasses.replace(components, data_loader=NumberedLoader(components.data_loader))  # type: ignore[arg-type]
        flow = make_flow(components, split)
        subject.labels[split] = []
        sizes, thirds, subject.label_ranges[split] = _walk(flow, subject.max_samples, subject.labels[split])
        _check_sizes(flow, sizes, components.config.get("batch_size"))
        whole = sum(sizes) == flow.count
        once = whole and _check_once(subject, flow, thirds)
        short = f", {sizes[-1]} in the last" if whole and sizes[-1] != sizes[0] else ""
        if flow.doubt:
            raise Doubt(flow.doubt)
        return (
            f"{flow.count} {split} samples fill {flow.n_iter} batches of {sizes[0]}{short}"
            f"{', each sample once' if once else ''}{'' if whole else f'; {sum(sizes)} samples were looked at'}"
        )

    return check


def weights(subject: Subject) -> str:
    """Sample weights are finite numbers of at least 0, one for each sample."""
    found = []
    for split in TRAINED:
        raw, third = subject.samples[split].weights, subject.batches[split][2]
        if raw is None or third is None:
            continue
        _check_weights(raw, f"{split} samples")
        _check_weights(np.asarray(third), f"a {split} batch")
        if np.shape(third) != (len(nest.flatten(subject.batches[split][1])[0]),):
            raise UsageError(f"the weights of a {split} batch have the shape {np.shape(third)}: one for each sample")
        found.append(f"{split} from {raw.min():g} to {raw.max():g}")
    if not found:
        raise NotNeeded("samples have no weights")
    return f"weights are finite and not negative: {', '.join(found)}"


def _compare(subject: Subject, split: Split) -> None:
    components = subject.components
    plain = _some(load_samples(components, split)[0])
    changed = augmented(components, split, load_samples(components, split)[0])
    with components.calling("augmentor", "add_augmentation"), components.naming("augmentor"):
        for row, (before, after) in enumerate(zip(plain, _some(changed), strict=False)):
            if not isinstance(after, tuple | list) or len(after) != len(before):
                raise UsageError(f"add_augmentation makes of {split} sample {row} {_kind(after)}, not {_kind(before)}")
            for name, one, other in zip(("x", "y"), before, after, strict=False):
                if _form(one) != _form(other):
                    raise UsageError(
                        f"add_augmentation makes of the {name} of {split} sample {row}, {_form(one)}, {_form(other)}"
                    )


def _some(samples: Any) -> Iterator[Any]:
    return itertools.islice(samples.as_numpy_iterator() if is_dataset(samples) else samples, _FEW)


def _kind(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple | list) else f"an object of {type(value).__name__}"


def _form(tree: Any) -> str:
    return f"{shapes(tree)} {nest.map_leaves(lambda leaf: np.asarray(leaf).dtype.name, tree)}"


def _first(flow: Flow) -> tuple[Any, Any, Any]:
    x, y, third = (*next(flow.batches()), None)[:3]
    return x, y, third


def _walk(
    flow: Flow, limit: int | None, labels: list[np.ndarray]
) -> tuple[list[int], list[Any], list[tuple[float, float]]]:
    """Reads the batches; returns their sizes, their third parts, and the range of the labels, and keeps single ones."""
    sizes: list[int] = []
    thirds: list[Any] = []
    ranges: list[tuple[float, float]] = []
    form = ""
    for number, batch in enumerate(flow.batches()):
        form = form or _row_form(batch)
        _check_batch(flow, number, batch, form)
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
    before = ranges or now
    return [(min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(before, now, strict=True)]


def _check_batch(flow: Flow, number: int, batch: tuple[Any, ...], form: str) -> None:
    where = f"{flow.split} batch {number}"
    if _row_form(batch) != form:
        raise UsageError(f"{where} has samples of the form {_row_form(batch)}, the first one of {form}")
    for name, part in zip(("x", "y"), batch, strict=False):
        for leaf in nest.flatten(part):
            if leaf.dtype.hasobject:
                raise UsageError(f"the {name} of {where} holds Python objects: make arrays of one shape and type")
            if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                row = int(np.argwhere(~np.isfinite(leaf))[0][0])
                raise UsageError(f"the {name} of {where} is not finite, first in its sample {row}")


def _row_form(batch: tuple[Any, ...]) -> str:
    """Returns shapes and types of one sample of a batch."""
    rows = [nest.map_leaves(lambda leaf: f"{leaf.dtype.name}{list(leaf.shape[1:])}", part) for part in batch[:2]]
    return f"x {rows[0]}, y {rows[1]}".replace("'", "")


def _check_sizes(flow: Flow, sizes: list[int], batch_size: int | None) -> None:
    full = sizes[0]
    if batch_size is not None and full != min(batch_size, flow.count):
        raise UsageError(f"{flow.split} batches have {full} samples, but batch_size is {batch_size}")
    odd = [size for size in sizes[:-1] if size != full]
    if odd or sizes[-1] > full:
        raise UsageError(f"{flow.split} batches have {full} samples, but one has {(odd or sizes[-1:])[0]}")
    expected = -(-flow.count // full)
    if flow.n_iter != expected:
        raise UsageError(f"{flow.count} samples in batches of {full} are {expected} batches, not {flow.n_iter}")


def _check_once(subject: Subject, flow: Flow, thirds: list[Any]) -> bool:
    """Tells whether every sample is known to be in one batch, and in one alone."""
    if any(third is None for third in thirds):
        return False
    joined = np.concatenate([np.asarray(third).reshape(-1) for third in thirds])
    if flow.split == "test":
        return _check_ids(subject, joined)
    found = lost_and_doubled(joined, flow.count)
    if found is None:
        return False
    lost, doubled = found
    if lost or doubled:
        raise UsageError(
            f"of {flow.count} {flow.split} samples, {len(lost)} are in no batch and {len(doubled)} in several: the "
            f"first one is sample {min([*lost, *doubled])}"
        )
    return True


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


def _check_weights(values: np.ndarray, whose: str) -> None:
    if values.dtype.kind not in "biuf":
        raise UsageError(f"the weights of {whose} are {values.dtype.name}, not numbers")
    if not np.isfinite(values).all() or (values < 0).any():
        wrong = values[~np.isfinite(values) | (values < 0)].reshape(-1)[0]
        raise UsageError(f"a weight of {whose} is {wrong}: weights are finite and not negative")
    if not values.any():
        raise UsageError(f"all weights of {whose} are 0: nothing would be learned")
