"""Secrets never reach a sink: what a run stores, prints or logs passes through here first.

    redaction.learn(layer.tree)                            # as soon as values are read
    redaction.remember(value, reference="${secret:NAME}")  # a value that is known to be secret
    storage.write_text(path, dump(redaction.tree(tree)))   # a tree to store or print
    print(redaction.text(message))                         # a message for a person

What was learned is known to the whole process. Numbers and booleans are never secret for their name alone, and
words about vocabularies (`num_tokens`, `cls_token`) and keys of tables (`primary_key`) name no secrets.
"""

import base64
import functools
import html
import json
import logging
import os
import re
import threading
import urllib.parse
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

# -- names of secrets --------------------------------------------------------------------------------------------------
# `db_password`, `apiKey`, `HF_TOKEN`, but not `num_tokens` or `sort_key`.

SecretKind = Literal["", "token", "secret"]
"""What a name implies for its value: nothing; that a text may be a token, secret or not; that it is secret."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_LONGEST = 200  # more is no name, and would take long
_STEMS = ("passw", "passphrase")
_SECRET = _words(
    "pwd secret secrets credential credentials apikey apikeys authorization bearer sas jwt webhook webhooks connstr"
)

# Two words that are secret together: the second, and what may stand before it.
_PHRASES = {
    "key": _words(
        "access account anthropic api auth deploy encryption gpg hmac huggingface license openai private secret "
        "signing ssh subscription wandb"
    ),
    "token": _words(
        "access api auth bearer csrf github gitlab hf hub huggingface jwt oauth private refresh sas secret security "
        "session slack wandb"
    ),
    "pass": _words("admin db ftp http login mail mysql pg postgres proxy redis root smtp ssh sudo user"),
    "string": {"connection", "conn"},
    "str": {"connection", "conn"},
    "header": {"auth"},
    "auth": {"basic", "http", "proxy"},
    "url": {"webhook"},
}

# After a secret's name these make it the name of something about the secret: password_file, secret_manager.
_ABOUT = _words(
    "algorithm arn backend column count description dir directory email enabled endpoint env expires expiry field file "
    "filename folder format helper hint host kind label len length lifetime login manager mode name namespace path "
    "policy project prompt provider region required scope size storage store title ttl type uri url user username var "
    "variable version"
)

# Beside `token` these are about vocabularies and transformers.
_VOCABULARY = _words(
    "additional answer audio aux begin blank bos budget class classification classifier cls concept context "
    "count cross decoder delimiter dim dims dist distill distillation document dropout dummy embed embedding "
    "embeddings empty encoder end eod eos eot expert extra fake fill first frame fusion global id ids image index "
    "initializer input keep label language last latent learnable length level limit line local loss mask "
    "masking max memory merge merging min mixer mixing new newline next null num out output pad padding patch "
    "pattern pause per placeholder pool pooling position prefix previous prompt prune query question rare ratio regex "
    "register registers rep repeat router routing segment selection sentence sentinel sep separator sequence "
    "shift smoothing sot source space speaker special split start stop strategy sub subword suffix "
    "summary target text think time timestep trigger type types unk unknown video vision visual "
    "weight whitespace word"
)


@functools.lru_cache(maxsize=8192)
def kind_of(name: str) -> SecretKind:
    """Returns what a key, a flag or a variable of this name holds.

    Example:
      kind_of("db.password")  # "secret"; so is "hub-token"
      kind_of("token")  # "token": it depends on the value
      kind_of("cls_token")  # "", as for "password_file"
    """
    if name == "PWD":  # in an environment, the current directory
        return ""
    words = [word.lower() for word in _WORD.findall(name[-_LONGEST:])]
    kinds = {_kind_at(words, index) for index in range(len(words)) if not _ABOUT.intersection(words[index + 1 :])}
    return "secret" if "secret" in kinds else "token" if "token" in kinds else ""


def is_about(name: str) -> bool:
    """Returns whether, next to a secret, this names a detail that is none: `type`, `user`, `region`."""
    words = _WORD.findall(name)
    return bool(words) and words[-1].lower() in _ABOUT


def _kind_at(words: list[str], index: int) -> SecretKind:
    word = words[index]
    before = words[index - 1] if index else ""
    if word in _SECRET or any(stem in word for stem in _STEMS) or _ends_phrase(before, word):
        return "secret"
    if word == "token" and not _VOCABULARY.intersection([before, *words[index + 1 : index + 2]]):
        return "token"
    return ""


def _ends_phrase(before: str, word: str) -> bool:
    """Returns whether two words are a phrase: `api key`, `access tokens`; or one word is: `apikey`."""
    for last, firsts in _PHRASES.items():
        singular = word[:-1] if word == f"{last}s" else word
        if (singular == last and before in firsts) or (word.endswith(last) and word.removesuffix(last) in firsts):
            return True
    return False


# -- what secrets look like in text ------------------------------------------------------------------------------------
# By their own form, by their place in a URL, by the name in front of them.

MARK = "***"
"""What stands where a secret was."""

Found = Callable[[str], str]
"""Called with each secret; returns what to put in its place."""

URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)

_SHAPES = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"(?P<secret>-----BEGIN [A-Z ]*PRIVATE KEY[A-Z ]*-----.*?(?:-----END [A-Z ]*-----|\Z))",
        r"(?<![A-Za-z0-9])(?P<secret>"
        r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Z0-9])"
        r"|eyJ[\w-]{6,}(?:\.[\w-]*){2,4}"  # a JSON web token
        r"|(?:gh[opsur]|hf|npm|gsk)_[A-Za-z0-9]{18,}|(?:github|dckr)_pat_\w{18,}"
        r"|(?:sk-|[rs]k_(?:live|test)_)(?=[\w-]{0,40}\d)(?=[\w-]{0,40}[A-Za-z0-9]{14})[\w-]{16,}"
        r"|(?:AIza|glpat-|nvapi-|pypi-|ya29\.)[\w-]{16,}|xox[a-z]-[\w-]{10,})",
        # The password in a URL. A port, a Windows drive and the digest of an image are none.
        r"(?<=://)(?:\$\{[^{}]*\}|[^\s/?#:@\[{\"'])*:(?![/\\])"
        r"(?P<secret>[^\s/?#\"'<>]+|(?!\d{1,5}[/?#])[^\s\"'<>]+)@(?!sha\d+:)",
        r"(?<=://)(?P<secret>(?=[\w-]*\d)[\w-]{20,})@",
        r"(?:(?<=hooks\.slack\.com/services/)|(?<=/api/webhooks/))(?P<secret>[\w/-]+)",
        r"\b(?:Bearer|Basic|Negotiate)\s+(?P<secret>(?=[\w.~+/=-]*(?:\d|[a-z][A-Z])|[\w.~+/=-]{20})[\w.~+/=-]{8,})",
    )
)

# What stands in front of a value, and the value: in one pattern, a value would hide the names inside it.
_NAME = r"(?<![\w.\]-])(?<!\$\{)-*(?P<name>[A-Za-z_][\w.\[\]-]*)"
_BARE = r"(?:\$\{[^{}]*\}|[^\s;,\"'(){}\[\]<>])+"
_VALUE_OF_OPTION = r"(?=[a-z]*[^\sa-z\"']|[a-z]{12})[^\s\"']+"
_QUOTED = r"(?P<quote>\\?[\"'])?(?P<secret>(?(quote)(?:(?!(?P=quote))(?:\\.|.))*|%s))"
_PARAMETER = re.compile(r"(?<=[?&#])(?P<name>[\w.\[\]%-]+)="), re.compile(r"(?P<secret>[^\s&#\"'<>]+)")
_ASSIGNED = re.compile(rf"{_NAME}[ \t]*=(?!=)[ \t]*"), re.compile(_QUOTED % _BARE)
_SPELLED = (
    # Without quotes a value ends its line or its item: "password: is required" is a sentence.
    (
        re.compile(rf"{_NAME}\\?[\"']?\s*:[ \t]*(?:(?:unknown key \()?received )?\[?"),
        re.compile(rf"{_QUOTED % _BARE}(?(quote)|(?=\s*(?:[,;}}\])#(]|$)))", re.MULTILINE),
    ),
    # In a sentence about an option its name is followed by a plain word.
    (re.compile(r"(?<![\w-])--?(?P<name>[A-Za-z][\w-]*)\s+(?!-)"), re.compile(_QUOTED % _VALUE_OF_OPTION)),
)

_SIGNATURES = ("sig", "signature", "credential")
_NOTHING = {"", "none", "null", "true", "false"}
_PLACEHOLDER = re.compile(r"\*{3,}|\?{3}|\$\{[^{}]*\}")
_REFERENCE = re.compile(r"(?<!\\)\$\{[^{}]*\}")  # with a backslash in front it is plain text
_SPECIAL_TOKEN = re.compile(r"\[.*\]|<.*>|\{.*\}|\W*\w{0,2}\W*|.*\s.*", re.DOTALL)
_PATH = re.compile(
    r"(?:~|\.{1,2})/.*|[A-Za-z]:\\.*|/(?:home|root|etc|var|run|mnt|Users)/.*|[\w./ -]+\.(?:json|key|pem|pub|txt|ya?ml)"
)
_NUMBER = re.compile(r"[-+]?[\d.]+(?:[eE][-+]?\d+)?")
_REDACTED = re.compile(
    r"\*{3}|.*(?:://(?:[^\s/]*:)?\*{3}@|[\w\]]\s*=\s*[\"']?\*{3}(?![\w*])|/(?:services|webhooks)/\*{3}(?![\w*])"
    r"|\b(?:Bearer|Basic|Negotiate)\s+\*{3}(?![\w*])).*",
    re.DOTALL,
)


def substitute(text: str, found: Found) -> str:
    """Returns `text` with every secret replaced that is recognised by its form, also in a config value."""
    for shape in _SHAPES:
        text = shape.sub(lambda match: _swapped(match, found), text)
    return _swap_named(_swap_named(text, *_PARAMETER, _is_parameter, found), *_ASSIGNED, _is_named, found)


def substitute_spelled(text: str, found: Found) -> str:
    """Returns `text` with the values replaced that follow a secret name: in what people read, not in data.

    That is `"password": "x"`, `--password x` and `password: received 'x'`.
    """
    for lead, value in _SPELLED:
        text = _swap_named(text, lead, value, _is_named, found)
    return text


def is_secret(kind: SecretKind, value: str) -> bool:
    """Returns whether a text under a name of this kind is a secret: not empty, a reference, a path or a `[CLS]`."""
    if not kind or is_placeholder(value) or is_redacted(value) or _REFERENCE.search(value):
        return False
    return not (_SPECIAL_TOKEN if kind == "token" else _PATH).fullmatch(value)


def is_placeholder(value: str) -> bool:
    """Returns whether a text stands for a value instead of being one: empty, `***`, `${secret:NAME}`."""
    return value.lower() in _NOTHING or bool(_PLACEHOLDER.fullmatch(value))


def is_redacted(value: object) -> bool:
    """Returns whether a value of a config was taken out of it: `***`, or `https://user:***@host`."""
    return isinstance(value, str) and MARK in value and bool(_REDACTED.fullmatch(value))


def _swapped(match: re.Match[str], found: Found) -> str:
    secret = match["secret"]
    if _is_done(secret):
        return match[0]
    start, end = (position - match.start() for position in match.span("secret"))
    return match[0][:start] + found(secret) + match[0][end:]


def _swap_named(
    text: str, lead: re.Pattern[str], value: re.Pattern[str], judge: Callable[[str, str], bool], found: Found
) -> str:
    """Replaces what matches `value` after `lead`, where `judge` takes name and value for those of a secret."""
    parts, done = [], 0
    for match in lead.finditer(text):
        held = value.match(text, match.end()) if match.start() >= done and _may_name(match["name"]) else None
        if held and not _is_done(held["secret"]) and judge(match["name"], held["secret"]):
            parts += [text[done : held.start("secret")], found(held["secret"])]
            done = held.end("secret")
    return "".join([*parts, text[done:]])


def _is_done(secret: str) -> bool:
    return secret.startswith(MARK) or is_placeholder(secret)


def _may_name(name: str) -> bool:
    return bool(kind_of(name)) or name == "key" or name.lower().endswith(_SIGNATURES)


def _is_parameter(name: str, value: str) -> bool:
    """Returns whether a parameter of a URL is secret: more names are than elsewhere."""
    if name == "key":
        return _is_random(value)
    return name.lower().endswith(_SIGNATURES) or _is_named(name, value)


def _is_named(name: str, value: str) -> bool:
    """Returns whether the value after a name is secret.

    In text `token` is followed by all sorts of words, so its value must look random; in a config it need not.
    """
    kind = kind_of(name)
    if kind == "secret" and _NUMBER.fullmatch(value):
        return value.isdigit() and len(value) >= 6
    return is_secret(kind, value) and (kind != "token" or _is_random(value))


def _is_random(value: str) -> bool:
    has_both = bool(re.search(r"\d", value)) and bool(re.search(r"[A-Za-z]", value))
    return len(value) >= 20 or (len(value) >= 8 and has_both)


# -- the secrets that this process knows -------------------------------------------------------------------------------

MIN_LENGTH = 6
"""Shorter values are replaced only where they are a whole value: inside other text they would make it unreadable."""


class Memory:
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


# -- trees of values ---------------------------------------------------------------------------------------------------

_PLAIN_NAME = re.compile(r"[A-Za-z_]{1,30}")

Leaf = Callable[[Any, SecretKind], Any]
"""Called with a value and the kind of its name; returns the value for the copy."""


def walk(value: Any, leaf: Leaf, kind: SecretKind = "") -> Any:
    """Returns a copy of a tree of mappings and sequences, with what `leaf` returns for keys and values."""
    if isinstance(value, Mapping):
        return {_key(key, leaf): walk(item, leaf, _below(value, key, kind)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        pairs = zip((None, *value), value, strict=False)
        return type(value)([walk(item, leaf, _after(before) or _lasting(kind)) for before, item in pairs])
    if isinstance(value, set | frozenset):
        return type(value)(walk(item, leaf, _lasting(kind)) for item in value)
    return leaf(value, kind)


def _key(key: Any, leaf: Leaf) -> Any:
    """Returns a key for the copy: a plain word is a name, even if it is also somebody's password."""
    return key if isinstance(key, str) and _PLAIN_NAME.fullmatch(key) else leaf(key, "")


