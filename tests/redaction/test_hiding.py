"""Secrets are found in trees and in text, remembered, and replaced; what is around them stays."""

import copy
import json
import pathlib
import shlex
import urllib.parse
from typing import Any

import pytest

from everstep import redaction
from everstep.config import dialect

PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA3Tz2mr7SZiAMfQyuvBjM9Oi\nq1w2e3==\n-----END RSA PRIVATE KEY-----"
)

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"


FORMS = [
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "gho_16C7e42F292c6912E7710c838347Ae178B4a",
    "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz0123",
    "glpat-aBcD1234eFgH5678iJkL",
    "sk-abcdEFGH1234ijklMNOP5678qrst",
    "sk-proj-a1B2c3D4e5F6g7H8i9J0k1L2_m3N4",
    "sk_" + "live_4eC39HqLyjWDarjtT1zdp7dc",
    "hf_aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH",
    "xox" + "b-123456789012-abcDEFghiJKL",
    "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    JWT,
    PEM,
]


@pytest.mark.parametrize("secret", FORMS)
def test_a_secret_is_recognised_by_its_form_everywhere(secret: str) -> None:
    assert redaction.tree({"note": secret, "list": ["a", (secret,)]}) == {"note": "***", "list": ["a", ("***",)]}
    assert redaction.tree({"note": f"use {secret} here"}) == {"note": "***"}
    assert redaction.tree({"note": secret.encode()}) == {"note": "***"}
    assert redaction.tree({secret: 1}) == {"***": 1}
    assert redaction.text(f"401 for '{secret}'.") == "401 for '***'."


IN_PART = [
    ("postgres://ada:hunter2@db.example.com:5432/train", "postgres://ada:***@db.example.com:5432/train"),
    ("redis://:hunter2@cache/0", "redis://:***@cache/0"),
    ("https://ada:p@ss@example.com/x", "https://ada:***@example.com/x"),
    ("https://ada:p%40ss@example.com/x@v2", "https://ada:***@example.com/x@v2"),
    ("s3://KEY:sec/ret+1@bucket/x", "s3://KEY:***@bucket/x"),
    ("https://0123456789abcdef0123456789abcdef@sentry.example.com/1", "https://***@sentry.example.com/1"),
    ("https://example.com/d?page=2&token=abc123def&x=1", "https://example.com/d?page=2&token=***&x=1"),
    ("https://b.blob.core/x?sv=2022&sig=a%2Fb%3D&se=1", "https://b.blob.core/x?sv=2022&sig=***&se=1"),
    ("https://b.s3/x?X-Amz-Signature=00ff00ff&X-Amz-Date=1", "https://b.s3/x?X-Amz-Signature=***&X-Amz-Date=1"),
    ("https://example.com/cb#access_token=abc", "https://example.com/cb#access_token=***"),
    ("https://hooks.slack.com/services/T000/B000/XXXX", "https://hooks.slack.com/services/***"),
    ("Bearer abcdef123456", "Bearer ***"),
    ("Basic dXNlcjpwYXNzd29yZA==", "Basic ***"),
    ("Server=db;User=ada;Password=hunter2;Timeout=5", "Server=db;User=ada;Password=***;Timeout=5"),
    ("Login.password = 'hunter2'\nLogin.port = 80\n", "Login.password = '***'\nLogin.port = 80\n"),
    ("python serve.py --api-key=abc --port=80", "python serve.py --api-key=*** --port=80"),
]


@pytest.mark.parametrize(("value", "hidden"), IN_PART)
def test_what_is_around_a_secret_stays_readable(value: str, hidden: str) -> None:
    assert redaction.tree({"source": value}) == {"source": hidden}
    assert redaction.text(f"cannot open {value} now") == f"cannot open {hidden} now"
    assert redaction.is_redacted(hidden)
    assert not redaction.is_redacted(value)


def test_a_name_wins_over_a_form_but_not_over_a_url() -> None:
    assert redaction.tree({"password": "my ghp_16C7e42F292c6912E7710c838347Ae178B4a"}) == {"password": "***"}
    url = {"connection_string": "postgres://ada:hunter2@db/train"}
    hidden = {"connection_string": "postgres://ada:***@db/train"}
    assert redaction.tree(url) == redaction.tree(hidden) == hidden
    assert redaction.tree({"webhook_url": "https://example.com/in/abc"}) == {"webhook_url": "***"}


