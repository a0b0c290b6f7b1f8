"""TensorFlow is hidden as if nobody had installed it."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import importlib.metadata, importlib.util, sys
from everstep.engine.late_tensorflow import not_found

before = importlib.util.find_spec("tensorflow")
with not_found():
    with not_found():
        pass
    try:
        import tensorflow
    except ModuleNotFoundError as error:
        print(error.name, error)
    print(importlib.util.find_spec("tensorflow"), importlib.util.find_spec("tensorflow_text"))
    print(importlib.metadata.version("keras") > "3", importlib.util.find_spec("sched") is not None)
print(importlib.util.find_spec("tensorflow").origin == before.origin, "tensorflow" in sys.modules)
"""


def test_it_is_missing_in_the_block_and_found_afterwards():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [
        "tensorflow No module named 'tensorflow'",
        "None None",
        "True True",
        "True False",
    ], done.stderr
