"""Trackers for W&B, and what its own reader finds in its files."""

import importlib.util
import json
import subprocess
from pathlib import Path

from everstep.tracking.delivery import SendDelays
from everstep.tracking.wandb import WandbTracker, make_target

QUICK = SendDelays(after_success=0.02, after_failure=0.05, longest=0.2)

PROGRAM = """
    import sys, time
    from wandb_samples import make_tracker

    tracker = make_tracker(sys.argv[1], sys.argv[2])
    tracker.start(0)
    for step in range(1, 201):
        tracker.log(step, {"loss": 1 / step}, "train")
    print("logged", flush=True)
    time.sleep(600)
"""


def make_tracker(directory, mode="offline", **options):
    """Returns a tracker of the run `someone` in a directory."""
    target = make_target("someone", "mnist/local", Path(directory).name, "", "", mode)
    return WandbTracker(directory, target, **{"delays": QUICK, "close_seconds": 20, **options})


def folders(directory):
    """Returns W&B's folders of runs."""
    return sorted(path for path in (Path(directory) / "wandb").glob("*run-*") if not path.is_symlink())


def records(directory):
    """Returns every record of the one file there is, as W&B's own reader prints it."""
    (folder,) = folders(directory)
    (package,) = importlib.util.find_spec("wandb").submodule_search_locations
    # What `wandb leet inspect --json` calls, without the seconds that its own start takes.
    command = [str(Path(package, "bin", "wandb-core")), "leet", "inspect", "--no-observability", "--json"]
    command += ["--run-file", str(next(folder.glob("*.wandb"))), str(folder.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def rows(directory):
    """Returns the rows in the file, without what W&B adds."""
    items = [record["history"]["item"] for record in records(directory) if record["type"] == "history"]
    return [{name: value for name, value in item.items() if not name.startswith("_")} for item in items]