def test_a_name_counts_for_all_below_it_but_details() -> None:
    tree = {"credentials": {"type": "service", "user": "ada", "json": "hunter2hunter2", "port": 5, "more": ["x y z"]}}
    hidden = {"credentials": {"type": "service", "user": "ada", "json": "***", "port": 5, "more": ["***"]}}
    assert redaction.tree(tree) == hidden
    assert redaction.tree({"credentials": {"token": ["hunter2"]}}) == {"credentials": {"token": ["***"]}}
    env = [{"name": "DB_PASSWORD", "value": "hunter2"}, {"name": "DB_HOST", "value": "hunter3"}]
    assert [e["value"] for e in redaction.tree(env)] == ["***", "hunter3"]
    words = ["serve", "--password", "hunter2", "--port", "80", "a.secret=", "abc", "--api-key=abc"]
    hidden_words = ["serve", "--password", "***", "--port", "80", "a.secret=", "***", "--api-key=***"]
    assert redaction.tree(words) == hidden_words


def test_a_copy_keeps_types_and_shares_what_is_no_secret() -> None:
    path = pathlib.Path("data/x")
    tree = {"a": (1, [path]), "b": {"x"}, "c": None, "d": 1.5, 3: "y"}
    before = copy.deepcopy(tree)
    hidden = redaction.tree(tree)
    assert hidden == tree == before
    assert hidden["a"][1][0] is path
    assert hidden["a"][1] is not tree["a"][1]
    assert redaction.tree({"a": pathlib.PurePosixPath("x?token=abc123def")}) == {"a": "x?token=***"}


# -- remembering -------------------------------------------------------------------------------------------------------


def test_what_was_learned_is_hidden_elsewhere() -> None:
    redaction.learn({"db": {"password": "hunter2-correct", "url": "redis://:swordfish9@cache/0"}})
    assert redaction.text("login of ada with hunter2-correct and swordfish9 failed") == (
        "login of ada with *** and *** failed"
    )
    assert redaction.tree({"note": "hunter2-correct", "x": ["a hunter2-correct b"]}) == {"note": "***", "x": ["***"]}


def test_a_command_line_is_learned() -> None:
    pairs = ["+a.password=ab,cd&ef(gh", "--params-override=a.password=ij,kl(mn", "--gin_params=A.password = 'pq,rs0'"]
    redaction.learn(["train", "tiny", *pairs, "--api-key", "opensesame", "task.secret=", "xyzzy-1"])
    assert redaction.text("ab,cd&ef(gh ij,kl(mn pq,rs0 opensesame xyzzy-1 tiny") == "*** *** *** *** *** tiny"


def test_the_text_of_a_broken_file_is_learned() -> None:
    redaction.learn_text("task:\n  password: *Hunter2secret\n  note: *harmless-thing\n  token: !abcdef123456\n")
    assert redaction.text("undefined alias 'Hunter2secret'") == "undefined alias '***'"
    assert redaction.text("undefined alias 'harmless-thing', tag 'abcdef123456'") == (
        "undefined alias 'harmless-thing', tag '***'"
    )


def test_short_and_common_values_are_hidden_in_their_place_only() -> None:
    redaction.learn({"a": {"password": "abc"}, "b": {"password": "password"}, "c": {"secret": "100000"}})
    assert redaction.tree({"password": "abc", "x": "abc"}) == {"password": "***", "x": "abc"}
    assert redaction.text("abc: the password at step 100000") == "abc: the password at step 100000"


def test_a_reference_replaces_its_secret() -> None:
    redaction.learn({"password": "hunter2-correct"})
    redaction.remember("hunter2-correct", "${secret:DB}")
    redaction.learn({"password": "hunter2-correct"})
    redaction.remember("xy", "${secret:SHORT}")
    redaction.remember("12345678", "${secret:PIN}")
    redaction.remember("unnamed-secret")
    tree = {
        "password": "hunter2-correct",
        "url": "redis://:hunter2-correct@cache/0",
        "both": "redis://:hunter2-correct@cache/0?token=abc123def",
        "mode": "xy",
        "pin": 12345678,
        "other": "unnamed-secret",
        "xyz": "xyz",
    }
    assert redaction.tree(tree) == {
        "password": "${secret:DB}",
        "url": "redis://:${secret:DB}@cache/0",
        "both": "redis://:${secret:DB}@cache/0?token=***",
        "mode": "${secret:SHORT}",
        "pin": "${secret:PIN}",
        "other": "***",
        "xyz": "xyz",
    }
    assert redaction.text("hunter2-correct, unnamed-secret") == "${secret:DB}, ***"
    assert redaction.tree(redaction.tree(tree)) == redaction.tree(tree)


def test_a_value_composed_with_a_reference_still_repeats() -> None:
    redaction.remember("hunter2-correct", "${secret:DB}")
    redaction.learn({"api_key": "prefix-hunter2-correct"})
    assert redaction.tree({"api_key": "prefix-hunter2-correct"}) == {"api_key": "prefix-${secret:DB}"}
    assert redaction.text("prefix-hunter2-correct") == "prefix-${secret:DB}"


