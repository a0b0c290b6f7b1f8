"""Thirty secrets, the ways they are given to a run, and how to find them in what it leaves behind."""

import base64
import gzip
import io
import json
import re
import sqlite3
import urllib.parse
import zipfile
from collections.abc import Iterator

from leaky_experiment import DEFAULT_KEY

KEY_BLOCK = (
    "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nBKcwggSjAgEAAoIBAQC7\n-----END PRIVATE KEY-----\n"
)
ENVIRONMENT = {"DB_PASSWORD": "env-71c0d2e3b4", "CACHE_PASSWORD": "env/82d1+e3f4", "REGISTRY_TOKEN": "env-93e2f4a5c6"}

YAML = {
    "task": {
        "password": "file-0a1b2c3d4e",
        "notes": ["AKIAIOSFODNN7EXAMPLE", "push with ghp_16C7e42F292c6912E7710c838347Ae178B4a"],
        "services": {
            "mail": {"passwd": "naïve pässword 'quoted' \"twice\""},
            "disk": {"passphrase": "correct horse battery staple and some more words than fit into one line of a file"},
            "login": {"client_secret": "file-1b2c3d4e5f", "user": "ada"},
            "aws": {"secret_access_key": "wJalrXUtnFEMI/K7MDENG/bPxRfiCY+EXAMPLEKEY"},
            "ssh": {"private_key": KEY_BLOCK},
            "web": {"headers": {"Authorization": "Bearer file2c3d4e5f6a"}},
            "git": {"where": "https://ada:file-3d4e5f6a7b@git.example.com/x"},
            "jwt": {"session": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.dozjgNryP4J3jVmNHl0w5N"},
            "env": {"password": "${secret:DB_PASSWORD}", "cache": "redis://:${secret:CACHE_PASSWORD}@cache/0"},
        },
    }
}
JSON = {
    "task": {
        "services": {
            "azure": {"account_key": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsu==", "sas": "json-4e5f6a7b8c"},
            "blob": {"url": "https://b.example.com/x?sv=2022&sig=json5f6a7b8c9d%3D&se=1"},
            "chat": {
                "hook": "https://hooks.slack.com/services/T0/B0/json6a7b8c9d0e",
                "bot": "xox" + "b-json-7b8c9d0e1f",
            },
        }
    }
}
OVERRIDES = [
    "task.token=argv-8c9d0e1f2a",
    "task.services.wandb.api_key=argv-9d0e1f2a3b",
    "task.services.odd.password=we,ird&(argv-0e1f2a)'s $one",
    "task.services.get.url=https://dl.example.com/x?token=argv1f2a3b4c5d&page=2",
    "+task.services.number.password='90210735512'",
]
PARAMS = [
    "task.services.a.secret=params-2a3b4c5d6e,task.services.b.login=hf_paramsABCDEFGHIJKLMNOPqrstuvwxyz",
    "{task: {services: {c: {credentials: [params-3b4c5d6e7f, {json: params-4c5d6e7f8a}]}}}}",
    "task.services.d.model=sk-params5d6e7f8a9bABCDEFGH",
]
GIN = "login.password = 'gin-6e7f8a9b0c'"

SECRETS = [
    *ENVIRONMENT.values(),
    *[DEFAULT_KEY, "factory-8d2e4f6a1c", "file-0a1b2c3d4e", "AKIAIOSFODNN7EXAMPLE"],
    *["ghp_16C7e42F292c6912E7710c838347Ae178B4a", YAML["task"]["services"]["mail"]["passwd"]],
    *["correct horse battery staple", "file-1b2c3d4e5f", "wJalrXUtnFEMI/K7MDENG/bPxRfiCY+EXAMPLEKEY"],
    *["MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", "BKcwggSjAgEAAoIBAQC7", "file2c3d4e5f6a", "file-3d4e5f6a7b"],
    *["eyJzdWIiOiIxMjM0NSJ9", "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsu", "json-4e5f6a7b8c"],
    *["json5f6a7b8c9d", "json6a7b8c9d0e", "json-7b8c9d0e1f", "argv-8c9d0e1f2a", "argv-9d0e1f2a3b"],
    *["we,ird&(argv-0e1f2a)'s $one", "argv1f2a3b4c5d", "90210735512", "params-2a3b4c5d6e"],
    *["hf_paramsABCDEFGHIJKLMNOPqrstuvwxyz", "params-3b4c5d6e7f", "params-4c5d6e7f8a"],
    *["sk-params5d6e7f8a9bABCDEFGH", "gin-6e7f8a9b0c"],
]
REQUEST = [
    *["--import=leaky_experiment", "--config-file=plain.yaml", "--config-file=more.json", *OVERRIDES],
    *[f"--params-override={text}" for text in PARAMS],
    f"--gin_params={GIN}",
]


def unpacked(data: bytes) -> Iterator[bytes]:
    """Yields bytes as they are, and what they are the packed form of."""
    yield data
    if data[:2] == b"\x1f\x8b":
        yield from unpacked(gzip.decompress(data))
    elif zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in archive.namelist():
                yield name.encode()
                yield from unpacked(archive.read(name))
    elif data.startswith(b"SQLite format 3\0"):
        with sqlite3.connect(":memory:") as database:
            database.deserialize(data)
            yield "\n".join(database.iterdump()).encode()


def spellings(secret: str) -> set[bytes]:
    """A secret as it may be written; base64 by the part that does not depend on what is around it."""
    data = secret.encode()
    texts = {secret, repr(secret)[1:-1], json.dumps(secret)[1:-1], urllib.parse.quote(secret, safe=""), data.hex()}
    texts |= {urllib.parse.quote_plus(secret), secret.replace("'", "''"), secret.replace("\n", "\\n")}
    coded = {base64.b64encode(bytes(shift) + data)[4:-4] for shift in range(3)}
    return {text.encode() for text in texts} | {code for code in coded if len(code) >= 8}


def leaks(blobs: list[bytes]) -> list[str]:
    """The planted secrets that are in there, in whatever form."""
    whole = [re.sub(rb"[\s\\]+", b" ", blob) for packed in blobs for blob in unpacked(packed)]
    return [
        secret
        for secret in SECRETS
        if any(re.sub(rb"[\s\\]+", b" ", form) in blob for form in spellings(secret) for blob in whole)
    ]
