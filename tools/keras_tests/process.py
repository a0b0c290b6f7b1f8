"""One pytest on Keras's test files, in a process of its own: backend, whose `fit`, result, -k, files."""

import contextlib
import itertools
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

SECONDS = 120
"""A test that takes longer has failed."""


class Outcomes:
    """Writes a line for each test that has ended, with the error of one that failed; a crash loses nothing."""

    def __init__(self, file: Path) -> None:
        self._file, self._why = file, dict[str, str]()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called by pytest after each of a test's phases."""
        name = report.nodeid.split("/")[-1]
        if not report.passed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self._why[name] = "skipped" if report.skipped else f"failed: {crash.message if crash else report.longrepr}"
        if report.when == "teardown":
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps([name, self._why.get(name, "passed")]) + "\n")


def replace_fit(kept: Path | None) -> None:
    """Makes `model.fit` of every model `everstep.fit`; with a directory of its own for each call, below `kept`."""
    import keras

    import everstep

    numbers = itertools.count()

    def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
        if kept is not None:
            kwargs["model_dir"] = kept / str(next(numbers))
        return everstep.fit(model, *args, **kwargs)

    trainer = next(cls for cls in keras.Model.__mro__ if "fit" in vars(cls))
    trainer.fit = fit  # type: ignore[attr-defined]


def main() -> int:
    """Runs pytest with the arguments of the command line."""
    backend, how, result, named, *files = sys.argv[1:]
    os.environ |= {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    # Most of the time on JAX goes into compiling the same small programs: XLA keeps them from run to run.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(".pytest_cache", "compiled").absolute()))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    import pytest

    with contextlib.ExitStack() as stack:
        kept = Path(stack.enter_context(tempfile.TemporaryDirectory())) if "model_dir" in how else None
        if how != "keras":
            replace_fit(kept)
        arguments = [*files, "-c", os.devnull, "--rootdir", str(Path(result).parent), "-p", "no:cacheprovider"]
        arguments += ["--timeout", str(SECONDS), "-q", "-W", "ignore", *(["-k", named] if named else [])]
        return int(pytest.main(arguments, plugins=[Outcomes(Path(result))]))


if __name__ == "__main__":
    sys.exit(main())
