"""Learning secrets from values as they are read, and hiding them in values and messages that are stored or printed."""

import re
import urllib.parse
from typing import Any

from everstep.redaction.known_secrets import MIN_LENGTH, KnownSecrets
from everstep.redaction.secret_names import SecretKind, kind_of
from everstep.redaction.secret_shapes import (
    MARK,
    URL,
    is_placeholder,
    is_redacted,
    is_secret,
    substitute,
    substitute_spelled,
)
from everstep.redaction.value_tree import as_text, walk

_known = KnownSecrets()
_ASSIGNMENT = re.compile(r"(?:--[\w-]+=)?([\w.\[\]+-]+)=(.*)", re.DOTALL)
_YAML_INDICATORS = "*&!@%`"
# Words about secrets that are none themselves; replaced everywhere they would spoil every message about secrets.
_COMMON = {"password", "passwd", "passphrase", "secret", "secrets", "token", "credential", "credentials", "default"}


def learn(values: Any) -> None:
    """Remembers every secret in a tree of config values, in the words of a command line, or in an environment.

    A secret is text under the name of one (`password`, `api_key`, `hub_token`) and text that looks like one
    (`ghp_…`, `Bearer …`, the password in a URL). From then on `text` and `tree` hide it wherever it appears.
    """
    walk(values, _learn_leaf)


def learn_text(source: str) -> None:
    """Remembers the secrets in the text of a config file that cannot be parsed: a parser's message may quote them."""
    substitute_spelled(substitute(source, _learned), _learned)


def remember(value: str, reference: str | None = None) -> None:
    """Remembers a secret that is known to be one.

    Args:
      value: The secret.
      reference: What a stored config shows in its place, such as `${secret:NAME}`, so that it still repeats the run.
    """
    if value:
        _known.add(value, reference, given=True)


def tree(values: Any) -> Any:
    """Returns a copy of a tree to store or print: each secret is its reference, or `***`.

    In a URL only the password or the parameter is replaced. Values without secrets stay the objects they are.
    """
    return walk(values, _hide_leaf)


def text(message: str) -> str:
    """Returns a message to print or store: known secrets and all that looks or is spelled like one are replaced."""
    return substitute_spelled(substitute(_known.replace(message), _mark), _mark)


_names: dict[tuple[int, str], str] = {}
_MOST_NAMES = 10_000


def name(log_name: str) -> str:
    """Returns what `text` does, for a name that comes again with every log: it is searched once per known secret."""
    key = _known.version, log_name
    found = _names.get(key)
    if found is None:
        if len(_names) >= _MOST_NAMES:
            _names.clear()
        found = _names[key] = text(log_name)
    return found


def holds_redacted(values: Any) -> bool:
    """Returns whether a value, or one inside it, was taken out of a stored config (see `is_redacted`)."""
    found: list[bool] = []
    walk(values, lambda value, kind: found.append(is_redacted(value)))
    return any(found)


def _learn_leaf(value: Any, kind: SecretKind) -> Any:
    spelled = as_text(value)
    if spelled is None:
        return value
    rest = substitute(spelled, _learned)
    if is_secret(kind, spelled) and not _is_readable(rest, spelled) and "${" not in _known.replace(spelled):
        _learned(spelled)
    assigned = _ASSIGNMENT.fullmatch(spelled)
    if assigned and is_secret(kind_of(assigned[1]), assigned[2]):
        _learned(assigned[2])
    return value


def _learned(secret: str) -> str:
    """Remembers a secret that was found, unless replacing it everywhere would hide ordinary words and numbers."""
    for value in {secret, urllib.parse.unquote(secret), secret.lstrip(_YAML_INDICATORS)}:
        is_number = value.isdigit() and len(value) < 8
        if len(value) >= MIN_LENGTH and not is_number and value.lower() not in _COMMON and not is_placeholder(value):
            _known.add(value)
    return MARK


def _hide_leaf(value: Any, kind: SecretKind) -> Any:
    spelled = as_text(value)
    if spelled is None:
        is_number = isinstance(value, int | float) and len(str(value)) >= MIN_LENGTH
        return (_known.stand_in(str(value)) if is_number else None) or value
    hidden = _known.stand_in(spelled) or _hide_text(spelled, kind)
    return value if hidden == spelled else hidden


def _hide_text(spelled: str, kind: SecretKind) -> str:
    hidden = substitute(_known.replace(spelled), _mark)
    if (is_secret(kind, spelled) or (kind and hidden != spelled)) and not _is_readable(hidden, spelled):
        return MARK
    # A reader of the file must see that something is missing: a mark in the middle of a word does not show it.
    return MARK if hidden != spelled and MARK in hidden and not is_redacted(hidden) else hidden


def _is_readable(hidden: str, spelled: str) -> bool:
    """Returns whether a secret was hidden in part and the rest may stay: a URL's host, text around a reference."""
    return hidden != spelled and (bool(URL.match(spelled)) or "${" in hidden)


def _mark(secret: str) -> str:
    return MARK
