"""Runs checks of the engine contract on the toy backend: `check_toy_backend.py NAME …`, with KERAS_BACKEND=numpy."""

import sys
import traceback

from tests.engine.toy_backend import toy_engine

from everstep.testing import engines

if __name__ == "__main__":
    for check in engines.CHECKS:
        if check.__name__ in sys.argv[1:]:
            try:
                check(toy_engine)
                print(f"ok {check.__name__}", flush=True)
            except BaseException:
                print(f"FAILED {check.__name__}\n{traceback.format_exc()}", flush=True)
