"""What a stored configuration says, compared key by key with the one at hand."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from everstep import redaction
from everstep.config import Config, ConfigError, dialect
from everstep.config.defaults import at_default
from everstep.config.difference import ABSENT, Change, differences
from everstep.config.problem import join
from everstep.run import key_path


def changes_since(tree: Mapping[str, Any], params: Config) -> list[Change]:
    """Returns every key whose value differs between a stored configuration and this one.

    The stored values get this configuration's types first, so that 1 and 1.0 are the same where the field says so.
    A key that the stored configuration does not have has changed if it has another value than its default; one that
    there is no more has changed anyway. Where a secret was left out of what is stored, nothing can be said.

    Args:
      tree: The stored values.
      params: The configuration.
    """
    old, lost = _typed(tree, params)
    changed = [*lost, *differences(old, params)]
    paths = [change.path for change in changed]
    return changed + [change for change in _added(tree, params) if not key_path.is_below(change.path, paths)]


def _typed(tree: Mapping[str, Any], params: Config) -> tuple[Config, list[Change]]:
    """Returns the stored values in a copy of `params`, and those that it cannot take."""
    now = params.as_dict()
    old, rest = params.replace(), copy.deepcopy(_with_secrets(tree, redaction.tree(dialect.escaped(now)), now))
    lost: list[Change] = []
    while True:
        try:
            old.override(rest)
            return old, lost
        except ConfigError as error:  # one problem at a time: the next one may be inside the same value
            path, value = _cut(rest, error.problems[0].path)
            lost.append(Change(path, value, key_path.find(params.as_dict(), path)))


def _with_secrets(stored: Any, shown: Any, now: Any) -> Any:
    """Returns what is stored with the secrets of today where it has marks or references for them.

    Args:
      stored: The stored values.
      shown: Those of today, as they would be stored.
      now: Those of today.
    """
    if stored == shown or redaction.is_redacted(stored):
        return now
    if isinstance(stored, Mapping) and isinstance(shown, Mapping):
        return {key: _with_secrets(v, shown[key], now[key]) if key in now else v for key, v in stored.items()}
    if isinstance(stored, list) and isinstance(shown, list | tuple) and len(stored) == len(shown):
        return [_with_secrets(*three) for three in zip(stored, shown, now, strict=True)]
    return stored


def _cut(tree: dict[str, Any], path: str) -> tuple[str, Any]:
    """Takes the value at a path out of a tree; where the tree ends on the way, or in a list, what holds the rest."""
    holder: Any = tree
    found: list[tuple[dict[Any, Any], Any, str]] = []
    done = ""
    for step in key_path.steps(path):
        value = key_path.below(holder, step)
        if value is ABSENT:
            break
        done = join(done, step)
        if isinstance(holder, dict):
            found.append((holder, next(key for key in holder if str(key) == step), done))
        holder = value
    owner, key, where = found[-1]
    return where, owner.pop(key)


def _added(tree: Mapping[str, Any], params: Config) -> Iterator[Change]:
    """Yields the values that the stored configuration has no key for, unless they are what a class says by itself."""
    usual = at_default(params)
    for path, value in key_path.leaves(params.as_dict()):
        if key_path.find(tree, path) is ABSENT and not key_path.is_below(path, usual):
            yield Change(path, ABSENT, value)
