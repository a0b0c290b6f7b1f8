"""A project with a catalog, as a folder."""

import os
import textwrap
from pathlib import Path

from everstep.catalog import Catalog


class Project:
    """A folder with `config/catalog.yaml`.

    Attributes:
      root: The folder.
      file: Its catalog.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.file = root, root / "config" / "catalog.yaml"
        self.file.parent.mkdir(parents=True)

    def catalog(self, text: str, local: str | None = None) -> Catalog:
        self.file.write_text(textwrap.dedent(text))
        files = [self.file]
        if local is not None:
            files.append(self.root / "config" / "local.yaml")
            files[-1].write_text(textwrap.dedent(local))
        return Catalog.from_files(files, self.root)

    def allow(self, settings: str) -> None:
        (self.root / "pyproject.toml").write_text(f"[tool.everstep]\n{settings}\n")

    def drafts(self) -> list[str]:
        """What a writer left that is no content."""
        return [name for _, folders, files in os.walk(self.root) for name in (*folders, *files) if "everstep" in name]
