"""`Programs`: what is kept with a run so that later processes run the same programs on a GPU (JAX).

`programs/` of the run directory holds two files:

- `autotuning.pbtxt`, in XLA's own format: which kernels it has chosen. It chooses by timing them, and another process
  may choose others, whose bits differ. A process reads the file before it compiles, so its programs are the same, also
  where the cache of compiled programs is gone.
- `certified.json`: how many steps a call holds, and which programs were shown to repeat their bits.

    {"device": "NVIDIA H200", "jaxlib": "0.11.2",
     "calls": {"train": {"several": false, "autotuned": true, "reason": "", "step_ms": 7.24}},
     "programs": {"<digest of a program>": "" or why it does not repeat},
     "used": {"train <digest of shapes>": "<digest of the program that runs such steps>"}}

If a later process of the run makes another program for the same shapes, it says so: the bits may differ.

Another run of the same training should end in the same bits, too. So what was decided by timing is also kept for this
machine (`machine_choices.py`), and a new run begins with that.

What was found on another kind of device, or with another XLA, does not count.
"""

import contextlib
import contextvars
import dataclasses
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from everstep.engine.machine_choices import Calls, MachineChoices, joined_choices
from everstep.storage import write_json, write_text

logger = logging.getLogger(__name__)

CHOICES, CERTIFIED = "autotuning.pbtxt", "certified.json"

_current: contextvars.ContextVar["Programs | None"] = contextvars.ContextVar("programs", default=None)


