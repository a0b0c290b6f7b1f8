"""`KnownSecrets`: the secrets that a process has seen, and how it finds them in text, however they are spelled."""

import base64
import html
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator

from everstep.redaction.secret_shapes import MARK

MIN_LENGTH = 6
"""Shorter values are replaced only where they are a whole value: inside other text they would make it unreadable."""


class KnownSecrets:
    """Secrets with the references that may stand for them; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._references: dict[str, str | None] = {}
        self._given: set[str] = set()
        self._search: tuple[re.Pattern[str], dict[str, str]] | None = None
        self.version = 0  # counts what was added

    def add(self, value: str, reference: str | None = None, given: bool = False) -> None:
        """Remembers a secret.

        Args:
          value: The secret.
          reference: What to show for it, unless that would show the secret; one that is known is kept.
          given: It was declared a secret, so a config value equal to it is one, however short.
        """
        if reference and len(value) >= MIN_LENGTH and value in reference:
            reference = None
        with self._lock:
            known = self._references.get(value)
            self._given |= {value} if given else set()
            if value not in self._references or (reference and reference != known):
                self._references[value] = reference or known
                self._search = None
                self.version += 1

    def stand_in(self, value: str) -> str | None:
        """Returns what to show for a value that was declared a secret; None for any other."""
        return (self._references.get(value) or MARK) if value in self._given else None

    def replace(self, text: str) -> str:
        """Returns `text` with every known secret in it replaced, in any of its `forms`."""
        pattern, shown = self._search or self._compile()
        return pattern.sub(lambda match: shown.get(_unfolded(match[0]), MARK), text)

    def _compile(self) -> tuple[re.Pattern[str], dict[str, str]]:
        with self._lock:
            long = {value: ref for value, ref in self._references.items() if len(value.strip()) >= MIN_LENGTH}
            references = {ref for ref in long.values() if ref and not any(value in ref for value in long)}
            shown = {form: ref for value, ref in long.items() if ref in references for form in forms(value)}
            every = {form for value in long for form in forms(value)}
            longest_first = sorted(every, key=lambda form: (-len(form), form))
            # References come first and are kept: a name in one may be part of a secret.
            patterns = [*map(re.escape, sorted(references)), *map(_pattern, longest_first)]
            shown = {_unfolded(form): ref for form, ref in shown.items()} | {ref: ref for ref in references}
            self._search = re.compile("|".join(patterns) or r"(?!)"), shown
            return self._search


def forms(value: str) -> set[str]:
    """Returns a secret as it is and as JSON, YAML, Python, shells, URLs, HTML and base64 spell it."""
    return {form for form in _forms(value.strip()) if len(form) >= MIN_LENGTH}


def _forms(value: str) -> Iterator[str]:
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield repr(value)[1:-1]
    yield value.replace("'", "''")
    yield value.replace("'", "'\"'\"'")  # in a command line
    yield value.replace("${", "\\${")  # in a stored config
    yield value.replace('"', '""')
    yield value.replace("\n", "\\n")
    yield html.escape(value)
    data = value.encode("utf-8", "surrogatepass")
    yield from (urllib.parse.quote(data, safe=safe) for safe in ("", "/"))
    yield urllib.parse.quote_plus(data)
    yield base64.b64encode(data).decode().rstrip("=")
    yield base64.urlsafe_b64encode(data).decode().rstrip("=")
    # A line of a key block may be shown alone.
    yield from (line.strip() for line in value.splitlines() if len(line) >= 32 and " " not in line.strip())


def _pattern(form: str) -> str:
    """Returns a regular expression for a form; where it has spaces, a line may have been folded."""
    return r"[\s\\]+".join(re.escape(part) for part in re.split(r"\s+", form))


def _unfolded(text: str) -> str:
    return re.sub(r"[\s\\]+", " ", text)
