"""How a model was trained, from what training and export left behind; what is not known is left out."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everstep.report.facts import Fact, chosen_by, code_name, fact, read_export, short
from everstep.run import record


def trained(run_dir: Path, config: Mapping[str, Any]) -> list[Fact]:
    """Returns the facts in the order in which they are shown.

    How many attempts it took and how long is left out: a run that was killed and went on is the same run.

    Args:
      run_dir: The run's folder.
      config: The configuration that the model was trained with.

    Raises:
      UsageError: `run.json` or `export.json` is damaged.
    """
    run = record.read(run_dir) if (run_dir / "run.json").is_file() else {}
    export = read_export(run_dir)
    found = [*_course(export, config), *_means(run, export, config), *_origin(run, export)]
    return [each for each in found if each["value"]]


def _course(export: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[Fact]:
    epochs, best = config.get("epochs"), export.get("epoch")
    if "estimator" in export:
        yield fact("exported", "the fitted estimator")
        return
    yield fact("epochs", epochs)
    if best is not None:
        yield fact("best epoch", f"{int(best) + 1} of {epochs}" if epochs else int(best) + 1)
    yield fact("chosen by", chosen_by(export))


def _means(run: Mapping[str, Any], export: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[Fact]:
    yield fact("batch size", config.get("batch_size"))
    seed = config.get("seed")
    yield fact("seed", "" if seed is None else str(seed))
    yield fact("parameters", short(run.get("cost", {}).get("parameters")))
    yield fact("model", config.get("model_builder_class"))
    yield fact("backend", run.get("backend"))
    packages = run.get("environment", {}).get("packages", {})
    yield fact("versions", ", ".join(f"{name} {version}" for name, version in packages.items()))


def _origin(run: Mapping[str, Any], export: Mapping[str, Any]) -> Iterator[Fact]:
    yield fact("code", code_name(export.get("code") or run.get("code") or {}))
    yield fact("data", _data(run.get("data", {})))
    attempts = run.get("attempts") or [{}]
    yield fact("date", str(attempts[0].get("started") or "")[:10])


def _data(data: Mapping[str, Any]) -> str:
    """Returns a digest of the data's digests; nothing where the data itself was not looked at."""
    text = json.dumps(data, sort_keys=True)
    return f"sha256 {hashlib.sha256(text.encode('utf-8')).hexdigest()[:16]}" if '"sha256"' in text else ""
