"""`everstep doctor`."""

import dataclasses
import os
import sys

import typer

from everstep.cli import diagnosis, options
from everstep.cli.commands import new_app
from everstep.cli.diagnosis import Check
from everstep.cli.output import aligned, json_text

app = new_app()


@app.command(epilog="Example: everstep doctor --json")
def doctor(json: options.Json = False) -> None:
    """Check this machine: backends, extras, disk.

    Succeeds if some backend works.
    """
    environment = dict(os.environ)  # as it was: choosing a backend sets variables
    tried = diagnosis.backends(environment)
    checks = [diagnosis.chosen_backend(), *tried, *diagnosis.versions(), *diagnosis.extras()]
    checks += diagnosis.paths()
    works = any(check.ok for check in tried)
    print(_json(checks, works) if json else _lines(checks))
    raise typer.Exit(0 if works else 1)


def _json(checks: list[Check], works: bool) -> str:
    return json_text({"ok": works, "checks": [dataclasses.asdict(check) for check in checks]})


def _lines(checks: list[Check]) -> str:
    return aligned([(f"{_mark(check.ok)} {check.group}", check.name, check.text) for check in checks])


def _mark(ok: bool) -> str:
    if (sys.stdout.encoding or "").lower().startswith("utf"):
        return "✓" if ok else "✗"
    return "ok" if ok else "no"
