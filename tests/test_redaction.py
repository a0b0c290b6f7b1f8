"""Secrets are told from everything else, and hidden in trees, texts and log records."""

import copy
import io
import json
import logging
import pathlib
import shlex
import threading
import time
import traceback
import urllib.parse
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep import redaction
from everstep.config import dialect
from everstep.redaction import hiding
from everstep.redaction.memory import Memory

PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA3Tz2mr7SZiAMfQyuvBjM9Oi\nq1w2e3==\n-----END RSA PRIVATE KEY-----"
)
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"
COMMIT = "3038ae5b6c1d2e3f4a5b6c7d8e9f0a1b2c3d4e5f"


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """Each test starts with nothing learned."""
    monkeypatch.setattr(hiding, "_memory", Memory())
    return hiding._memory


# -- which names -----------------------------------------------------------------------------------------------------

SECRET_KEYS = """
    password passwd PASSWORD db_password dbPassword pgpassword MYSQL_PWD ssh-passphrase password2 rootPasswords[0]
    secret client_secret clientSecret secrets aws_secret_access_key SECRET_KEY secretKey credentials credential
    api_key apikey apiKey API-KEY X-Api-Key OPENAI_API_KEY access_key accessKeyId private_key account_key AccountKey
    signing_key wandb_key auth_token authToken authtoken auth_header Authorization bearer connection_string connStr
    sas sas_token webhook webhook_url slack_webhook token HF_TOKEN github_token my_token task.password db_pass
    access_tokens hub_token refreshToken basic_auth
"""


@pytest.mark.parametrize("key", SECRET_KEYS.split())
def test_a_name_can_say_that_its_text_is_secret(key: str) -> None:
    assert redaction.tree({"a": {key: "hunter2hunter2"}}) == {"a": {key: "***"}}
    assert redaction.tree({key: 7}) == {key: 7}
    assert redaction.tree({key: True}) == {key: True}
    assert redaction.tree({key: ""}) == {key: ""}


INNOCENT = {
    "num_tokens": "8192",
    "max_tokens": "all",
    "tokens": ["the", "cat"],
    "tokens_per_second": "fast",
    "special_tokens": {"cls": "[CLS]"},
    "use_cls_token": "yes",
    "cls_token": "CLASSIFY",
    "pad_token": "[PAD]",
    "mask_token": "MASKED",
    "stop_token": "DONE",
    "image_token": "picture",
    "class_token": "learned",
    "register_token": "shared",
    "token": "[CLS]",
    "bos": "<s>",
    "my_token": "<|endoftext|>",
    "separator_token": "</s>",
    "token_dim": "wide",
    "token_type": "segment",
    "token_embedding": "sinusoidal",
    "token_pattern": r"\w+",
    "token_url": "https://login.example.com/oauth/token",
    "tokenizer": "bert-base-uncased",
    "tokenizer_name": "sentencepiece",
    "detokenize": "nothing",
    "key": "label",
    "key_dim": "auto64",
    "keys": ["image", "label"],
    "num_key_value_heads": "grouped",
    "primary_key": "customer_id",
    "sort_key": "timestamp",
    "foreign_key": "orders.customer_id",
    "public_key_name": "production-2024",
    "key_name": "features",
    "keyboard": "qwertzlayout",
    "monkey": "capuchin1",
    "author": "Grace Hopper",
    "authority": "registry-7",
    "authors": ["Ada", "Alan"],
    "secretary": "Miss Moneypenny",
    "passthrough": "identity",
    "bypass": "residual",
    "passes": "forward",
    "forward_pass": "checkpointed",
    "compass": "north-west",
    "password_file": "secrets/db.txt",
    "secret_manager_project": "vision-prod-123",
    "credentials_path": "keys/service.json",
    "private_key": "~/.ssh/id_ed25519",
    "ssh_key": "/home/ada/.ssh/id_ed25519",
    "credentials": "/run/secrets/google.json",
    "access_key_name": "trainer-1234567",
    "session": "afternoon-2",
    "signature": "serving_default_v2",
    "serving_signature": "predict_images_1",
    "sasha": "sasha@example.com",
    "pin_memory": "always-on-1",
    "hash": COMMIT,
    "connection": "ethernet-10g",
    "string_column": "comments_2",
    "desk": "sk-learn-compatible-pipeline",
}


def test_innocent_keys_stay() -> None:
    assert len(INNOCENT) >= 40
    assert redaction.tree(INNOCENT) == INNOCENT
    redaction.learn(INNOCENT)
    for key, value in INNOCENT.items():
        for line in (f"{key}={value!r}", f"{key}: {value}", json.dumps({key: value}), f"--{key} {value}"):
            assert redaction.text(line) == line


