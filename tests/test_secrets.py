"""No secret reaches a sink: thirty are planted in every way there is, and looked for in all that is left behind."""

import base64
import concurrent.futures
import dataclasses
import gzip
import hashlib
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.children import forked

from everstep import redaction
from everstep.config import apply, dialect, load_file
from everstep.loop.callback_state import AttributeState
from everstep.redaction import hiding
from everstep.redaction.known_secrets import KnownSecrets
from everstep.run.resume_checks import accepted_changes
from leaky_experiment import DEFAULT_KEY, DEFAULT_SOURCE, LeakyConfig
from planted_secrets import ENVIRONMENT, GIN, JSON, KEY_BLOCK, REQUEST, SECRETS, YAML, leaks

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
EVERSTEP = str(Path(sys.executable).with_name("everstep"))
BACKEND = os.environ.get("KERAS_BACKEND", "jax")

# -- where it is looked for ------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Run:
    """What a process left behind."""

    directory: Path
    code: int
    out: bytes
    err: bytes

    def files(self, *patterns: str) -> list[bytes]:
        """The contents of files in the run directory."""
        paths = {path for pattern in patterns for path in self.directory.glob(pattern) if path.is_file()}
        return [path.read_bytes() for path in sorted(paths)]

    def says(self, *words: str) -> list[bytes]:
        """What a command prints about the run."""
        done = subprocess.run([EVERSTEP, *words, str(self.directory)], capture_output=True, check=True, timeout=300)
        return [done.stdout, done.stderr]


# A later sink adds its line. Each must have something in it, or nothing was tested.
SINKS: dict[str, Callable[[Run], list[bytes]]] = {
    "standard output": lambda run: [run.out],
    "standard error": lambda run: [run.err],
    "config.yaml": lambda run: run.files("config.yaml"),
    "run.json": lambda run: run.files("run.json"),
    "history.csv": lambda run: run.files("history.csv"),
    "metrics.jsonl": lambda run: run.files("metrics.jsonl"),
    "TensorBoard": lambda run: run.files("train/*", "validation/*"),
    "checkpoints": lambda run: run.files("checkpoints/**/*"),
    "gin": lambda run: run.files("operative_config.gin"),
    "everstep runs show": lambda run: run.says("runs", "show"),
    "any other file": lambda run: run.files("**/*", "**/.*"),
}
# Those that take long to fill.
SLOW_SINKS: dict[str, Callable[[Run], list[bytes]]] = {
    "exported model": lambda run: run.files("export/model.keras", "export/saved_model/**/*"),
    "MLflow's spool": lambda run: run.files("spool/*"),
    "W&B's files": lambda run: run.files("wandb/**/*"),
    "MLflow's database": lambda run: run.files("../mlflow.db", "../mlartifacts/**/*"),
}


# -- runs ------------------------------------------------------------------------------------------------------------


def prepare(place: Path) -> dict[str, str]:
    """Puts the experiment and its files into a directory; returns the environment."""
    shutil.copy(HERE / "leaky_experiment.py", place)
    (place / "plain.yaml").write_text(dialect.dump(YAML))
    (place / "more.json").write_text(json.dumps(JSON))
    return {**{k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}, **ENVIRONMENT}