def as_text(value: Any) -> str | None:
    """Returns text, bytes or a path as text; None for any other value."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, str):
        return str.__str__(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else None


def _below(mapping: Mapping[Any, Any], key: Any, kind: SecretKind) -> SecretKind:
    """Returns the stronger kind of the key's own and that of the mapping; details such as `type` ignore the latter."""
    name = str(key)
    if name == "value":  # {name: DB_PASSWORD, value: …}
        name = str(mapping.get("name", mapping.get("key", name)))
    return ("" if is_about(name) else _lasting(kind)) or kind_of(name)


def _lasting(kind: SecretKind) -> SecretKind:
    """Returns the kind that values inside inherit: all below `secrets` is secret; `token` is about one text only."""
    return "secret" if kind == "secret" else ""


def _after(before: Any) -> SecretKind:
    """Returns the kind that a word of a command line gives to the next: `--password`, `db.password=`."""
    is_name = isinstance(before, str) and (before.startswith("-") or before.endswith("=")) and "=" not in before[:-1]
    return kind_of(before) if is_name else ""


# -- learning and hiding -----------------------------------------------------------------------------------------------

_memory = Memory()
_ASSIGNMENT = re.compile(r"(?:--[\w-]+=)?([\w.\[\]+-]+)=(.*)", re.DOTALL)
_YAML_INDICATORS = "*&!@%`"
# Words about secrets that are none themselves; replaced everywhere they would spoil every message about secrets.
_COMMON = {"password", "passwd", "passphrase", "secret", "secrets", "token", "credential", "credentials", "default"}


