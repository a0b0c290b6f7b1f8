"""The page of a sweep, one self-contained HTML file in the style of the report, and its table for programs."""

import datetime
import functools
import html as markup
import importlib.resources
import json
import math
import os
import random
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction, storage
from everstep.report import as_json, page_file, policy
from everstep.sweeps import PAGE, TABLE
from everstep.sweeps.study import CONTINUES, REASON, SweepStudy, value_of

_SHARED = ("dom.js", "format.js", "charts.js")  # of the report
_RELOAD_SECONDS = 5
_RESAMPLES, _MOST_RESAMPLED, _LEAST_RESAMPLED, _BINS = 40, 1000, 8, 4


def write(study: SweepStudy, running: bool = False) -> Path:
    """Writes `sweep.html` and `trials.json` in a sweep's directory; returns the path of the page.

    If another process is writing them, nothing is done.

    Args:
      study: The sweep.
      running: Whether workers are at work: then the page reloads itself.
    """
    path = study.directory / PAGE
    with study.alone("page") as alone:
        if alone:
            table = summary(study)
            storage.write_text(study.directory / TABLE, json.dumps(table, allow_nan=False))
            data = page_data(study, table, running)
            storage.write_bytes(path, html(data, running).encode("utf-8", errors="replace"))
    return path


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
        "metrics": study.metrics if any(study.metrics) else [],
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
    owner = trial.user_attrs.get(CONTINUES, trial.number)  # the trial whose directory it trains in
    run_dir = study.definition.target.run_dir(study.directory, owner)
    ended = trial.datetime_complete
    value = _finite(value_of(trial))
    return {
        "number": trial.number,
        "state": trial.state.name.lower(),
        "value": value,
        "results": [_finite(one) for one in trial.values] if trial.state.name == "COMPLETE" else [value],
        "values": redaction.tree(study.definition.space.stored(trial)),
        "continues": trial.user_attrs.get(CONTINUES),
        "directory": f"{_relative(run_dir.parent, study.directory)}/{run_dir.name}",
        "steps": facts.get("steps"),
        "train_steps": facts.get("train_steps"),
        "digest": facts.get("digest"),
        "seconds": (ended - trial.datetime_start).total_seconds() if ended and trial.datetime_start else None,
        "reason": trial.user_attrs.get(REASON),
    }


@functools.lru_cache
def _relative(path: Path, start: Path) -> str:
    return os.path.relpath(path, start)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


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


def page_data(study: SweepStudy, table: Mapping[str, Any], running: bool) -> dict[str, Any]:
    """Returns the data of the page."""
    definition = study.definition
    now = datetime.datetime.now(datetime.UTC)
    return {
        "title": study.directory.name,
        "running": running,
        "wanted": table["wanted"],
        "metrics": [
            {"name": name or "loss", "mode": mode} for name, mode in zip(study.metrics, table["modes"], strict=True)
        ],
        "best": table["front"] or ([] if table["best"] is None else [table["best"]]),
        "front": table["front"],
        "stepsSaved": table["steps_saved"],
        "facts": [
            ["target", definition.target.name],
            ["metric", study.shown_metric],
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
        "importance": importances(study),
        "resamples": _RESAMPLES,
        "trials": [_shown(study.directory, row) for row in table["trials"]],
    }


def _shown(directory: Path, row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("number", "state", "value", "results", "values", "steps")
    note = row["reason"] or ("" if row["continues"] is None else f"continues trial {row['continues']}")
    seconds = None if row["seconds"] is None else round(row["seconds"], 1)
    return {
        **{name: row[name] for name in names},
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
    own = importlib.resources.files("everstep.sweeps").joinpath("page")
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
    """Returns how much each key explains: the share of the variance of the trials' ranks, by analysis of variance.

    It is computed on random halves of the trials; the mean of them is the importance, and how far they vary shows how
    much of it is chance. With less than eight trials there is none.
    """
    done = [trial for trial in study.trials() if trial.state.name == "COMPLETE"][-_MOST_RESAMPLED:]
    if len(done) < _LEAST_RESAMPLED or len(study.definition.space.dimensions) < 2:
        return []
    ranks = _ranks([float(trial.values[0]) for trial in done])
    chance = random.Random(0)
    halves = [chance.sample(range(len(done)), max(_LEAST_RESAMPLED // 2, len(done) // 2)) for _ in range(_RESAMPLES)]
    rows = []
    for dimension in study.definition.space.dimensions:
        groups = _groups([trial.params.get(dimension.key, "") for trial in done], dimension.kind)
        shares = sorted(_explained([groups[i] for i in half], [ranks[i] for i in half]) for half in halves)
        low, high = (shares[round(share * (_RESAMPLES - 1))] for share in (0.1, 0.9))
        rows.append({"key": dimension.key, "mean": sum(shares) / _RESAMPLES, "low": low, "high": high})
    return sorted(rows, key=lambda row: -float(row["mean"]))


def _ranks(values: Sequence[float]) -> list[float]:
    """Returns the ranks of values, so that a diverged trial does not outweigh the others; equal ones share theirs."""
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values)):
        places.setdefault(value, []).append(place)
    return [sum(places[value]) / len(places[value]) for value in values]


def _groups(values: Sequence[Any], kind: str) -> list[Any]:
    """Returns the group of each value: numbers by quantile, anything else by itself."""
    numbers = sorted(value for value in values if kind != "categorical" and not isinstance(value, str))
    if len(set(numbers)) <= _BINS:
        return list(values)
    bounds = [numbers[len(numbers) * part // _BINS] for part in range(1, _BINS)]
    return [value if isinstance(value, str) else sum(value >= bound for bound in bounds) for value in values]


def _explained(groups: Sequence[Any], ranks: Sequence[float]) -> float:
    """Returns the share of the variance between groups, less what chance alone would explain."""
    inside: dict[Any, list[float]] = {}
    for group, rank in zip(groups, ranks, strict=True):
        inside.setdefault(group, []).append(rank)
    mean, size = sum(ranks) / len(ranks), len(ranks)
    total = sum((rank - mean) ** 2 for rank in ranks)
    if not total or size <= len(inside):
        return 0.0
    between = sum(len(some) * (sum(some) / len(some) - mean) ** 2 for some in inside.values())
    chance = (len(inside) - 1) * (total - between) / (size - len(inside))
    return min(1.0, max(0.0, (between - chance) / total))
