"""Runs Keras's own tests with `fit` replaced by `everstep.fit`, and compares with the list of known refusals.

    python -m tools.keras_tests                                      # three backends, with and without model_dir
    python -m tools.keras_tests --backend jax                        # one backend
    python -m tools.keras_tests --backend jax -k steps_per_epoch -v  # the tests of a name, with pytest's own output

Each test first runs with Keras's `fit`, and counts only if it passes. The tests are those of the installed package,
copied to a temporary directory, with models that are "a layer mixed with a Trainer" rewritten as `keras.Model`. Where
the package comes without tests, its sources are downloaded. What may fail, and why, is in `refusals.toml`; a failure
outside the list, or an entry that does not fail any more, is an error.
"""

import argparse
import importlib.metadata
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.keras_tests import sources

BACKENDS = ("tensorflow", "jax", "torch")
KERAS, PLAIN, KEPT = "keras", "everstep.fit", "everstep.fit(model_dir=…)"
"""Whose `fit` runs: Keras's, ours, ours with a directory."""

KNOWN = Path(".pytest_cache", "keras_tests")
REFUSALS = Path(__file__).with_name("refusals.toml")


def refusals() -> dict[str, dict]:
    """Returns the known refusals by name: `tests`, the `reason`, and where it matters `backends` and `model_dir`."""
    return tomllib.loads(REFUSALS.read_text("utf-8"))


def refused(backend: str, how: str) -> set[str]:
    """Returns the tests that may fail on a backend."""
    return {
        test
        for entry in refusals().values()
        if backend in entry.get("backends", BACKENDS) and entry.get("model_dir", how == KEPT) == (how == KEPT)
        for test in entry["tests"]
    }


def table() -> str:
    """Returns the refusals as a Markdown table."""
    rows = ["| refused | why | tests |", "|---|---|---|"]
    for name, entry in refusals().items():
        places = [
            *entry.get("backends", ()),
            *{True: ["with `model_dir`"], False: ["without `model_dir`"]}.get(entry.get("model_dir"), []),
        ]
        where = f" ({', '.join(places)})" if places else ""
        tests = sorted({test.split("::")[-1] for test in entry["tests"]})
        rows.append(f"| {name}{where} | {entry['reason']} | {', '.join(f'`{test}`' for test in tests)} |")
    return "\n".join(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the tests; returns 1 if one fails that is not in the list, or one of the list passes everywhere."""
    parser = argparse.ArgumentParser("python -m tools.keras_tests", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--backend", action="append", choices=BACKENDS, help="may be repeated; all by default")
    parser.add_argument("--model-dir", choices=["with", "without", "both"], default="both")
    parser.add_argument("-k", dest="named", help="only tests whose name contains this; pytest's -k")
    parser.add_argument("-v", dest="loud", action="store_true", help="show pytest's output")
    parser.add_argument(
        "--table", action="store_true", help="print the refusals as docs/reference/fit.md shows them, and no more"
    )
    parser.add_argument("--anew", action="store_true", help="run the tests with Keras's fit again, too")
    parser.add_argument("files", nargs="*", help="such as trainer_test.py; all by default")
    options = parser.parse_args(argv)
    if options.table:
        print(table())
        return 0
    ways = {"with": [KEPT], "without": [PLAIN], "both": [PLAIN, KEPT]}[options.model_dir]
    wrong = 0
    for backend in options.backend or BACKENDS:
        with tempfile.TemporaryDirectory(prefix="keras_tests_") as folder:
            files = [file for file in sources.copy(Path(folder)) if not options.files or file.name in options.files]
            passing = _passing(files, backend, options.named, options.anew, options.loud)
            if not passing:
                print(f"{backend}: no test passes with Keras's own fit; look at what pytest prints: add -v", flush=True)
                wrong += 1
            for how in ways:
                outcomes = _run(files, backend, how, options.named, options.loud)
                wrong += _report(backend, how, passing, outcomes)
    return 1 if wrong else 0


def _passing(files: Sequence[Path], backend: str, named: str | None, anew: bool, loud: bool) -> set[str]:
    """Returns the tests that pass with Keras's own `fit`; the outcomes are cached for this version of Keras."""
    known = KNOWN / f"{importlib.metadata.version('keras')}-{backend}.json"
    outcomes = json.loads(known.read_text("utf-8")) if known.is_file() and not anew else {}
    missing = [file for file in files if not any(test.startswith(f"{file.name}::") for test in outcomes)]
    if named:
        outcomes = _run(files, backend, KERAS, named, loud)
    elif missing:
        outcomes |= _run(missing, backend, KERAS, None, loud)
        if outcomes:
            known.parent.mkdir(parents=True, exist_ok=True)
            known.write_text(json.dumps(outcomes, indent=0), encoding="utf-8")
    names = {file.name for file in files}
    return {test for test, how in outcomes.items() if how == "passed" and test.split("::")[0] in names}


def _run(files: Sequence[Path], backend: str, how: str, named: str | None, loud: bool = False) -> dict[str, str]:
    """Returns how each test ended, by `file::class::test`; all of them run in one process."""
    result = files[0].with_name("outcomes.jsonl")
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tools.keras_tests.process", backend, how, str(result), named or ""]
    command += [*map(str, files), *(["-v"] if loud else [])]
    output = None if loud else subprocess.DEVNULL
    subprocess.run(command, stdout=output, stderr=output, check=False)
    return dict(map(json.loads, result.read_text("utf-8").splitlines())) if result.is_file() else {}


def _report(backend: str, how: str, passing: set[str], outcomes: Mapping[str, str]) -> int:
    """Prints the figures of each file and what fails; returns how many tests did not end as the list expects."""
    known = refused(backend, how)
    failing = {test: outcomes.get(test, "did not end") for test in sorted(passing) if outcomes.get(test) != "passed"}
    for file in sorted({test.split("::")[0] for test in passing}):
        count = sum(test.startswith(f"{file}::") for test in passing)
        good = count - sum(test.startswith(f"{file}::") for test in failing)
        print(f"{backend:10} {how:25} {file:35} {good:4} of {count:4}", flush=True)
    for test, why in failing.items():
        print(f"    {'refused' if test in known else 'FAILED '} {test}", flush=True)
        print(f"            {' '.join(why.split())[:300]}", flush=True)
    surprises = sorted(known & passing - set(failing))
    for test in surprises:
        print(f"    PASSES, though in {REFUSALS.name}: {test}", flush=True)
    return len(set(failing) - known) + len(surprises)


if __name__ == "__main__":
    sys.exit(main())