def learn(tree: Any) -> None:
    """Remembers every secret in a tree of config values, in the words of a command line, or in an environment.

    A secret is text under the name of one (`password`, `api_key`, `hub_token`) and text that looks like one
    (`ghp_…`, `Bearer …`, the password in a URL). From then on `text` and `tree` hide it wherever it appears.
    """
    walk(tree, _learn_leaf)


def learn_text(text: str) -> None:
    """Remembers the secrets in the text of a config file that cannot be parsed: a parser's message may quote them."""
    substitute_spelled(substitute(text, _learned), _learned)


def remember(value: str, reference: str | None = None) -> None:
    """Remembers a secret that is known to be one.

    Args:
      value: The secret.
      reference: What a stored config shows in its place, such as `${secret:NAME}`, so that it still repeats the run.
    """
    if value:
        _memory.add(value, reference, given=True)


def tree(tree: Any) -> Any:
    """Returns a copy of a tree to store or print: each secret is its reference, or `***`.

    In a URL only the password or the parameter is replaced. Values without secrets stay the objects they are.
    """
    return walk(tree, _hide_leaf)


def text(text: str) -> str:
    """Returns a message to print or store: known secrets and all that looks or is spelled like one are replaced."""
    return substitute_spelled(substitute(_memory.replace(text), _mark), _mark)


