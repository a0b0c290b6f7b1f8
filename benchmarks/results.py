"""What a suite has measured: raw values, medians, spread, ratios; as JSON, with the machine, versions and date.

This file needs the standard library alone: contenders in environments of their own import the package, too.
"""

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

OURS = "Everstep"
"""The name of our contender in every case."""

PACKAGES = ("keras", "jax", "jaxlib", "tensorflow", "torch", "numpy", "grain", "datasets", "pyarrow")


@dataclasses.dataclass
class Case:
    """One comparison: what each contender reached, in every round.

    Attributes:
      name: What was measured.
      unit: The unit of the values, `steps/s`, or `s` where lower is better.
      values: The raw values of each contender, one for each round.
      series: The curve that this case is a point of; empty for none.
      x: Where on the curve.
      notes: Further figures, by name.
    """

    name: str
    unit: str
    values: dict[str, list[float]]
    series: str = ""
    x: float | None = None
    notes: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def lower_is_better(self) -> bool:
        """Whether the values are times, or sizes."""
        return not self.unit.endswith("/s")

    def median(self, contender: str) -> float:
        """Returns the median of a contender's rounds."""
        return statistics.median(self.values[contender])

    def spread(self, contender: str) -> float:
        """Returns the interquartile range of a contender's rounds; 0 for a single one."""
        values = self.values[contender]
        if len(values) < 2:
            return 0.0
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return high - low

    def ratio(self, peer: str) -> float:
        """Returns how many times as good as a peer we are: the median over rounds, in each of which both ran."""
        pairs = zip(self.values[OURS], self.values[peer], strict=True)
        ratios = [theirs / mine if self.lower_is_better else mine / theirs for mine, theirs in pairs]
        return statistics.median(ratios)

    @property
    def peers(self) -> list[str]:
        """The contenders beside ours, in their order."""
        return [name for name in self.values if name != OURS]


@dataclasses.dataclass
class Results:
    """All cases of one run of a suite, and where and when it ran."""

    suite: str
    cases: list[Case]
    rounds: int
    device: bool = False
    machine: dict[str, Any] = dataclasses.field(default_factory=dict)
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    date: str = ""

    def write(self, path: Path) -> None:
        """Writes the results as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", "utf-8")

    @classmethod
    def read(cls, path: Path) -> "Results":
        """Reads what `write` has written."""
        found = json.loads(path.read_text("utf-8"))
        return cls(**{**found, "cases": [Case(**case) for case in found["cases"]]})


def new_results(suite: str, cases: list[Case], rounds: int, device: bool) -> Results:
    """Returns results with today's date, this machine and the installed versions."""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Results(suite, cases, rounds, device, machine(device), versions(), date)


def machine(device: bool = False) -> dict[str, Any]:
    """Returns what this machine is, without its name; with `device`, its accelerator as well."""
    found: dict[str, Any] = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }
    return found | ({"accelerator": _accelerator()} if device else {})


def versions() -> dict[str, str]:
    """Returns the versions of the packages that matter here, as far as they are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _accelerator() -> str:
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().replace("\n", ", ")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def show(case: Case) -> None:
    """Prints a case: the median and the interquartile range of each contender, and our ratios."""
    print(f"{case.name}, {case.unit}")
    for name in case.values:
        print(f"  {name:24}{_number(case.median(name)):>12} ± {_number(case.spread(name)):10}", end="")
        print(f"  {OURS} is {case.ratio(name):.2f} times as good" if name != OURS and OURS in case.values else "")
    for name, value in case.notes.items():
        print(f"  {name}: {value}")
    sys.stdout.flush()


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
