"""The page of a sweep, one self-contained HTML file in the style of the report, and its table for programs."""

import contextlib
import datetime
import fcntl
import html as markup
import importlib.resources
import math
import os
import random
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction, storage
from everstep.evaluation.report.html_page import as_json, page_file, policy
from everstep.launch.sweep.study import CONTINUES, REASON, SweepStudy, load_optuna, quiet_optuna, value_of

PAGE, TABLE = "sweep.html", "trials.json"

_SHARED = ("dom.js", "format.js", "charts.js")  # of the report
_RELOAD_SECONDS = 5
_RESAMPLES, _MOST_RESAMPLED, _LEAST_RESAMPLED = 12, 200, 8


def write(study: SweepStudy, running: bool = False, importance: bool = True) -> Path:
    """Writes `sweep.html` and `trials.json` in a sweep's directory; returns the path of the page.

    If another process is writing them, nothing is done.

    Args:
      study: The sweep.
      running: Whether workers are at work: then the page reloads itself.
      importance: Whether to compute the importance of keys, which takes a second.
    """
    path = study.directory / PAGE
    with _alone(study.directory) as alone:
        if alone:
            table = summary(study)
            storage.write_json(study.directory / TABLE, table)
            data = page_data(study, table, running, importance)
            storage.write_bytes(path, html(data, running).encode("utf-8", errors="replace"))
    return path


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[bool]:
    descriptor = os.open(directory / "locks" / "page", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


def summary(study: SweepStudy) -> dict[str, Any]:
    """Returns the sweep for programs: its trials with their values and results, the best, the steps saved."""
    definition = study.definition
    trials = study.trials()
    rows = [_row(study, trial) for trial in trials]
    pruned = [row for row in rows if row["state"] == "pruned"]
    front = _front(study, trials)
    ranked = [trial for trial in study.ranked() if trial.state.name == "COMPLETE"]
    return {
        "name": study.directory.name,
        "target": definition.target.name,
        "metrics": list(definition.metrics),
        "modes": list(definition.modes),
        "sampler": definition.sampler,
        "pruner": definition.pruner,
        "wanted": study.wanted,
        "finished": sum(row["state"] in ("complete", "pruned", "fail") and row["continues"] is None for row in rows),
        "best": ranked[0].number if ranked else None,
        "front": front,
        "steps_saved": sum(max(0, (row["train_steps"] or 0) - (row["steps"] or 0)) for row in pruned),
        "trials": rows,
    }


def _row(study: SweepStudy, trial: Any) -> dict[str, Any]:
    facts = trial.user_attrs.get("facts", {})
    home = trial.user_attrs.get(CONTINUES, trial.number)
    place = study.definition.target.place(study.directory, home)
    ended = trial.datetime_complete
    value = value_of(trial)
    return {
        "number": trial.number,
        "state": trial.state.name.lower(),
        "value": value,
        "results": list(trial.values) if trial.state.name == "COMPLETE" else [value],
        "values": redaction.tree(study.definition.space.stored(trial)),
        "continues": trial.user_attrs.get(CONTINUES),
        "directory": os.path.relpath(place, study.directory),
        "steps": facts.get("steps"),
        "train_steps": facts.get("train_steps"),
        "digest": facts.get("digest"),
        "seconds": (ended - trial.datetime_start).total_seconds() if ended and trial.datetime_start else None,
        "reason": trial.user_attrs.get(REASON),
    }


def _front(study: SweepStudy, trials: Sequence[Any]) -> list[int]:
    """Returns the numbers of the trials that no other one beats in every metric."""
    if not study.definition.is_multi_objective:
        return []
    signs = [1.0 if mode == "min" else -1.0 for mode in study.definition.modes]
    done = [
        (t.number, [s * v for s, v in zip(signs, t.values, strict=True)]) for t in trials if t.state.name == "COMPLETE"
    ]

    def beaten(values: list[float]) -> bool:
        return any(other != values and all(o <= v for o, v in zip(other, values, strict=True)) for _, other in done)

    return [number for number, values in done if not beaten(values)]


# -- the page ----------------------------------------------------------------------------------------------------------


def page_data(study: SweepStudy, table: Mapping[str, Any], running: bool, importance: bool) -> dict[str, Any]:
    """Returns the data of the page."""
    definition = study.definition
    now = datetime.datetime.now(datetime.UTC)
    return {
        "title": study.directory.name,
        "running": running,
        "wanted": table["wanted"],
        "metrics": [
            {"name": name or "loss", "mode": mode} for name, mode in zip(table["metrics"], table["modes"], strict=True)
        ],
        "best": table["front"] or ([] if table["best"] is None else [table["best"]]),
        "front": table["front"],
        "stepsSaved": table["steps_saved"],
        "facts": [
            ["target", definition.target.name],
            ["metric", definition.shown_metric],
            ["sampler", definition.sampler],
            ["pruner", definition.pruner],
            ["written", f"{now:%Y-%m-%d %H:%M:%S} UTC"],
        ],
        "keys": [
            {
                "key": one.key,
                "kind": one.kind,
                "low": one.low,
                "high": one.high,
                "log": one.log,
                "choices": list(one.choices),
            }
            for one in definition.space.dimensions
        ],
        "importance": importances(study) if importance else [],
        "resamples": _RESAMPLES,
        "trials": [_shown(study.directory, row) for row in table["trials"]],
    }


def _shown(directory: Path, row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("number", "state", "values", "steps")
    note = row["reason"] or ("" if row["continues"] is None else f"continues trial {row['continues']}")
    seconds = None if row["seconds"] is None else round(row["seconds"], 1)
    finite = [value if value is not None and math.isfinite(value) else None for value in row["results"]]
    return {
        **{name: row[name] for name in names},
        "results": finite,
        "value": finite[0],
        "seconds": seconds,
        "note": note,
        "link": _link(directory, row["directory"]),
    }


def _link(directory: Path, place: str) -> str | None:
    """Returns the file that shows a trial best: its report, else its folder."""
    for name in ("reports/report.html", ""):
        if (directory / place / name).exists():
            return f"{place}/{name}"
    return None


def html(data: Any, running: bool) -> str:
    """Returns the page."""
    own = importlib.resources.files("everstep.launch.sweep").joinpath("page")
    style = page_file("page.css") + own.joinpath("sweep.css").read_text("utf-8")
    parts = [*map(page_file, _SHARED), own.joinpath("sweep.js").read_text("utf-8")]
    script = '(() => {\n"use strict";\n' + "\n".join(parts) + "\n})();\n"
    return string.Template(own.joinpath("sweep.html").read_text("utf-8")).substitute(
        title=markup.escape(data["title"]),
        refresh=f'<meta http-equiv="refresh" content="{_RELOAD_SECONDS}">\n' if running else "",
        policy=policy(style, script),
        style=style,
        data=as_json(data),
        script=script,
    )


def importances(study: SweepStudy) -> list[dict[str, Any]]:
    """Returns how much each key explains, by PED-ANOVA on resamplings of the trials: their mean, and how far they vary.

    With few trials the order is mostly chance, and the intervals say so; with less than eight there is none.
    """
    done = [trial for trial in study.trials() if trial.state.name == "COMPLETE"]
    if len(done) < _LEAST_RESAMPLED or len(study.definition.space.dimensions) < 2:
        return []
    chance, found = random.Random(0), dict[str, list[float]]()
    size = min(len(done), _MOST_RESAMPLED)
    for _ in range(_RESAMPLES):
        for key, share in _importance(study, [chance.choice(done) for _ in range(size)]).items():
            found.setdefault(key, []).append(share)
    rows = [
        {
            "key": key,
            "mean": sum(shares) / _RESAMPLES,
            "low": _quantile(shares, 0.1),
            "high": _quantile(shares, 0.9),
        }
        for key, shares in found.items()
    ]
    return sorted(rows, key=lambda row: -float(row["mean"]))


def _importance(study: SweepStudy, trials: Sequence[Any]) -> dict[str, float]:
    optuna = load_optuna()
    target = (lambda trial: trial.values[0]) if study.definition.is_multi_objective else None
    with quiet_optuna():
        copy = optuna.create_study(directions=study.optuna.directions)
        copy.add_trials(trials)
        with contextlib.suppress(ValueError, RuntimeError):  # all values are the same
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            shares = optuna.importance.get_param_importances(copy, evaluator=evaluator, target=target)
            return {key: share for key, share in shares.items() if math.isfinite(share)}
    return {}


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted([*values, *[0.0] * (_RESAMPLES - len(values))])
    return ordered[round(share * (len(ordered) - 1))]