_names: dict[tuple[int, str], str] = {}
_MOST_NAMES = 10_000


def name(name: str) -> str:
    """Returns what `text` does, for a name that comes again with every log: it is searched once per known secret."""
    key = _memory.version, name
    found = _names.get(key)
    if found is None:
        if len(_names) >= _MOST_NAMES:
            _names.clear()
        found = _names[key] = text(name)
    return found


def holds_redacted(tree: Any) -> bool:
    """Returns whether a value, or one inside it, was taken out of a stored config (see `is_redacted`)."""
    found: list[bool] = []
    walk(tree, lambda value, kind: found.append(is_redacted(value)))
    return any(found)


def _learn_leaf(value: Any, kind: SecretKind) -> Any:
    spelled = as_text(value)
    if spelled is None:
        return value
    rest = substitute(spelled, _learned)
    if is_secret(kind, spelled) and not _is_readable(rest, spelled) and "${" not in _memory.replace(spelled):
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
            _memory.add(value)
    return MARK


def _hide_leaf(value: Any, kind: SecretKind) -> Any:
    spelled = as_text(value)
    if spelled is None:
        is_number = isinstance(value, int | float) and len(str(value)) >= MIN_LENGTH
        return (_memory.stand_in(str(value)) if is_number else None) or value
    hidden = _memory.stand_in(spelled) or _hide_text(spelled, kind)
    return value if hidden == spelled else hidden


