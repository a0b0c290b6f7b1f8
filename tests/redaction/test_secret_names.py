"""Names whose values are secret, and names and values that are not."""

import json

import pytest

from everstep import redaction

COMMIT = "3038ae5b6c1d2e3f4a5b6c7d8e9f0a1b2c3d4e5f"

SECRET_KEYS = """
    password passwd PASSWORD db_password dbPassword pgpassword MYSQL_PWD ssh-passphrase password2 rootPasswords[0]
    secret client_secret clientSecret secrets aws_secret_access_key SECRET_KEY secretKey credentials credential
    api_key apikey apiKey API-KEY X-Api-Key OPENAI_API_KEY access_key accessKeyId private_key account_key AccountKey
    signing_key wandb_key auth_token authToken authtoken auth_header Authorization bearer connection_string connStr
    sas sas_token webhook webhook_url slack_webhook token HF_TOKEN github_token my_token task.password db_pass
    access_tokens hub_token refreshToken basic_auth
"""


@pytest.mark.parametrize("key", SECRET_KEYS.split())
def test_text_under_the_name_of_a_secret_is_hidden(key: str) -> None:
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
    "PWD": "/tmp/project-1",
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