class Programs:
    """The directory of a run for its programs; None keeps nothing beyond the process.

    Attributes:
      changed: How the device or XLA differ from those of earlier attempts; empty if they do not.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._verdicts: dict[str, str] = {}
        self._calls: dict[str, Calls] = {}
        self._used: dict[str, str] = {}
        self._on_device: dict[str, bool] = {}
        self.changed = ""
        if directory is None:
            return
        stored = _read(directory / CERTIFIED)
        if stored:
            differing = [(name, value) for name, value in where().items() if stored[name] != value]
            self.changed = ", ".join(f"{name} {stored[name]} -> {value}" for name, value in differing)
        if not self.changed:
            self._verdicts, self._calls, self._used = (stored.get(key, {}) for key in ("programs", "calls", "used"))
            self._on_device = stored.get("on_device", {})
        self._load_choices(directory / CHOICES)

    def verdict(self, name: str) -> str | None:
        """Returns why a program does not repeat; "" if it does; None if that was never tried in this run."""
        return self._verdicts.get(name)

    def judge(self, name: str, reason: str = "") -> None:
        """Records that a program was shown to repeat, or why it does not."""
        self._verdicts[name] = reason
        self._write()

    def calls(self, kind: str) -> Calls | None:
        """Returns how the steps of a kind are called; None if that is not decided."""
        return self._calls.get(kind)

    def decide(self, kind: str, calls: Calls) -> None:
        """Records how the steps of a kind are called from now on, in this process and in later ones."""
        self._calls[kind] = calls
        self._write()

    def use(self, steps: str, name: str) -> None:
        """Records which program runs some steps; warns if an earlier attempt had another one.

        Args:
          steps: The kind and the shapes of the steps.
          name: The digest of the program.
        """
        if (before := self._used.get(steps)) == name:
            return
        if before is not None:
            text = "the program of the %s steps is not the one that this run began with, so the bits may differ: %s"
            logger.warning(text, steps.split()[0], "their code has changed, or XLA has chosen other kernels")
        self._used[steps] = name
        self._write()

    def agrees_with(self, other: "Programs") -> bool:
        """Whether another run has the same programs, and calls them in the same way, as far as both have any."""
        calls, used = self._calls.keys() & other._calls.keys(), self._used.keys() & other._used.keys()
        return all(self._used[steps] == other._used[steps] for steps in used) and all(
            (self._calls[kind].several, self._calls[kind].autotuned)
            == (other._calls[kind].several, other._calls[kind].autotuned)
            for kind in calls
        )

    def adopt(self, other: "Programs") -> None:
        """Takes over what is known of the programs of another run of this process."""
        self._verdicts = {**other._verdicts, **self._verdicts}
        self._calls = {**other._calls, **self._calls}
        self._used = {**other._used, **self._used}
        self._write()
        self.keep_choices()

    def _write(self) -> None:
        if self._directory is None:
            return
        calls = {kind: dataclasses.asdict(calls) for kind, calls in self._calls.items()}
        with self._survives_disk():
            self._directory.mkdir(parents=True, exist_ok=True)
            found = {**where(), "calls": calls, "programs": self._verdicts, "used": self._used}
            found |= {"on_device": self._on_device} if self._on_device else {}
            write_json(self._directory / CERTIFIED, found)

    @contextlib.contextmanager
    def _survives_disk(self) -> Iterator[None]:
        """Warns once if nothing can be written: training goes on without it."""
        try:
            yield
        except OSError as error:
            text = "the programs of this run cannot be kept in %s (%s): after a restart its bits may differ"
            logger.warning(text, self._directory, error)
            self._directory = None

    def calls_on_machine(self, source: str) -> Calls | None:
        """Returns how a run on this machine calls steps with the same source program; None if none does."""
        return None if self._directory is None else MachineChoices(where()).calls(source)

    def decide_on_machine(self, source: str, calls: Calls) -> None:
        """Records for later runs on this machine how steps with this source program are called."""
        if self._directory is not None:
            MachineChoices(where()).add_calls(source, calls)

    def on_device(self, kind: str) -> bool | None:
        """Returns whether the data of a kind lives on the device in this run; None if that is not decided."""
        return self._on_device.get(kind)

    def decide_on_device(self, kind: str, on_device: bool) -> None:
        """Records whether the data of a kind lives on the device: steps that gather it there are another program."""
        if self._on_device.get(kind) != on_device:
            self._on_device[kind] = on_device
            self._write()

    def _load_choices(self, path: Path) -> None:
        """Has XLA read the choices; it does so once in a process, and only before it has chosen itself.

        Those of this run come first, then what other runs on this machine have chosen.
        """
        if jax.default_backend() == "cpu":
            return
        own = path.read_text("utf-8") if path.exists() and not self.changed else ""
        joined = joined_choices(own, MachineChoices(where()).kernels())
        if not joined:
            return
        try:
            with self._survives_disk():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, joined)
            _compile_anything({"xla_gpu_load_autotune_results_from": str(path)})
        except Exception as error:  # of any type: it depends on the version
            logger.warning("XLA cannot read its choices of %s (%s): bits may change", path, str(error).splitlines()[0])

    def keep_choices(self) -> None:
        """Adds what XLA has chosen so far to the file; what the run was started with stays."""
        if self._directory is None or jax.default_backend() == "cpu":
            return
        path = self._directory / CHOICES
        new = path.with_name(f".{CHOICES.removesuffix('.pbtxt')}-new.pbtxt")
        with self._survives_disk():
            self._directory.mkdir(parents=True, exist_ok=True)
            try:
                _compile_anything({"xla_gpu_dump_autotune_results_to": str(new)})
                chosen = new.read_text("utf-8")
            except Exception as error:  # of any type: it depends on the version
                logger.debug("XLA does not write its choices: %s", error)
                return
            finally:
                with contextlib.suppress(OSError):
                    new.unlink()
            before = path.read_text("utf-8") if path.exists() and not self.changed else ""
            joined = joined_choices(before, chosen)
            if joined != before:
                write_text(path, joined)
                MachineChoices(where()).add_kernels(joined)


def where() -> dict[str, str]:
    """Returns the kind of device and the version of XLA that programs are made for."""
    return {"device": str(jax.devices()[0].device_kind), "jaxlib": str(jax.lib.__version__)}


def _read(path: Path) -> dict[str, Any]:
    """Returns what is recorded; nothing if the file is missing, damaged, or of another version of everstep."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if found.keys() >= {"device", "jaxlib"}:
            calls = {kind: Calls(**one) for kind, one in found.get("calls", {}).items()}
            return {
                **found,
                "calls": calls,
                "programs": dict(found.get("programs", {})),
                "used": dict(found.get("used", {})),
                "on_device": {kind: bool(value) for kind, value in dict(found.get("on_device", {})).items()},
            }
    return {}


def _compile_anything(options: dict[str, str]) -> None:
    """Compiles a small program that was never compiled before: XLA reads and writes its choices when it compiles."""
    number = time.time_ns() % 2**31
    jax.jit(lambda x: x + number, compiler_options=options).lower(jax.ShapeDtypeStruct((), "int32")).compile()


@contextlib.contextmanager
def keep_programs(directory: Path) -> Iterator[None]:
    """Inside the block, engines that this thread builds keep what belongs to their programs in this directory."""
    token = _current.set(Programs(directory))
    try:
        yield
    finally:
        _current.reset(token)


def current_programs() -> Programs:
    """Returns the programs of the run; outside of a run, those of this process alone."""
    return _current.get() or Programs()
