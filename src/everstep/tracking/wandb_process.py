"""The process that talks to Weights & Biases; it reads what to log, line by line, from its standard input.

W&B's package changes the process it is used in: it replaces `sys.exit` and the hook for uncaught errors, starts a
service of its own, prints, and waits at the end of the process for as long as its server does not answer. None of
that may happen to a training, so it happens here. This file is run by its path and imports nothing of everstep.

    {"open": {"id": …, "project": …, "mode": …, "directory": …, …}}     {"mode": "online", "rows": 120, "reason": ""}
    {"log": [{"op": "row", "row": 120, …}, …]}                         {"known": 0}
    {"finish": 0}                                                      {"finished": true}

Each line is answered by one, which is `{"error": "…"}` after a failure. Rows are numbered; when a run is resumed, W&B
reports how many it has, and these are skipped. When the input ends without `finish`, the training process is dead: the
run is closed, and this process ends.
"""

import contextlib
import glob
import html
import json
import os
import shutil
import sys
import threading
from typing import Any, TextIO

_SECONDS_AFTER_THE_END = 30.0
_GLOBAL_STEP = "global_step"


class WandbProcess:
    """One run on W&B."""

    def __init__(self) -> None:
        self._run: Any = None
        self._known = 0
        self._request: dict[str, Any] = {}

    def answer(self, line: dict[str, Any]) -> dict[str, Any]:
        """Carries out a line; returns the answer."""
        if "open" in line:
            return self._open(line["open"])
        if "log" in line:
            return {"known": sum(self._log(entry) for entry in line["log"])}
        return self.finish(line["finish"])

    def _open(self, request: dict[str, Any]) -> dict[str, Any]:
        import wandb

        reason = ""
        if request["mode"] == "online" and not wandb.login(prompt=False):
            if not request["fallback"]:
                return {"error": "no API key: wandb login, or set WANDB_API_KEY"}
            request = {**request, "mode": "offline"}
            reason = "no API key"
        self._request = request
        self._remove_old(keep=1)
        self._run = self._init(wandb)
        self._run.define_metric(_GLOBAL_STEP, hidden=True)
        self._run.define_metric("*", step_metric=_GLOBAL_STEP)
        self._known = self._run.starting_step if self._run.resumed else 0
        return {"mode": request["mode"], "rows": self._known, "reason": reason, "url": self._run.url or ""}

    def _init(self, wandb: Any) -> Any:
        request = self._request
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            label_disable=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            init_timeout=request["init_seconds"],
            finish_timeout=request["finish_seconds"],
            finish_timeout_raises=True,
        )
        return wandb.init(
            id=request["id"],
            project=request["project"],
            entity=request["entity"] or None,
            name=request["name"],
            mode=request["mode"],
            dir=request["directory"],
            resume="allow",
            reinit="create_new",
            settings=settings,
        )

    def _log(self, entry: dict[str, Any]) -> int:
        """Logs an entry; returns how many numbers of it W&B has already."""
        if entry["op"] == "config":
            self._run.config.update(_nested(entry["values"]), allow_val_change=True)
        elif entry["op"] == "tags":
            self._run.tags = tuple(dict.fromkeys([*(self._run.tags or ()), *entry["values"]]))
        elif entry["op"] == "notes":
            self._run.notes = entry["values"]
        elif entry["row"] < self._known:
            return len(entry["values"]) if entry["op"] == "row" else 0
        else:
            values = {**_values(entry), _GLOBAL_STEP: entry["step"], "_timestamp": entry["time"] / 1000}
            self._run.log(values, step=entry["row"], commit=True)
        return 0

    def finish(self, exit_code: int) -> dict[str, Any]:
        """Waits until W&B has everything, or the file is complete."""
        if self._run is not None:
            import wandb

            run, self._run = self._run, None
            run.finish(exit_code=exit_code)
            self._remove_old(keep=0)
            wandb.teardown(exit_code)  # waits until W&B's service has ended
        return {"finished": True}

    def _remove_old(self, keep: int) -> None:
        """Removes folders of earlier attempts, but for the newest: each has the whole run, from its first row on."""
        folder, run_id = self._request["directory"], glob.escape(self._request["id"])
        found = glob.glob(os.path.join(glob.escape(folder), "wandb", f"*run-*-{run_id}"))
        latest = os.path.realpath(os.path.join(folder, "wandb", "latest-run"))
        old = sorted(path for path in found if os.path.realpath(path) != latest or keep)
        for path in old[: len(old) - keep]:
            shutil.rmtree(path, ignore_errors=True)


def _values(entry: dict[str, Any]) -> dict[str, Any]:
    """Returns what a row is on W&B; a file that is gone is left out, and its row stays."""
    import numpy as np
    import wandb

    if entry["op"] == "row":
        return {name: float(value) for name, value in entry["values"].items()}
    if entry["op"] == "histograms":
        counted = ((name, (np.array(one["counts"]), np.array(one["edges"]))) for name, one in entry["values"].items())
        return {f"weights/{name}": wandb.Histogram(np_histogram=pair) for name, pair in counted}
    files = [path for path in entry["files"] if os.path.exists(path)]
    images = [path for path in files if path.endswith(".png")]
    if images:
        pairs = zip(images, [*entry["captions"], *[""] * len(images)], strict=False)
        return {entry["name"]: [wandb.Image(path, caption=caption or None) for path, caption in pairs]}
    if not files:
        return {}
    with open(files[0], encoding="utf-8") as file:
        return {entry["name"]: wandb.Html(f"<pre>{html.escape(file.read())}</pre>", inject=False)}


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    """Returns values by dotted names as dicts in dicts."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *parents, leaf = name.split(".")
        inner = tree
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[leaf] = value
    return tree


def _protocol() -> tuple[TextIO, TextIO]:
    """Returns both ends; from now on everything else that is printed goes to standard error."""
    given, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.dup2(2, 1)
    return given, answers


def main() -> None:
    """Answers line by line, until the input ends."""
    given, answers = _protocol()
    process = WandbProcess()
    for line in given:
        try:
            answer = process.answer(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        with contextlib.suppress(OSError):  # the reader is gone: the input ends next
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    threading.Timer(_SECONDS_AFTER_THE_END, lambda: os._exit(1)).start()  # whatever hangs
    with contextlib.suppress(Exception):
        process.finish(1)
    os._exit(0)  # W&B's service ends with this process


if __name__ == "__main__":
    sys.stdout.flush()
    main()
