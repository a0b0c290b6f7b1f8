"""What secrets look like in text: by their own form, by their place in a URL, by the name in front of them."""

import re
from collections.abc import Callable

from everstep.redaction.secret_names import SecretKind, kind_of

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