def _hide_text(spelled: str, kind: SecretKind) -> str:
    hidden = substitute(_memory.replace(spelled), _mark)
    if (is_secret(kind, spelled) or (kind and hidden != spelled)) and not _is_readable(hidden, spelled):
        return MARK
    # A reader of the file must see that something is missing: a mark in the middle of a word does not show it.
    return MARK if hidden != spelled and MARK in hidden and not is_redacted(hidden) else hidden


def _is_readable(hidden: str, spelled: str) -> bool:
    """Returns whether a secret was hidden in part and the rest may stay: a URL's host, text around a reference."""
    return hidden != spelled and (bool(URL.match(spelled)) or "${" in hidden)


def _mark(secret: str) -> str:
    return MARK


# -- log records and warnings ------------------------------------------------------------------------------------------

_formatter = logging.Formatter()


class LogFilter(logging.Filter):
    """Takes secrets out of a record's message, exception and stack; one without any is left as it is.

    Put it on a handler: a logger's filters do not see the records of its children.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Changes the record in place; lets every record pass."""
        message = _message(record)
        if (hidden := text(message)) != message:
            record.msg, record.args = hidden, None
        if record.exc_info and not record.exc_text:
            formatted = _formatter.formatException(record.exc_info)
            if (hidden := text(formatted)) != formatted:
                record.exc_info, record.exc_text = None, hidden  # handlers may format it anew
        record.exc_text = record.exc_text and text(record.exc_text)
        record.stack_info = record.stack_info and text(record.stack_info)
        return True


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # arguments that do not fit: logging reports them when it writes, and shows them
        return f"{record.msg} {record.args}"


def guard_process() -> None:
    """From now on all log records and warnings of this process are free of secrets, in every handler."""
    if not isinstance(logging.getLogRecordFactory(), _Factory):
        logging.setLogRecordFactory(_Factory(logging.getLogRecordFactory()))
        warnings.formatwarning = _Warnings(warnings.formatwarning)


class _Factory:
    def __init__(self, make: Any) -> None:
        self._make = make
        self._filter = LogFilter()

    def __call__(self, *arguments: Any, **named: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._make(*arguments, **named)
        self._filter.filter(record)
        return record


class _Warnings:
    def __init__(self, spell: Any) -> None:
        self._spell = spell

    def __call__(self, *arguments: Any, **named: Any) -> str:
        return text(self._spell(*arguments, **named))
