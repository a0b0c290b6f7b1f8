"""Worker processes of a data source, which are to end when their run does, however that ended."""

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """Ends this process as soon as the one that started it is gone; to be called in a worker.

    A run that is killed cannot tell its workers. They would wait for it as long as the machine runs, and each attempt
    would leave more of them.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_outlive, args=(parent,), name="everstep-parent", daemon=True).start()


def _outlive(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)
