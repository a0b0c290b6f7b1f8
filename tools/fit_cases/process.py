"""Runs cases in one process, which has one backend: backend, part of the titles, title to begin after.

Writes lines of JSON to standard output: the titles, then a row for each case as it ends. What libraries print goes to
standard error.
"""

import json
import os
import sys
import tempfile


def main() -> None:
    """Runs the cases."""
    backend, named, after = sys.argv[1:]
    os.environ |= {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    os.environ |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    rows = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="fit_cases_") as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder  # also of what callbacks write
        from tools.fit_cases.cases import CASES
        from tools.fit_cases.compare import compare

        chosen = [case for case in CASES.values() if backend in case.backends and named in case.title]
        titles = [case.title for case in chosen]
        chosen = chosen[titles.index(after) + 1 :] if after else chosen
        print(json.dumps([case.title for case in chosen]), file=rows, flush=True)
        if chosen:
            compare(chosen[0])  # what only the first call of a process costs counts for none
        for case in chosen:
            row = compare(case) | {"differs": case.differs.get(backend, "")}
            print(json.dumps(row, ensure_ascii=False), file=rows, flush=True)


if __name__ == "__main__":
    main()
