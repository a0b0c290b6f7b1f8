"""A run before anything is imported for it: its folder, its configuration, and where its classes are."""

import dataclasses
from pathlib import Path

from everstep.components.config_checks import check_config
from everstep.components.config_file import find_config, load_config_file
from everstep.components.config_struct import ConfigStruct
from everstep.components.project import Project
from everstep.components.run_folder import RunFolder
from everstep.errors import UsageError
from everstep.run.submitted import submitted


@dataclasses.dataclass(frozen=True)
class OpenedRun:
    """A run that exists, and whose configuration can be used.

    Attributes:
      folder: The run's folder.
      config: The configuration, with the data's folder that is used.
      project: Where its classes are; nothing of it is imported yet.
    """

    folder: RunFolder
    config: ConfigStruct
    project: Project


def open_run(run_name: str, project_root: str | Path = ".", data_dir: str | Path | None = None) -> OpenedRun:
    """Reads a run's configuration, without Keras and without the project's code.

    Args:
      run_name: The folder in `runs/` with the run's config file.
      project_root: The project.
      data_dir: Where the data is, in place of what the config file says.

    Raises:
      UsageError: There is no such run, or its configuration cannot be used; one line for every finding.
    """
    root = Path(project_root).expanduser().resolve()
    folder = RunFolder(root, run_name)
    copies = submitted(folder.path)
    config = _with_data(load_config_file(copies.config if copies else find_config(folder.path)), root, data_dir)
    check_config(config)
    try:
        return OpenedRun(folder, config, Project(root, config.src_code_path, copies.sources if copies else None))
    except UsageError as error:
        raise UsageError(f"{error} (from {config.place('src_code_path')})") from None


def _with_data(config: ConfigStruct, root: Path, data_dir: str | Path | None) -> ConfigStruct:
    """Returns the configuration with the data's folder as it is used; a relative one in the file is the project's."""
    if data_dir is not None:
        config.data_dir = str(Path(data_dir).expanduser().resolve())
    elif isinstance(config.data_dir, str):
        config.data_dir = str((root / Path(config.data_dir).expanduser()).resolve())
    if isinstance(config.data_dir, str) and not Path(config.data_dir).exists():
        said = "the argument data_dir" if data_dir is not None else config.place("data_dir")
        raise UsageError(f"data_dir: there is no {config.data_dir!r} (from {said})")
    return config
