"""A new MLflow database in a file, made so that a kill cannot leave half of one.

MLflow makes its tables one by one, and SQLite keeps those that are made. Killed in between, the file can be used by
nobody: MLflow then finds tables that it wants to make. So it is made under another name, and gets its own when done.
"""

import contextlib
import os
import time
import uuid
from pathlib import Path
from typing import Any

_LEFTOVER = ".everstep-mlflow-"
_SECONDS = 600.0  # more than it takes to make one


def create_database(database: Path) -> None:
    """Makes a database with all tables, if there is no file of that name; another process may do so, too."""
    if database.exists():
        return
    _clear_away(database)
    temporary = database.with_name(f"{_LEFTOVER}{uuid.uuid4().hex[:12]}-{database.name}")
    try:
        store = _make_tables(temporary, database)
        with contextlib.suppress(FileExistsError):  # somebody was faster
            os.link(temporary, database)
        store.engine.dispose()
    finally:
        temporary.unlink(missing_ok=True)


def _make_tables(path: Path, database: Path) -> Any:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    return SqlAlchemyStore(f"sqlite:///{path}", (database.parent / "mlartifacts").as_uri())


def _clear_away(database: Path) -> None:
    """Removes what killed processes left; not what one may still be at work on."""
    for entry in database.parent.glob(f"{_LEFTOVER}*-{database.name}*"):
        with contextlib.suppress(OSError):
            if time.time() - entry.stat().st_mtime > _SECONDS:
                entry.unlink()