@pytest.mark.parametrize(
    "value",
    [
        COMMIT,
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "123e4567-e89b-12d3-a456-426614174000",
        "/data/imagenet/train-00001-of-01024.tfrecord",
        "C:\\data\\train@2x.png",
        "https://example.com:8443/a/b?page=2&sort=key&lang=en#top",
        "http://localhost:8080/runs/compare@main",
        "http://[::1]:8080/a",
        "gs://bucket/path@v2",
        "gs://bucket/path:5@v2",
        "docker://ubuntu:22.04@sha256:9f86d081884c7d65",
        "git@github.com:keras-team/keras.git",
        "ssh://git@github.com/keras-team/keras",
        "grace.hopper+navy@example.com",
        "mailto:grace@example.com",
        "file:///home/ada/x@2x.png",
        "file://C:/x@2x.png",
        "${oc.env:HOME}/data",
        "*** do not change ***",
        "data/***/images",
        "Basic understanding of bearer bonds",
        "a token is a word: 'the'",
        "password: see the wiki page",
        "hf_pretrained_models_resnet_large",
        "lr=1e-3,epochs=5",
        "everstep train mnist/mlp trainer.train_steps=500",
        "1e-3",
    ],
)
def test_innocent_values_stay(value: str) -> None:
    assert redaction.tree({"note": value, "list": [value]}) == {"note": value, "list": [value]}
    assert not redaction.is_redacted(value)
    redaction.learn({"note": value})
    assert redaction.text(f"it is {value!r} now") == f"it is {value!r} now"


def test_plain_messages_stay() -> None:
    for message in (
        "task.api_key: is required",
        "task.password: unknown key; did you mean 'passport'?",
        "task.token: was redacted when the file was stored: give it again, or write ${secret:NAME}",
        "unexpected token: 'the'",
        "pass --password or set PASSWORD_FILE",
        "train | step:  1200 | steps/sec:  812.3 | loss: 0.31415 | tokens: 8192 | loss_per_token: 0.00012345",
        "if token == other_token_name_of_some_length:",
    ):
        assert redaction.text(message) == message


# -- which values ----------------------------------------------------------------------------------------------------