def test_references_and_marks_are_no_secrets() -> None:
    tree = {"password": "${secret:DB_PASSWORD}", "api_key": "***", "token": "???", "secret": "none"}
    redaction.learn(tree)
    assert redaction.tree(tree) == tree
    assert redaction.tree({"password": r"plain\${text}"}) == {"password": "***"}
    assert redaction.text("password: '${secret:DB_PASSWORD}'") == "password: '${secret:DB_PASSWORD}'"


def test_a_name_that_is_also_a_secret_stays_a_name() -> None:
    redaction.remember("backend")
    redaction.remember("MY_SECRET_1", "${secret:MY_SECRET_1}")
    assert redaction.tree({"backend": "backend"}) == {"backend": "***"}
    assert redaction.text("MY_SECRET_1") == redaction.tree("MY_SECRET_1") == "***"  # the reference would show it


@pytest.mark.parametrize("value", ["***", "https://ada:***@db/x", "?sig=***", "Bearer ***", "a;Password=***;b"])
def test_a_stored_value_shows_that_it_was_redacted(value: str) -> None:
    assert redaction.is_redacted(value)


@pytest.mark.parametrize("value", ["", "*", "**", "****", "a***b", "*** x", "x:***", "a=***b", 3, None, ["***"]])
def test_other_values_were_not_redacted(value: Any) -> None:
    assert not redaction.is_redacted(value)


def test_what_holds_a_redacted_value_is_found() -> None:
    assert redaction.holds_redacted({"a": [{"b": ("x", "https://ada:***@db")}]})
    assert redaction.holds_redacted("***")
    assert not redaction.holds_redacted({"a": [{"b": ("x", "*** x", 3, None)}]})


# -- text --------------------------------------------------------------------------------------------------------------

SPELLED = [
    ("password=hunter2", "password=***"),
    ("Login(user='ada', password='hun ter2')", "Login(user='ada', password='***')"),
    ('{"api_key": "abc", "user": "ada"}', '{"api_key": "***", "user": "ada"}'),
    (r'body: "{\"api_key\": \"abc\"}"', r'body: "{\"api_key\": \"***\"}"'),
    ("{'db': {'passwd': 'it\\'s'}}", "{'db': {'passwd': '***'}}"),
    ("  password: hunter2  # override", "  password: ***  # override"),
    ("{db: {password: [hunter2}", "{db: {password: [***}"),
    ("secret: hunter2\nuser: ada", "secret: ***\nuser: ada"),
    ("password = hunter2", "password = ***"),
    ("run --password hunter2 --port 80", "run --password *** --port 80"),
    ("run --api-key 'abc'", "run --api-key '***'"),
    ("task.password: received 12345678, expected str", "task.password: received ***, expected str"),
    ("a.secret: received 'abc', unknown key: known: 'x'", "a.secret: received '***', unknown key: known: 'x'"),
    ("(from override 'task.password=12345678')", "(from override 'task.password=***')"),
    ("HF_TOKEN=abcdef123456", "HF_TOKEN=***"),
    ("token: 'abcdef123456'", "token: '***'"),
    ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic ***"),
    ("'api_key': 'abcdefgh…", "'api_key': '***"),
]


@pytest.mark.parametrize(("message", "hidden"), SPELLED)
def test_values_after_secret_names_are_hidden_in_text(message: str, hidden: str) -> None:
    assert redaction.text(message) == hidden
    assert redaction.text(hidden) == hidden


@pytest.mark.parametrize(
    "secret", ['it\'s "the" one\\two', "naïve-pässwörd", "a/b+c=d&e f", PEM, "<b>&amp;</b>", "it's${odd}"]
)
def test_a_known_secret_is_hidden_in_every_spelling(secret: str) -> None:
    redaction.remember(secret)
    spellings = [
        secret,
        json.dumps(secret),
        json.dumps(secret, ensure_ascii=False),
        repr(secret),
        dialect.dump({"note": secret}),
        dialect.dump({"note": "x" * 100 + " " + secret}),
        urllib.parse.quote(secret, safe=""),
        urllib.parse.quote_plus(secret),
        shlex.quote(secret),
        dialect.dump(dialect.escaped({"note": secret})),
    ]
    letters = set(secret) & set("abcdefghijklmnopqrstuvwxyzäö")
    for spelling in spellings:
        hidden = redaction.text(f"<{spelling}>").replace("note", "").replace("x", "")
        assert "***" in hidden
        assert not letters & set(hidden), hidden
