"""A run without Keras, for queues: `python toy_run.py DIR SECONDS`.

It has a lock, a heartbeat and checkpoints as a run has, saves on SIGTERM, and prints its version.
"""

import signal
import sys
import time
from pathlib import Path

from everstep.run.lock import RunLock
from everstep.run.parent_process import announce
from everstep.run.record import Run

VERSION = "first"


class StopRequested(BaseException):
    pass


def request_stop(number, frame):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm sends it to every process of a job, and each forwards it
    raise StopRequested


def newest(checkpoints):
    return max((int(path.name) for path in checkpoints.iterdir()), default=0) if checkpoints.is_dir() else 0


def main(directory, seconds):
    signal.signal(signal.SIGTERM, request_stop)
    checkpoints = directory / "checkpoints"
    steps = round(seconds / 0.05)
    with RunLock(directory) as lock:
        announce(directory)
        run = Run.open(directory, "toy", "none")
        run.record["train_steps"] = steps
        run.begin(newest(checkpoints), "", code={})
        run.mark_first_step()
        print("version", VERSION, "from", run.step, flush=True)
        try:
            for step in range(run.step + 1, steps + 1):
                time.sleep(0.05)
                lock.beat(step)
                run.update(step, 0)
        except StopRequested:
            (checkpoints / str(run.step)).mkdir(parents=True, exist_ok=True)
            (checkpoints / str(run.step) / "manifest.json").touch()
            run.finish("interrupted", "SIGTERM")
            return 143
        run.finish("finished", "done")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2])))