def train(place: Path, *words: str) -> Run:
    """Runs `everstep train leaky` with all secrets."""
    place.mkdir()
    command = [EVERSTEP, "train", "leaky", *REQUEST, f"--backend={BACKEND}", "--model-dir=run", *words]
    command += ["trainer.tracking.jsonl=true"]
    done = forked.run(command, backend=BACKEND, cwd=place, env=prepare(place), capture_output=True, timeout=300)
    return Run(place / "run", done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """A run that goes well, and one that fails in the middle."""
    place = tmp_path_factory.mktemp("secrets")
    requests = {"good": ["--no-export"], "failed": ["--no-export", "task.fail_at=5"]}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        started = {name: pool.submit(train, place / name, *words) for name, words in requests.items()}
        return {name: future.result() for name, future in started.items()}


def test_there_are_thirty() -> None:
    assert len(set(SECRETS)) == len(SECRETS) >= 30


def test_the_runs_end_as_they_should(runs: dict[str, Run]) -> None:
    good, failed = runs["good"], runs["failed"]
    assert (good.code, failed.code) == (0, 1), good.err.decode() + failed.err.decode()
    assert b"Traceback" in failed.err
    assert b"ConnectionError: lost postgres://trainer:***@db.example.com/train" in failed.err
    record = json.loads((failed.directory / "run.json").read_text())
    assert 0 < record["step"] < 8
    assert record["attempts"][0]["reason"].startswith("ConnectionError: lost postgres://trainer:***@db.example.com")


def test_the_task_had_the_real_values(runs: dict[str, Run]) -> None:
    digests = json.loads((runs["good"].directory.parent / "received.json").read_text())
    services = YAML["task"]["services"]
    texts = [DEFAULT_KEY, DEFAULT_SOURCE, KEY_BLOCK, services["mail"]["passwd"], services["disk"]["passphrase"]]
    texts += [*ENVIRONMENT.values()][::2] + ["redis://:env/82d1+e3f4@cache/0", "we,ird&(argv-0e1f2a)'s $one"]
    texts += ["argv-8c9d0e1f2a", "params-4c5d6e7f8a", "gin-6e7f8a9b0c"]
    assert not [text for text in texts if hashlib.sha256(text.encode()).hexdigest() not in digests]


@pytest.mark.parametrize("name", ["good", "failed"])
@pytest.mark.parametrize("sink", SINKS)
def test_no_secret_reaches_a_sink(runs: dict[str, Run], sink: str, name: str) -> None:
    content = SINKS[sink](runs[name])
    if (sink, name) != ("standard output", "failed"):
        assert any(content), f"there is nothing in {sink}"
    assert leaks(content) == []


def test_other_values_are_kept(runs: dict[str, Run]) -> None:
    task = load_file(runs["good"].directory / "config.yaml")["task"]
    assert (task["num_tokens"], task["cls_token"], task["notes"]) == (8192, "CLASSIFY-0", ["***", "***"])
    services = task["services"]
    assert services["login"] == {"client_secret": "***", "user": "ada"}
    assert services["git"]["where"] == "https://ada:***@git.example.com/x"
    assert services["blob"]["url"] == "https://b.example.com/x?sv=2022&sig=***&se=1"
    assert services["get"]["url"] == "https://dl.example.com/x?token=***&page=2"
    assert services["env"] == {
        "password": "${secret:DB_PASSWORD}",
        "cache": "redis://:${secret:CACHE_PASSWORD}@cache/0",
    }
    assert b"distance to postgres://trainer:***@db.example.com/train" in runs["good"].files("history.csv")[0]


@pytest.mark.full
def test_no_secret_reaches_a_slow_sink(tmp_path: Path) -> None:
    tracked = ["trainer.tracking.mlflow=true", "trainer.tracking.wandb=true", "trainer.tracking.wandb_mode=offline"]
    run = train(tmp_path / "slow", *tracked)
    assert run.code == 0, run.err.decode()
    assert not [sink for sink, content in (SINKS | SLOW_SINKS).items() if not any(content(run))]
    assert {sink: found for sink, content in (SINKS | SLOW_SINKS).items() if (found := leaks(content(run)))} == {}


# -- requests that cannot be carried out -----------------------------------------------------------------------------

WRONG = {
    "a typo beside a secret": [*REQUEST, "trainer.train_stepz=3"],
    "a typo in the name of a secret": ["task.pasword=argv-8c9d0e1f2a"],
    "a typo in a file of secrets": ["--config-file=typo.yaml"],
    "a number for a secret": ["task.password=90210735512"],
    "a list for a secret": ["task.password=[argv-8c9d0e1f2a, argv-9d0e1f2a3b]"],
    "a secret for a number": ["task.num_tokens=sk-params5d6e7f8a9bABCDEFGH"],
    "a secret for a section": ["task.services=https://ada:file-3d4e5f6a7b@git.example.com"],
    "long values that are cut": ["--config-file=cut.yaml"],
    "a password that looks like a tag": ["--config-file=tag.yaml"],
    "a password that looks like an alias": ["--config-file=alias.yaml"],
    "a space too many": ["task.password=", "argv-8c9d0e1f2a"],
    "inline YAML that is none": ["--params-override={task: {password: [argv-8c9d0e1f2a}"],
    "a quote that is not closed": ["task.password=\"we,ird&(argv-0e1f2a)'s $one"],
    "a value that the config refuses": [*REQUEST, "task.num_tokens=0"],
    "a directory with a password": ["--model-dir=gs://ada:file-3d4e5f6a7b@bucket/x"],
    "a file with a password": ["--config-file=https://ada:file-3d4e5f6a7b@git.example.com/x.yaml"],
    "an option there is none of": ["--api-key", "argv-9d0e1f2a3b"],
    "a stored file whose values are missing": ["--config-file=stored.yaml"],
    "gin that names nothing": [f"--gin_params={GIN}", "--gin_params=logout.password = 'gin-6e7f8a9b0c'"],
}
FILES = {
    "typo.yaml": "task: {password: file-0a1b2c3d4e, pasword: file-1b2c3d4e5f, servces: {api_key: argv-9d0e1f2a3b}}",
    "cut.yaml": f"trainer: {{train_steps: {{{'x' * 90}: 1, password: {'file-0a1b2c3d4e' * 9}}}}}",
    "stored.yaml": "task: {notes: ['***'], token: argv-8c9d0e1f2a}",
    "tag.yaml": "task:\n  password: !file-0a1b2c3d4e\n",
    "alias.yaml": "task:\n  password: *file-0a1b2c3d4e\n",
}

# Each request is answered by a process of its own, which begins where the imports are done.
ANSWER = """
import json, os, sys
import everstep.cli.config, everstep.cli.train, gin, omegaconf
from everstep.cli.main import main
children = []
for number, words in enumerate(json.load(open("requests.json"))):
    children.append(os.fork())
    if children[-1] == 0:
        for descriptor in (1, 2):
            os.dup2(os.open(f"{number}.{descriptor}", os.O_WRONLY | os.O_CREAT), descriptor)
        code = main(words)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The output of each wrong request, and of a printed configuration."""
    place = tmp_path_factory.mktemp("wrong")
    environment = prepare(place)
    for name, text in FILES.items():
        (place / name).write_text(text)
    train = ["train", "leaky", "--import=leaky_experiment", "--backend=jax"]
    requests = {name: [*train, *words] for name, words in WRONG.items()}
    requests["crash"] = ["train", "crash", "--import=leaky_experiment"]
    for name, words in {"config": [], "diff": ["--diff=factory"], "schema": ["--schema"]}.items():
        requests[name] = ["config", "leaky", *REQUEST, "--backend=jax", *words]
    (place / "requests.json").write_text(json.dumps([*requests.values()]))
    done = subprocess.run(
        [sys.executable, "-c", ANSWER], cwd=place, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    outputs = [[(place / f"{number}.{kind}").read_bytes() for kind in (1, 2)] for number in range(len(requests))]
    codes = json.loads(done.stdout)
    return {name: Run(place, code, *both) for name, code, both in zip(requests, codes, outputs, strict=True)}


@pytest.mark.parametrize("name", WRONG)
def test_no_secret_is_in_the_answer_to_a_wrong_request(answers: dict[str, Run], name: str) -> None:
    answer = answers[name]
    assert (answer.code, answer.out) == (2, b""), answer.err.decode()
    assert answer.err.startswith(b"everstep: error: ")
    assert b"Traceback" not in answer.err
    assert leaks([answer.err]) == []


def test_no_secret_is_in_a_traceback(answers: dict[str, Run]) -> None:
    assert answers["crash"].code == 1
    assert b"RuntimeError: no access with ***" in answers["crash"].err
    assert leaks([answers["crash"].out, answers["crash"].err]) == []


@pytest.mark.parametrize("name", ["config", "diff", "schema"])
def test_no_secret_is_in_a_printed_configuration(answers: dict[str, Run], name: str) -> None:
    assert answers[name].code == 0, answers[name].err.decode()
    assert b"password" in answers[name].out
    assert leaks([answers[name].out, answers[name].err]) == []


def test_answers_still_help(answers: dict[str, Run]) -> None:
    assert (
        b"task.pasword: received '***', unknown key: did you mean 'password'"
        in answers["a typo in the name of a secret"].err
    )
    assert b"task.password: received ***, expected str" in answers["a number for a secret"].err
    assert b"trainer.train_stepz: received 3, unknown key" in answers["a typo beside a secret"].err


# -- the test itself -------------------------------------------------------------------------------------------------


def test_a_leak_would_be_found(tmp_path: Path) -> None:
    secret = SECRETS[0]
    database = sqlite3.connect(tmp_path / "x.db")
    database.execute("create table t (name text)")
    database.execute("insert into t values (?)", (secret,))
    database.commit()
    database.close()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.json", gzip.compress(json.dumps({"x": secret}).encode()))
    for blob in (packed.getvalue(), (tmp_path / "x.db").read_bytes(), base64.b64encode(f"user:{secret}!".encode())):
        assert leaks([blob]) == [secret]
    assert leaks([b"correct horse\n    battery staple"]) == ["correct horse battery staple"]


def test_a_callback_remembers_no_secret() -> None:
    """What it has found out goes into checkpoints; what it has logged in with does not."""
    callback = types.SimpleNamespace(patience=3)
    state = AttributeState(callback, "callbacks/0")
    vars(callback).update(best=0.5, session_token="argv-8c9d0e1f2a", server=DEFAULT_SOURCE)
    assert state.get({})["attributes"] == {"best": 0.5}


def test_a_run_with_secrets_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks and references in the stored configuration are no changes; anything else still is."""
    monkeypatch.setattr(hiding, "_known", KnownSecrets())
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    overrides = [json.dumps(YAML["task"])]
    params = apply(LeakyConfig(), overrides=overrides)
    (tmp_path / "config.yaml").write_text(dialect.dump(redaction.tree(dialect.escaped(params.as_dict()))))
    assert accepted_changes(tmp_path, apply(LeakyConfig(), overrides=[*overrides, "password=another-9f8e7d"])) == []
    changes: Any = accepted_changes(tmp_path, params.replace(num_tokens=4), ["num_tokens"])
    assert [str(change) for change in changes] == ["num_tokens: 8192 -> 4"]
