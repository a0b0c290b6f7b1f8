"""Feeds hostile configurations to everything that reads one, under an audit hook; prints JSON.

Run as `python hostile_child.py PAYLOADS CANARY SECRET`, in the root of the sample project. After a warm-up with
honest inputs, which loads whatever is loaded late, every event that Python reports counts, unless it is known to
be harmless.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import yaml

import everstep
import everstep.cli.main
import everstep.storage
from everstep.config import apply, load_file
from everstep.config.allowed import resolve
from everstep.config.instantiation import instantiate
from everstep.errors import UsageError
from everstep.model_garden.gin import bindings as gin_bindings

OPEN = ("everstep", "keras", "my_project", "trusted_lib", "flat_module")
SOURCES = (str(Path.cwd()), str(Path(everstep.__file__).parent), str(Path(keras.__file__).parent))
HARMLESS = {"builtins.id", "object.__getattr__", "os.listdir", "os.scandir", "sys._getframe"}
UNKNOWN = next(name for name in ("wave", "fileinput", "sched", "tabnanny") if name not in sys.modules)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

HONEST = {
    "resolve": ["my_project.models.Net", "keras.layers.Dense", "everstep.Task", "my_project.models.Nett", "nowhere.x"],
    "instantiate": [{"_target_": "my_project.models.Net"}, {"_target_": "my_project.models.refuse"}, {"_target_": 3}],
    "file": ["a: 1", "a: [", "a: &b {c: 1}\nd: *b"],
    "gin": [
        "import my_project.gin_parts\narea.width = 3",
        "from __gin__ import dynamic_registration\nimport my_project.gin_parts as p\np.Box.depth = @p.unregistered()",
        "aera.width = 1",
        "area.wdith = 1",
        "TrainerConfig.train_steps = 3",
        "a.b = [",
        "a.b = (",
        "a.b = c",
    ],
    "override": ["trainer.train_steps=3", "trainer.train_stesp=3", "trainer.train_steps=${oc.env:HOME}",
                 "trainer.train_steps=${nothing:1}", "trainer.train_steps=${trainer.nothing}"],
}  # fmt: skip

MAIN = threading.get_ident()  # a new thread is an event of this one; what the backend's own threads do is not
seen: list[str] = []
armed = False


def hook(event: str, args: tuple[Any, ...]) -> None:
    if armed and threading.get_ident() == MAIN and (what := suspicious(event, args)):
        seen.append(what)


def suspicious(event: str, args: tuple[Any, ...]) -> str | None:
    """Returns what harm an event means; empty if none."""
    if event == "import":
        return None if args[0].partition(".")[0] in OPEN else f"import {args[0]}"
    if event == "exec":
        return None if args[0].co_filename.startswith(SOURCES) else f"exec {args[0].co_filename}"
    if event == "compile":  # gin reads literals as syntax trees, typing compiles names; to run them would be an exec
        is_name = isinstance(args[0], str) and args[0].replace(".", "").isidentifier()
        return None if is_name or args[1] == "<unknown>" else f"compile {args[1]}"
    if event == "open":
        writes = set(str(args[1])) & set("wax+") or (args[2] or 0) & WRITING
        return f"open {args[0]} {args[1]}" if writes or str(args[0]) == sys.argv[3] else None
    if event == "object.__setattr__":  # a function's code would be another matter
        return None if args[1] in ("__name__", "__qualname__") else f"set {args[1]}"
    return None if event in HARMLESS else event


def watched(act: Callable[..., Any], *args: Any) -> tuple[str, list[str]]:
    """Runs one payload; returns its outcome, and the events that Python reported."""
    global armed
    seen.clear()
    armed = True
    try:
        value = act(*args)
        outcome = "data" if is_plain(value) else f"returned {value!r}"
    except UsageError:
        outcome = "refused"
    except BaseException as error:
        outcome = f"crashed with {type(error).__name__}: {error}"
    armed = False
    return outcome, list(seen)


def is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(is_plain(item) for pair in value.items() for item in pair)
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return value is None or type(value) in (str, int, float, bool, bytes)


def build_and_look(tree: dict[str, Any]) -> Any:
    """Builds an object of the project's; returns the argument it received, which must be the one that was written."""
    units = instantiate(tree).units
    return units if units == tree["units"] else object()


def run_gin(text: str) -> None:
    bindings = gin_bindings.read([], [text])
    bindings.layers(everstep.ExperimentConfig())
    bindings.apply()


def run_gin_file(path: str) -> None:
    bindings = gin_bindings.read([path])
    bindings.layers(everstep.ExperimentConfig())
    bindings.apply()


def override(text: str) -> None:
    apply(everstep.ExperimentConfig(), overrides=[text])


ACTS: dict[str, Callable[..., Any]] = {
    "resolve": resolve,
    "instantiate": instantiate,
    "instantiate-data": build_and_look,
    "file": load_file,
    "file-data": load_file,
    "gin": run_gin,
    "gin-file": run_gin_file,
    "override": override,
}


def stored(kind: str, name: str, payload: Any) -> Any:
    """Returns a payload as its reader takes it: what comes in a file is written into one."""
    if kind not in ("file", "file-data", "gin-file"):
        return payload
    path = Path("payloads") / f"{kind}-{name}.{'gin' if kind == 'gin-file' else 'yaml'}"
    path.parent.mkdir(exist_ok=True)
    path.write_text(payload, encoding="utf-8")
    return str(path)


def probes() -> dict[str, Callable[[], Any]]:
    """Harmful actions that the hook must see; otherwise the whole test proves nothing."""
    return {
        "write": lambda: Path("probe").write_text("x"),
        "import": lambda: __import__(UNKNOWN),
        "exec": lambda: exec("1"),
        "socket": lambda: socket.socket().close(),
        "process": lambda: subprocess.run(["true"], check=True),
        "shell": lambda: os.system("true"),
        "remove": lambda: shutil.rmtree("nowhere", ignore_errors=True),
        "change-code": lambda: setattr(suspicious, "__code__", suspicious.__code__),
        "read-the-secret": lambda: Path(sys.argv[3]).read_text(),
    }


def main() -> None:
    text = Path(sys.argv[1]).read_text(encoding="utf-8").replace("CANARY", sys.argv[2]).replace("SECRET", sys.argv[3])
    text = text.replace("DEEP", "[" * 9999).replace("LONG", f"0x{'f' * 9999}")
    payloads = yaml.safe_load(text)
    payloads["gin-file"] = payloads["gin"]
    ready = {
        f"{kind}: {name}": (ACTS[kind], stored(kind, name, payload))
        for kind, group in payloads.items()
        for name, payload in group.items()
    }
    for kind, inputs in HONEST.items():
        for index, honest in enumerate(inputs):
            watched(ACTS[kind], stored(kind, f"honest-{index}", honest))
    sys.addaudithook(hook)
    before = sorted(Path().rglob("*"))
    found = {name: watched(*payload) for name, payload in ready.items()}
    written = sorted(set(Path().rglob("*")) - set(before))
    seeing = {name: watched(act) for name, act in probes().items()}
    print(json.dumps({"found": found, "written": list(map(str, written)), "probes": seeing}))


if __name__ == "__main__":
    main()
