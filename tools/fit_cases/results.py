"""Runs the cases on a backend, in a process of its own, and keeps what was found as JSON."""

import datetime
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.results import machine, versions

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "results" / "fit_cases"

BACKENDS = ("jax", "tensorflow", "torch")
FIT, OURS, KEPT = "model.fit", "everstep.fit", "everstep.fit(model_dir=…)"
"""The contenders, as rows name them."""

SAME, BOTH, CLOSE, OTHER, REFUSED, FAILED = (
    "same bits",
    "rejected by both",
    "close",
    "different",
    "rejected",
    "failed",
)
"""How a call of ours compares with that of `model.fit`, from best to worst. Rejected is by a UsageError."""

Row = dict[str, Any]
"""What `compare.compare` returns for a case."""


def run(backend: str, named: str = "", loud: bool = False) -> dict[str, Any]:
    """Runs the cases whose title contains `named`; prints each as it ends, and returns all, with date and machine."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    found = {"backend": backend, "date": today, "machine": machine(), "versions": versions()}
    rows = []
    for row in _rows(backend, named, loud):
        rows.append(row)
        print(_line(backend, row), flush=True)
    found["machine"]["load"] = max(found["machine"]["load"], machine()["load"])  # of the beginning and of the end
    return {**found, "cases": rows}


def surprise(row: Row) -> str:
    """Returns in what way a case did not end as it says; empty if it did."""
    ends = {row[contender]["result"] for contender in (OURS, KEPT)}
    if row["differs"]:
        return "has the same results, though it names a reason for others" if ends <= {SAME, BOTH} else ""
    return "" if ends <= {SAME, BOTH, CLOSE} else "has other results, and names no reason"


def write(backend: str, found: dict[str, Any]) -> None:
    """Keeps the results of all cases on a backend."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in found["cases"])  # a line each: small differences
    rest = json.dumps({key: value for key, value in found.items() if key != "cases"})
    (FOLDER / f"{backend}.json").write_text(f'{rest[:-1]}, "cases": [\n{rows}\n]}}\n', "utf-8")


def put(backend: str, found: dict[str, Any]) -> None:
    """Keeps the results of some cases: in place of earlier ones, or as the last of their group."""
    kept = next(one for one in read_all() if one["backend"] == backend)
    rows = kept["cases"]
    for row in found["cases"]:
        titles, groups = [(each["group"], each["name"]) for each in rows], [each["group"] for each in rows]
        if (row["group"], row["name"]) in titles:
            rows[titles.index((row["group"], row["name"]))] = row
        else:
            place = len(groups) - groups[::-1].index(row["group"]) if row["group"] in groups else len(groups)
            rows.insert(place, row)
    write(backend, kept)


def read_all() -> list[dict[str, Any]]:
    """Returns the results that are kept, in the order of the backends."""
    files = [FOLDER / f"{backend}.json" for backend in BACKENDS]
    return [json.loads(file.read_text("utf-8")) for file in files if file.is_file()]


def _rows(backend: str, named: str, loud: bool) -> Iterator[Row]:
    """Yields a row for each case. A case whose process crashes has failed; the next process goes on after it."""
    after = ""
    while True:
        command = [sys.executable, "-m", "tools.fit_cases.process", backend, named, after]
        output = None if loud else subprocess.DEVNULL
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=output, text=True) as process:
            lines = map(json.loads, process.stdout or ())
            titles = next(lines, [])
            for row in lines:
                titles.pop(0)
                yield row
        if not titles:
            return
        after = titles[0]
        group, _, name = after.partition(": ")
        crash = {"result": FAILED, "why": f"the process ended with {process.returncode}"}
        yield {"group": group, "name": name, "seconds": {}, OURS: crash, KEPT: crash, "differs": ""}


def _line(backend: str, row: Row) -> str:
    seconds = " / ".join(f"{row['seconds'].get(name, float('nan')):.1f}" for name in (FIT, OURS, KEPT))
    ends = dict.fromkeys(told(row[contender]) for contender in (OURS, KEPT))
    lines = [f"{backend:10} {row['group'] + ': ' + row['name']:60} {'; '.join(ends):20} {seconds} s"]
    lines += [f"    model.fit: {row['error of fit']}"] if "error of fit" in row else []
    whys = dict.fromkeys(row[contender].get("why", "") for contender in (OURS, KEPT))
    lines += [f"    {why}" for why in whys if why]
    lines += [f"    SURPRISE: {surprise(row)}"] if surprise(row) else []
    return "\n".join(lines)


def told(end: dict[str, Any]) -> str:
    """Returns how a call ended: `same bits`, `to 2e-07`, `same weights, logs to 6e-08`, `different by 0.003`."""
    result = str(end["result"])
    if result not in (CLOSE, OTHER) or "weights" not in end:
        return result
    largest = max(end["logs"], end["weights"])
    if result == OTHER:
        return f"different by {largest:.1g}"
    return f"to {largest:.0e}" if end["weights"] else f"same weights, logs to {largest:.0e}"
