"""Loads hostile files under an audit hook; prints JSON.

Run as `python hostile_artefacts_child.py FOLDER CANARY SECRET`. First loads an honest file of each kind, so that all
modules are imported. After that, every audit event of Python counts unless it is known to be harmless. Libraries in C
report no events: the access times show whether the secret, or a file beside it, was read.
"""

import codecs
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile_artefacts
import keras
import numpy as np

from everstep.errors import UsageError
from everstep.task.initial.loading import load

ROOT, CANARY, SECRET = map(Path, sys.argv[1:4])
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
HARMLESS = {"builtins.id", "object.__getattr__", "os.listdir", "os.scandir", "os.walk", "os.fwalk", "sys._getframe"}
HARMLESS |= {"glob.glob", "pathlib.Path.glob", "pathlib.Path.rglob", "array.__new__", "mmap.__new__"}
# The asyncio loop in which Orbax reads uses a pair of sockets to wake itself; it opens no connection.
HARMLESS |= {
    "socket.__new__",
    "_thread.start_new_thread",
    "_thread.start_joinable_thread",
    "sys.set_asyncgen_hook_firstiter",
}
HARMLESS |= {"sys.set_asyncgen_hook_finalizer", "sys.unraisablehook", "code.__new__"}
INSTALLED = tuple({str(Path(keras.__file__).parents[1]), str(Path(os.__file__).parent), "<frozen"})
MAIN = threading.get_ident()

seen: list[str] = []
armed = False


def hook(event: str, args: tuple[Any, ...]) -> None:
    if armed and threading.get_ident() == MAIN and (what := suspicious(event, args)):
        seen.append(what)


def suspicious(event: str, args: tuple[Any, ...]) -> str | None:
    """Returns a description of a harmful event; None for a harmless one."""
    if event == "open":
        nameless = os.path.isdir(args[0])  # an anonymous file in that folder
        writes = (set(str(args[1])) & set("wax+") or (args[2] or 0) & WRITING) and not isinstance(args[0], int)
        return f"open {args[0]} {args[1]}" if (writes and not nameless) or str(args[0]) == str(SECRET) else None
    if event == "exec":
        return None if args[0].co_filename.startswith(INSTALLED) else f"exec {args[0].co_filename}"
    return None if event in HARMLESS else f"{event} {args}"[:200]


def watched(act: Callable[[], Any]) -> tuple[str, list[str]]:
    """Runs one payload; returns the outcome and the suspicious events."""
    global armed
    seen.clear()
    armed = True
    try:
        outcome = act()
    except UsageError as error:
        outcome = "refused" if str(error).startswith("task.init_checkpoint: ") else f"refused without the key: {error}"
    except BaseException as error:
        outcome = f"crashed with {type(error).__name__}: {error}"
    armed = False
    return outcome, list(seen)


def loading(path: Path) -> str:
    model = hostile_artefacts.model()
    report = load(model, str(path))
    taken = any(np.any(np.asarray(weight.value) == 7.0) for weight in model.weights)  # the values in the secret
    return "took the secret" if taken else f"loaded {len(report.matched)} of 2"


def memory(line: str) -> int:
    found = re.search(rf"{line}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024


def was_read(act: Callable[[], Any]) -> tuple[Any, bool]:
    outside = list(SECRET.parent.iterdir())
    for path in outside:
        os.utime(path, ns=(0, path.stat().st_mtime_ns))
    done = act()
    return done, any(path.stat().st_atime_ns != 0 for path in outside)


def main() -> None:
    maker = hostile_artefacts.Maker(ROOT, CANARY, SECRET)
    names = hostile_artefacts.payloads()
    SECRET.write_text("one\t1\n")
    paths = {name: getattr(maker, name)(hostile_artefacts.path_of(ROOT, name)) for name in names}
    for honest in ("model.keras", "a.weights.h5", "checkpoints", "ckpt-1"):
        loading(maker.honest / honest)
    codecs.lookup("ascii")
    sys.addaudithook(hook)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak memory
    before = memory("VmRSS")
    found = {name: was_read(lambda path=path: watched(lambda: loading(path))) for name, path in paths.items()}
    grown = memory("VmHWM") - before
    canary = CANARY.exists()
    evil = keras.saving.load_model
    probes = {
        "write": watched(lambda: Path("probe").write_text("x"))[1] != [],
        "process": watched(lambda: subprocess.run(["true"], check=True))[1] != [],
        "code": watched(lambda: exec("1"))[1] != [],
        "read": was_read(SECRET.read_bytes)[1],
        "lambda": bool(evil(paths["keras_lambda"], safe_mode=False)(np.zeros((1, 4)))[0].shape) and CANARY.exists(),
    }
    found = {name: [outcome, events, read] for name, ((outcome, events), read) in found.items()}
    print(json.dumps({"found": found, "probes": probes, "grown": grown, "canary": canary}))


if __name__ == "__main__":
    main()
