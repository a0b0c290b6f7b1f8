"""Pairs what a file has with what the model has: by name, and only where the shapes are the same.

A format may name one weight in several ways (by the object that holds it, by its own name). Each way is a `Naming`, and
the one under which the most weights fit is used, for all of them: mixing two could load one weight twice. Names that a
person gave are never gone against: a way that only counts layers may fit many weights, and each of them wrongly.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping

from everstep.task.initial.report import Mismatch

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Naming:
    """One way to name the same weights on both sides.

    Attributes:
      here: The common name of each weight of the model, by its key.
      there: The common name of each array of the file, by its key.
      whole: Whether it only counts if everything fits, because the names alone say little.
      called_here: What people call the weights of the model, by key, where the names above are not that.
      called_there: What people call the arrays of the file.
    """

    here: Mapping[str, str]
    there: Mapping[str, str]
    whole: bool = False
    called_here: Mapping[str, str] = dataclasses.field(default_factory=dict)
    called_there: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Match:
    """Which array goes where.

    Attributes:
      pairs: The key in the file, by the key in the model.
      missing: Keys of the model without an array.
      mismatched: Keys of the model whose array has another shape.
      unexpected: Keys of the file that nobody asked for.
    """

    pairs: Mapping[str, str]
    missing: tuple[str, ...]
    mismatched: tuple[Mismatch, ...]
    unexpected: tuple[str, ...]


def best(namings: Iterable[Naming], here: Mapping[str, Shape], there: Mapping[str, Shape]) -> Match:
    """Returns the match with the most weights; of equal ones that with the fewest new names, of these the first.

    Args:
      namings: The ways to try, the most trustworthy first; at least one.
      here: The shapes of the model's weights, by key.
      there: The shapes of the file's arrays, by key.
    """
    matches = [(naming, _match(naming, here, there)) for naming in namings]
    usable = [(n, m) for n, m in matches if not (n.whole and len(m.pairs) < len(here)) and not _contradicts(n, m)]
    return max(usable, key=lambda found: (len(found[1].pairs), -len(_renamed(*found))))[1]


def _renamed(naming: Naming, match: Match) -> list[tuple[str | None, str | None]]:
    """Returns what both sides call the pairs that they do not call the same."""
    called = [(naming.called_here.get(key), naming.called_there.get(other)) for key, other in match.pairs.items()]
    return [(ours, theirs) for ours, theirs in called if ours != theirs]


def _contradicts(naming: Naming, match: Match) -> bool:
    """Returns whether a match gives a weight to another than the one of its name, which is there."""
    ours, theirs = (set(_unique(names, names)) for names in (naming.called_here, naming.called_there))
    common = ours & theirs
    return any(name in common for pair in _renamed(naming, match) for name in pair)


def _match(naming: Naming, here: Mapping[str, Shape], there: Mapping[str, Shape]) -> Match:
    wanted, offered = _unique(naming.here, here), _unique(naming.there, there)
    common = {key: offered[name] for name, key in wanted.items() if name in offered}
    pairs = {key: other for key, other in common.items() if here[key] == there[other]}
    return Match(
        pairs=pairs,
        missing=tuple(key for key in here if key not in common),
        mismatched=tuple(Mismatch(k, here[k], there[o]) for k, o in common.items() if k not in pairs),
        unexpected=tuple(key for key in there if key not in set(common.values())),
    )


def _unique(names: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    """Returns keys by name, without the names that several keys share: they say nothing."""
    named = [(names[key], key) for key in keys if key in names]
    counts = Counter(name for name, _ in named)
    return {name: key for name, key in named if counts[name] == 1}
