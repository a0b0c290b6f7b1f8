"""For users' own training programs: the absl flags of TF Model Garden's programs, and the configuration they specify.

    from everstep.model_garden import absl_program

    def main(_):
        params = absl_program.parse_configuration(FLAGS)
        ...

    if __name__ == "__main__":
        absl_program.define_flags()
        absl_program.run(main)

`everstep train` needs no such program; this is for those that exist.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from absl import app, flags

from everstep import Config, ExperimentConfig, Mode, redaction, storage
from everstep.cli import options, resolve
from everstep.config import dialect
from everstep.errors import UsageError
from everstep.model_garden.absl_flags import DECLINED
from everstep.model_garden.gin import operative_config
from everstep.run import run_program

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines `--experiment`, `--mode`, `--model_dir`, `--config_file`, `--params_override`, `--gin_file` and more."""
    flags.DEFINE_string("experiment", None, "The experiment's registered name.", required=True)
    flags.DEFINE_enum("mode", None, [mode.value for mode in Mode], "What to do.", required=True)
    flags.DEFINE_string("model_dir", None, "The run directory.", required=True)
    flags.DEFINE_multi_string("config_file", None, "YAML, JSON or TOML with values; repeatable, later ones win.")
    flags.DEFINE_string("params_override", None, "Values that win over all: a.b=1,c=2, or YAML, or a file.")
    flags.DEFINE_multi_string("gin_file", None, "A file with gin bindings; repeatable.")
    flags.DEFINE_multi_string("gin_params", None, "A gin binding; repeatable.")
    flags.DEFINE_string("tpu", None, "The TPU's name or address: sets runtime.tpu.")
    define_declined(FLAGS)


def define_declined(known: flags.FlagValues) -> None:
    """Defines the flags of Model Garden that are not offered, so that an error explains why."""
    for name, reason in DECLINED.items():
        if name not in known:
            text = f"is not offered: {reason}"
            flags.DEFINE_string(name, None, text, flag_values=known)
            flags.register_validator(name, lambda value: value is None, message=text, flag_values=known)


@dataclasses.dataclass
class ParseConfigOptions:
    """What `parse_configuration` takes in place of flags, in a program that has none.

    Attributes:
      experiment: The experiment's registered name.
      config_file: Files with values; later ones win.
      tpu: The TPU's name or address: sets `runtime.tpu`.
      tf_data_service: Not offered; must be empty.
      params_override: Values that win over all: `a.b=1,c=2`, or YAML, or a file.
      strict_override: Whether keys that the experiment does not have are errors; else they are skipped, with a
        warning, and a `Config` that declares no fields takes them.
    """

    experiment: str
    config_file: list[str] = dataclasses.field(default_factory=list)
    tpu: str = ""
    tf_data_service: str = ""
    params_override: str = ""
    strict_override: bool = True

    def __contains__(self, name: str) -> bool:
        return name in {field.name for field in dataclasses.fields(self)}


def parse_configuration(flags: Any, lock_return: bool = True) -> ExperimentConfig:
    """Returns the configuration that flags specify, validated.

    The experiment's own values come first, then those of each `config_file`, gin bindings that name config fields,
    `tpu` where it is given, and `params_override`; later ones win.

    Args:
      flags: What has the attributes `define_flags` names, as far as they are used: absl's FLAGS, `ParseConfigOptions`,
        or any object. With `strict_override=False` keys that the experiment does not have are skipped, with a warning;
        a `Config` that declares no fields takes them.
      lock_return: Whether nothing can be changed in it afterwards.

    Raises:
      UsageError: Every wrong value with its key and origin; an unknown experiment.
    """
    tpu, override = getattr(flags, "tpu", None), getattr(flags, "params_override", None)
    if service := getattr(flags, "tf_data_service", None):
        raise UsageError("is not offered", key="tf_data_service", received=service, remedy=DECLINED["tf_data_service"])
    request = options.ExperimentRequest(
        name=flags.experiment,
        config_files=getattr(flags, "config_file", None),
        gin_files=getattr(flags, "gin_file", None),
        gin_params=getattr(flags, "gin_params", None),
        params_override=[*([f"runtime.tpu={tpu}"] if tpu else []), *([override] if override else [])],
    )
    params = resolve(request, strict=getattr(flags, "strict_override", True), plain=True).params
    if lock_return:
        params.lock()
    return params


def serialize_config(params: Config, model_dir: storage.PathLike) -> None:
    """Writes `model_dir/params.yaml`, without secrets; as a `config_file` it repeats the configuration.

    A run writes a `config.yaml` with more in it by itself.

    Raises:
      UsageError: The directory cannot be created or written to.
    """
    redaction.learn(params.as_dict())
    storage.prepare_directory(model_dir)
    storage.write_text(Path(model_dir) / "params.yaml", dialect.dump_without_secrets(params.as_dict()))


def save_gin_config(filename_suffix: str, model_dir: storage.PathLike) -> None:
    """Writes `model_dir/operative_config.<suffix>.gin`, without secrets: what gin configurables were called with.

    Call it at the end: only then is it known. If no gin binding is in force, nothing is written.

    Raises:
      UsageError: The directory cannot be created or written to.
    """
    text = operative_config()
    if text is not None:
        storage.prepare_directory(model_dir)
        storage.write_text(Path(model_dir) / f"operative_config.{filename_suffix}.gin", redaction.text(text))


def run(main: Callable[[Sequence[str]], Any]) -> NoReturn:
    """Parses the command line and calls `main`; ends the process as `everstep train` would.

    What gin configurables were called with is written to the run directory of a mode that trains. Bad input is one
    text and exit code 2, a failed run 1; a traceback means a bug.
    """
    app.run(lambda arguments: sys.exit(_exit_code(main, arguments)))
    raise SystemExit  # not reached: `app.run` ends the process


def _exit_code(main: Callable[[Sequence[str]], Any], arguments: Sequence[str]) -> int:
    def program() -> None:
        main(arguments)  # what it returns is no exit code

    try:
        return run_program(program, arguments)
    finally:
        _save_gin()


def _save_gin() -> None:
    """Writes what gin configurables were called with, where there is a run that has trained."""
    mode, model_dir = (getattr(FLAGS, name, None) for name in ("mode", "model_dir"))
    if mode and "train" in mode and model_dir and Path(model_dir).is_dir():
        with contextlib.suppress(OSError, UsageError):  # a full disk was reported; how the run ended counts
            save_gin_config(mode, model_dir)
