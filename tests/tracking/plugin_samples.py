"""A package with trackers, as one that is installed: a module and a `dist-info` folder on the path."""

import textwrap

MODULE = '''
    import json
    import pathlib

    from everstep.errors import UsageError
    from everstep.tracking.tracker import Tracker, plain


    class FolderTracker(Tracker):
        """Keeps a file for each call in a folder of its own."""

        def __init__(self, run, prefix="point"):
            self._folder, self._prefix = pathlib.Path(run.directory) / "folder", prefix

        def start(self, step):
            for path in self._folder.glob("*.json"):
                if int(path.stem.split("-")[1]) > step:
                    path.unlink()

        def log(self, step, logs, kind):
            self._folder.mkdir(exist_ok=True)
            path = self._folder / f"{self._prefix}-{step}-{kind}.json"
            path.write_text(json.dumps(plain(logs)))

        def flush(self):
            pass

        def close(self):
            pass


    class BrokenTracker(FolderTracker):
        """Has a bug that shows at step 8."""

        def log(self, step, logs, kind):
            if step == 8:
                raise ZeroDivisionError("a bug")
            super().log(step, logs, kind)


    class FussyTracker(FolderTracker):
        def __init__(self, run, channel):
            super().__init__(run)
            if channel != "runs":
                raise UsageError(f"channel: received {channel!r}, expected 'runs'")


    def not_a_tracker(run):
        return "text"
'''

ENTRY_POINTS = """
    [everstep.trackers]
    folder = my_trackers:FolderTracker
    broken = my_trackers:BrokenTracker
    fussy = my_trackers:FussyTracker
    no_tracker = my_trackers:not_a_tracker
    gone = my_trackers:Gone
"""


def install(folder, monkeypatch):
    """Puts the package on the path."""
    (folder / "my_trackers.py").write_text(textwrap.dedent(MODULE))
    info = folder / "my_trackers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-trackers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(textwrap.dedent(ENTRY_POINTS))
    monkeypatch.syspath_prepend(folder)