LOOKS = [
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


@pytest.mark.parametrize("secret", LOOKS)
def test_a_secret_is_told_by_its_form_wherever_it_is(secret: str) -> None:
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


# -- remembering -----------------------------------------------------------------------------------------------------


def test_what_was_learned_is_hidden_elsewhere() -> None:
    redaction.learn({"db": {"password": "hunter2-correct", "url": "redis://:swordfish9@cache/0"}})
    assert redaction.text("login of ada with hunter2-correct and swordfish9 failed") == (
        "login of ada with *** and *** failed"
    )
    assert redaction.tree({"note": "hunter2-correct", "x": ["a hunter2-correct b"]}) == {"note": "***", "x": ["***"]}


def test_a_command_line_is_learned() -> None:
    redaction.learn(
        ["train", "tiny", "task.password=ab,cd&ef(gh", "--api-key", "opensesame", "task.secret=", "xyzzy-1"]
    )
    assert redaction.text("ab,cd&ef(gh opensesame xyzzy-1 tiny") == "*** *** *** tiny"


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


def test_a_reference_stands_for_its_secret() -> None:
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
    assert redaction.text("MY_SECRET_1") == "***"  # the reference would show it


@pytest.mark.parametrize("value", ["***", "https://ada:***@db/x", "?sig=***", "Bearer ***", "a;Password=***;b"])
def test_a_stored_value_tells_that_it_was_redacted(value: str) -> None:
    assert redaction.is_redacted(value)


@pytest.mark.parametrize("value", ["", "*", "**", "****", "a***b", "*** x", "x:***", "a=***b", 3, None, ["***"]])
def test_other_values_were_not_redacted(value: Any) -> None:
    assert not redaction.is_redacted(value)


# -- text ------------------------------------------------------------------------------------------------------------

SPELLED = [
    ("password=hunter2", "password=***"),
    ("Login(user='ada', password='hun ter2')", "Login(user='ada', password='***')"),
    ('{"api_key": "abc", "user": "ada"}', '{"api_key": "***", "user": "ada"}'),
    (r'body: "{\"api_key\": \"abc\"}"', r'body: "{\"api_key\": \"***\"}"'),
    ("{'db': {'passwd': 'it\\'s'}}", "{'db': {'passwd': '***'}}"),
    ("  password: hunter2  # override", "  password: ***  # override"),
    ("secret: hunter2\nuser: ada", "secret: ***\nuser: ada"),
    ("password = hunter2", "password = ***"),
    ("run --password hunter2 --port 80", "run --password *** --port 80"),
    ("run --api-key 'abc'", "run --api-key '***'"),
    ("task.password: received 12345678 (int), expected str", "task.password: received *** (int), expected str"),
    ("a.secret: unknown key (received 'abc'); known: 'x'", "a.secret: unknown key (received '***'); known: 'x'"),
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


# -- log records -----------------------------------------------------------------------------------------------------


@pytest.fixture
def logged() -> Any:
    """A logger with the filter on its handler; returns both and what was written."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.addFilter(redaction.LogFilter())
    logger = logging.getLogger("redaction.test")
    logger.addHandler(handler)
    logger.propagate = False
    yield logger, out
    logger.removeHandler(handler)
    logger.propagate = True


def test_log_records_are_redacted(logged: Any) -> None:
    logger, out = logged
    redaction.learn({"password": "hunter2-correct"})
    logger.warning("%s has %s", "ada", "hunter2-correct")
    try:
        raise ValueError("bad hunter2-correct")
    except ValueError:
        logger.exception("failed with %(password)s", {"password": "hunter2-correct"}, stack_info=True)
    text = out.getvalue()
    assert "ada has ***\n" in text
    assert "ValueError: bad ***" in text
    assert "failed with ***" in text
    assert "hunter2" not in text.replace('"hunter2-correct"', "")  # the lines of this file, in the traceback
    assert "Traceback" in text


def test_a_record_without_secrets_is_left_alone() -> None:
    record = logging.makeLogRecord({"msg": "%s of %d", "args": ("step", 3)})
    try:
        raise ValueError("plain")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    before = dict(record.__dict__)
    assert redaction.LogFilter().filter(record)
    assert record.__dict__ == before


def test_a_whole_process_can_be_guarded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    made = logging.getLogRecordFactory()
    try:
        redaction.guard_process()
        guarded = logging.getLogRecordFactory()
        redaction.guard_process()
        assert logging.getLogRecordFactory() is guarded
        redaction.learn({"password": "hunter2-correct"})
        logging.getLogger("anybody").warning("has %s", "hunter2-correct")
        assert caplog.messages == ["has ***"]
        shown = warnings.formatwarning(UserWarning("has hunter2-correct"), UserWarning, "f.py", 1, "")
        assert shown == "f.py:1: UserWarning: has ***\n"
    finally:
        logging.setLogRecordFactory(made)


def test_learning_while_others_log() -> None:
    failures: list[str] = []

    def work(number: int) -> None:
        try:
            for count in range(40):
                secret = f"secret-{number}-{count:04d}"
                redaction.learn({"password": secret})
                failures.extend([secret] if secret in redaction.text(f"a {secret} b") else [])
        except Exception:
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_redacting_is_cheap() -> None:
    redaction.learn({f"p{n}": {"password": f"hunter-{n}-correct"} for n in range(30)})
    line = "train | step:  1200 | steps/sec:  812.3 | loss: 0.31415 | accuracy: 0.9"
    redaction.text(line)
    start = time.perf_counter()
    for _ in range(100):
        redaction.text(line)
    assert (time.perf_counter() - start) / 100 < 2e-3
    start = time.perf_counter()
    redaction.text("a-" * 20_000 + "://" + "b:" * 5_000 + "sk-" * 5_000 + "x=" * 5_000 + " " * 5_000)
    assert time.perf_counter() - start < 5


# -- properties ------------------------------------------------------------------------------------------------------

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


@given(TEXTS)
def test_redacting_text_twice_changes_nothing_more(message: str) -> None:
    once = redaction.text(message)
    assert redaction.text(once) == once


@given(TREES)
def test_redacting_a_tree_twice_changes_nothing_more(tree: Any) -> None:
    once = redaction.tree(tree)
    assert redaction.tree(once) == once


@given(PLAIN_TREES)
def test_a_tree_without_secrets_is_equal_to_its_copy(tree: Any) -> None:
    assert redaction.tree(tree) == tree


@given(SECRETS, TEXTS, TEXTS, TREES, st.booleans())
def test_a_remembered_value_never_appears(secret: str, before: str, after: str, tree: Any, named: bool) -> None:
    hiding._memory = Memory()
    redaction.remember(secret, "${secret:NAME}" if named else None)
    assert secret not in redaction.text(before + secret + after).replace("${secret:NAME}", "")
    for spelling in (json.dumps(secret)[1:-1], repr(secret)[1:-1], urllib.parse.quote(secret)):
        assert spelling not in redaction.text(f"{before}{spelling}{after}").replace("${secret:NAME}", "")
    hidden = redaction.tree({"a": tree, "b": [secret, before + secret], before + secret: 1})
    assert not [text for text in leaves(hidden) if secret in text.replace("${secret:NAME}", "")]


@given(SECRETS)
def test_whatever_is_stored_without_a_reference_is_known_to_be_missing(secret: str) -> None:
    hiding._memory = Memory()
    redaction.learn({"password": secret})
    for value in (secret, f"a {secret} b", f"x{secret}"):
        hidden = redaction.tree({"note": value})["note"]
        assert hidden == value or redaction.is_redacted(hidden)
