"""Properties of redaction for every tree and every text."""

import json
import urllib.parse
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everstep import redaction
from everstep.redaction import hiding
from everstep.redaction.known_secrets import KnownSecrets

SECRETS = st.text(st.characters(codec="utf-8", exclude_characters="*"), min_size=6, max_size=30).filter(
    lambda s: (
        len(s.strip()) >= 6 and "${" not in s and s.strip() == s and any(c.isdigit() for c in s) and not s.isdigit()
    )
)
NAMES = st.sampled_from(["password", "token", "url", "note", "num_tokens", "api_key", "layers"])
PIECES = st.sampled_from(
    [
        "password",
        "token=",
        ": ",
        "'",
        '"',
        "\\",
        "=",
        "https://",
        "ada:",
        "@",
        "/",
        "?sig=",
        "&",
        " ",
        "\n",
        "--",
        "***",
    ]
    + [
        "Bearer ",
        "received ",
        ",",
        "abc123def456",
        "sk-",
        "${secret:A}",
        "Authorization",
        "{",
        "}",
        ";",
        "key",
        "-----",
    ]
    + ["-----BEGIN PRIVATE KEY-----", "eyJabcdefgh", ".", "8080", "://", "x", "#", "hooks.slack.com/services/"]
)
TEXTS = st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
TREES = st.recursive(SCALARS, lambda t: st.lists(t, max_size=3) | st.dictionaries(NAMES | TEXTS, t, max_size=3))
PLAIN = st.text(st.characters(categories=["L", "Z"]), max_size=12).filter(lambda s: s != "Basic")
PLAIN_TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | PLAIN,
    lambda t: (
        st.lists(t, max_size=3) | st.dictionaries(st.sampled_from(["layers", "num_tokens", "key"]), t, max_size=3)
    ),
)


def leaves(tree: Any) -> list[str]:
    """Every text in a tree, keys too."""
    if isinstance(tree, dict):
        return [text for key, value in tree.items() for text in (key, *leaves(value))]
    if isinstance(tree, list):
        return [text for item in tree for text in leaves(item)]
    return [tree] if isinstance(tree, str) else []


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS)
def test_redacting_text_twice_changes_nothing_more(message: str) -> None:
    once = redaction.text(message)
    assert redaction.text(once) == once


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TREES)
def test_redacting_a_tree_twice_changes_nothing_more(tree: Any) -> None:
    once = redaction.tree(tree)
    assert redaction.tree(once) == once


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(PLAIN_TREES)
def test_a_tree_without_secrets_is_equal_to_its_copy(tree: Any) -> None:
    assert redaction.tree(tree) == tree


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SECRETS, TEXTS, TEXTS, TREES, st.booleans())
def test_a_remembered_value_never_appears(secret: str, before: str, after: str, tree: Any, named: bool) -> None:
    hiding._known = KnownSecrets()
    redaction.remember(secret, "${secret:NAME}" if named else None)
    assert secret not in redaction.text(before + secret + after).replace("${secret:NAME}", "")
    for spelling in (json.dumps(secret)[1:-1], repr(secret)[1:-1], urllib.parse.quote(secret)):
        assert spelling not in redaction.text(f"{before}{spelling}{after}").replace("${secret:NAME}", "")
    hidden = redaction.tree({"a": tree, "b": [secret, before + secret], before + secret: 1})
    assert not [text for text in leaves(hidden) if secret in text.replace("${secret:NAME}", "")]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SECRETS)
def test_a_value_stored_without_a_reference_is_known_to_be_missing(secret: str) -> None:
    hiding._known = KnownSecrets()
    redaction.learn({"password": secret})
    for value in (secret, f"a {secret} b", f"x{secret}"):
        hidden = redaction.tree({"note": value})["note"]
        assert hidden == value or redaction.is_redacted(hidden)
