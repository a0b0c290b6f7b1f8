"""Programs on a GPU that were shown to repeat their bits (JAX).

A step gives the same bits again if it is the same program, and if none of its operations race. So a program is compiled
with everything that makes it fast, autotuning and flash attention included; only what races is replaced, by
`ordered_sums.py` and by XLA's deterministic scatter. Then it is certified, at its first call:

1. Its optimized operations are searched for those that can race and were not replaced (`racing_operations`).
2. The call is repeated from the same state, and all results are compared bit by bit.

If that fails, the program is compiled anew with XLA's option for deterministic operations, which is slower, and
certified as well. `exactness` says which way was taken, for the log and the record of the run.

The repetitions of the first step show how long it takes, and that decides how all steps of its kind are called, before
it counts and in every later process of the run, and in later runs of the same program on this machine:

- A step of `LONG_STEP` or more is a call of its own: Python prepares the next call while the device computes, so longer
  calls would save nothing.
- Of shorter steps a call holds several. Autotuned programs of one step and of several may have other kernels, so all of
  them are compiled with XLA's option, which costs little there; and a call of several steps is compared with as many
  calls of one. If they differ, each step is a call.

XLA chooses kernels by timing them, and another process may choose others. `programs.py` keeps the choices.
"""

import dataclasses
import functools
import hashlib
import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from everstep.engine import exactness
from everstep.engine.ordered_sums import KEYS_PER_CALL, deterministic_libraries, ordered_sums
from everstep.engine.programs import Calls, Programs
from everstep.errors import UsageError

logger = logging.getLogger(__name__)

REPLAYS = 2
"""How often the first call of a program is repeated. Sums that race differ at almost every repetition."""

LONG_STEP = 0.001
"""The seconds of a step from which on each is a call of its own."""

SEVERAL = "calls hold several steps"

_FAST = {"xla_gpu_deterministic_ops": False, "xla_gpu_exclude_nondeterministic_ops": False}
_ORDERED_SCATTER = {"xla_gpu_enable_scatter_determinism_expander": True}
_DETERMINISTIC = {"xla_gpu_deterministic_ops": True}


def options_of(deterministic: Any) -> dict[str, bool]:
    """Returns XLA's options for programs that are not certified."""
    return _FAST if deterministic is False else _DETERMINISTIC


_UNSUPPORTED = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
"""What JAX and XLA raise where they lack a form of an operation."""


class Program(NamedTuple):
    """A compiled program, and how far it repeats its bits; None if it cannot be made."""

    compiled: Any
    level: str
    replaced: Set[str] = frozenset()
    reason: str = ""
    name: str = ""


class Certifier:
    """Compiles the programs of an engine, and certifies them.

    Args:
      deterministic: False compiles them as fast as they are; True refuses programs that do not repeat; "auto" warns.
      options: Further options of XLA.
      programs: Where the choices of XLA and what was certified are kept.
    """

    def __init__(self, deterministic: bool | Literal["auto"], options: Mapping[str, Any], programs: Programs) -> None:
        self.deterministic, self.options, self.programs = deterministic, dict(options), programs
        self._used: list[Program] = []
        if programs.changed:
            logger.warning("the programs of this run were made elsewhere, so the bits may differ: %s", programs.changed)

    @property
    def exactness(self) -> dict[str, Any]:
        """How far the bits of the steps can be repeated, for the record of the run; empty before the first one."""
        if not self._used:
            return {}
        level = min((program.level for program in self._used), key=exactness.LEVELS.index)
        replaced = sorted({name for program in self._used for name in program.replaced})
        reasons = dict.fromkeys(program.reason for program in self._used if program.reason)
        return {
            "level": level,
            **({"replaced": replaced} if replaced else {}),
            **({"reason": "; ".join(reasons)} if reasons else {}),
        }

    def runs_several(self, kind: str) -> bool | None:
        """Whether a call may hold several steps of a kind; None if that is not decided."""
        calls = self.programs.calls(kind)
        return None if calls is None else calls.several

    def first_call(
        self,
        kind: str,
        function: Callable[[str], Any],
        call: "Call",
        single_steps: Callable[[Sequence[Any], Any], Any] | None = None,
    ) -> tuple[Any, Any]:
        """Compiles a program for the shapes of its arguments, certifies it, and runs it once.

        Args:
          kind: The kind of its steps. The first program of a kind is of one step.
          function: Returns the function to compile, which donates its first argument; another one for each name of a
            way to lower it, because JAX keeps what it has lowered.
          call: The call, whose state is consumed; where this raises, `Call.state_before` still returns it.
          single_steps: Runs the same steps one by one; for a program of several steps.

        Returns:
          The compiled program, and the results of the call; None for the program if single steps give other bits: the
          results are then theirs, and each step is a call from now on.

        Raises:
          UsageError: The program does not repeat, and that is required.
        """
        calls = self.programs.calls(kind)
        if calls is None:
            program = self._decide(kind, function, call)
        elif single_steps is None:
            program = self._single(function, call, calls)
        else:
            program = self._several(function, call, calls, single_steps)
            if program.level == exactness.NONE and self.deterministic is not False:
                reason = f"calls of several steps: {program.reason}"
                self.programs.decide(kind, dataclasses.replace(calls, several=False, reason=reason))
                logger.info("each call holds one step from now on; %s", reason)
                return None, single_steps(call.state_before(), call.block)
        self._used.append(program)
        if program.name:
            self.programs.use(f"{kind} {call.shapes}", program.name)
        return program.compiled, call.results

    def move_to(self, programs: Programs) -> None:
        """Keeps what is known of the programs with another run."""
        programs.adopt(self.programs)
        self.programs = programs

    def _decide(self, kind: str, function: Callable[[str], Any], call: "Call") -> Program:
        """Certifies the first program of a kind, and decides by its duration how the steps are called."""
        program = self._single(function, call, Calls(several=False, autotuned=True), is_timed=True)
        step_ms, source = round(1000 * call.seconds, 3), f"{kind} {call.source}"
        before = self.programs.calls_on_machine(source)
        several = call.seconds < LONG_STEP if before is None else before.several
        if several and program.level in (exactness.CERTIFIED, exactness.REPLACED):
            slower = self._with_option(function, call, SEVERAL, is_timed=True)
            several = slower.level == exactness.OPTION and (call.seconds < LONG_STEP or before is not None)
            program = slower if several else program
            call.ensure(program.compiled)
        elif program.level == exactness.NONE and self.deterministic is not False:
            several = False
        calls = Calls(several, program.level != exactness.OPTION, program.reason, step_ms)
        self.programs.decide(kind, calls)
        if call.source:
            self.programs.decide_on_machine(source, calls)
        return program

    def _single(self, function: Callable[[str], Any], call: "Call", calls: Calls, is_timed: bool = False) -> Program:
        """Makes a program of one step: autotuned, with XLA's option, or as none that repeats."""
        if self.deterministic is False:
            return self._plain(function, call, exactness.NOT_REQUESTED, is_timed)
        reason = calls.reason
        if calls.autotuned:
            program = self._autotuned(function, call, is_timed)
            if program.level != exactness.NONE:
                return program
            reason = program.reason
        program = self._with_option(function, call, reason, is_timed)
        if program.level != exactness.NONE:
            return program
        if self.deterministic is True:
            raise UsageError(
                f"a step cannot be repeated bit for bit on this device: {program.reason}",
                key="runtime.deterministic",
                received=True,
                remedy="leave it out, or use another device",
            )
        logger.warning("on this device a repeated or resumed run may end with other bits: %s", program.reason)
        return self._plain(function, call, program.reason)

    def _several(self, function: Callable[[str], Any], call: "Call", calls: Calls, single_steps: Any) -> Program:
        """Makes a program of several steps; its level is `none` if it gives other bits than single steps."""
        if self.deterministic is False:
            return self._plain(function, call, exactness.NOT_REQUESTED)
        if calls.autotuned:
            return self._autotuned(function, call, single_steps=single_steps)
        return self._with_option(function, call, calls.reason, single_steps=single_steps)

    def _plain(self, function: Callable[[str], Any], call: "Call", reason: str, is_timed: bool = False) -> Program:
        compiled = self._compile(function("plain").lower(call.state_before(), call.block), _FAST)
        if is_timed:
            call.repeat(compiled)
        call.ensure(compiled)
        return Program(compiled, exactness.NONE, reason=reason)

    def _autotuned(
        self, function: Callable[[str], Any], call: "Call", is_timed: bool = False, single_steps: Any = None
    ) -> Program:
        traced, name = function("ordered").trace(call.state_before(), call.block), ""
        replaced: Set[str] = frozenset()
        try:
            with ordered_sums(_platform()) as replaced:
                lowered = traced.lower()
            call.source = hashlib.sha256(lowered.as_text().encode()).hexdigest()[:32] if is_timed else ""
            compiled = self._compile(lowered, _FAST | _ORDERED_SCATTER)
            if racing := racing_operations(_text(compiled)):
                reason = f"{', '.join(sorted(racing))} can race"
            else:
                name, reason = self._judged(compiled, call, is_timed, single_steps)
        except _UNSUPPORTED as error:
            compiled, reason = None, _why_unsupported(error)
        if reason:
            return Program(compiled, exactness.NONE, reason=reason)
        level = exactness.REPLACED if replaced else exactness.CERTIFIED
        return Program(compiled, level, frozenset(replaced), "", name)

    def _with_option(
        self,
        function: Callable[[str], Any],
        call: "Call",
        reason: str,
        is_timed: bool = False,
        single_steps: Any = None,
    ) -> Program:
        traced, name = function("deterministic").trace(call.state_before(), call.block), ""
        replaced: Set[str] = frozenset()
        try:
            with ordered_sums(_platform()) as replaced, deterministic_libraries(_platform()):
                lowered = traced.lower()
            compiled = self._compile(lowered, _DETERMINISTIC)
            name, why_not = self._judged(compiled, call, is_timed, single_steps)
        except _UNSUPPORTED as error:
            compiled, why_not = None, _why_unsupported(error)
        if why_not:
            return Program(compiled, exactness.NONE, reason="; ".join(filter(None, [reason, why_not])))
        return Program(compiled, exactness.OPTION, frozenset(replaced), reason, name)

    def _judged(self, compiled: Any, call: "Call", is_timed: bool, single_steps: Any) -> tuple[str, str]:
        """Returns the name of a program, and why it does not repeat its bits.

        If it does, the reason is empty, and its results are those of the call.
        """
        name = fingerprint(compiled)
        known = self.programs.verdict(name)
        if known is None or is_timed:
            differing = call.repeat(compiled)
            known = f"{differing} results differed when a step was repeated" if differing else ""
            if not known and single_steps is not None and call.differs_from(single_steps):
                known = "single steps give other bits"
            self.programs.judge(name, known)
        if not known:
            call.ensure(compiled)
        return name, known

    def _compile(self, lowered: Any, options: Mapping[str, Any]) -> Any:
        known = {name: value for name, value in options.items() if _is_known(name)}
        compiled = lowered.compile(compiler_options={**self.options, **known})
        self.programs.keep_choices()
        return compiled


class Call:
    """The first call of a program, which can be run again from the same state.

    To run it again, the state is kept on the host: a second one on the device might not fit.

    Args:
      state: The state; the first run consumes its arrays.
      block: The batches.
      changing: The positions in the state of what a program may change.

    Attributes:
      block: The batches.
      shapes: A digest of the shapes and types of the state and of the batches.
      results: What the last run returned.
      seconds: The duration of the quickest run of the last program that was repeated.
      source: The digest of the first program before XLA has optimized it; empty if none was made.
    """

    def __init__(self, state: Sequence[Any], block: Any, changing: Sequence[int]) -> None:
        self.block, self.shapes, self.seconds = block, _shapes((list(state), block)), math.inf
        self.results: tuple[list[Any], Any, Any] = list(state), [], None
        self.source = ""
        self._changing = changing
        self._kept: list[np.ndarray] | None = None
        self._places = [value.sharding for value in state]
        self._ran: Any = None  # the program of the results

    def state_before(self) -> list[Any]:
        """Returns the state before the call, on the device; what the last run has changed is dropped."""
        state = self.results[0]
        changed = set() if self._ran is None else set(self._changing)  # the first run gets, and frees, the arrays given
        missing = [n for n, value in enumerate(state) if value is None or n in changed or value.is_deleted()]
        if self._kept is None:  # nothing has run
            return list(state)
        for position in missing:
            state[position] = None  # before the copy: there may be no room for both
        kept, places = [self._kept[n] for n in missing], [self._places[n] for n in missing]
        values = jax.device_put(kept, places, may_alias=False)  # the call may overwrite them
        before = dict(zip(missing, values, strict=True))
        return [before.get(position, value) for position, value in enumerate(state)]

    def repeat(self, compiled: Any) -> int:
        """Runs a program several times; returns how many of its results differed."""
        self.seconds = self._run(compiled)
        expected = _bits(self.results, self._changing)
        for _ in range(REPLAYS):
            self.seconds = min(self.seconds, self._run(compiled))
            if differing := _differing(expected, _bits(self.results, self._changing)):
                return differing
        return 0

    def differs_from(self, single_steps: Callable[[Sequence[Any], Any], Any]) -> bool:
        """Whether the same steps give other bits one by one than in the program that ran last."""
        together = _bits(self.results, self._changing)
        self._run(single_steps)
        return _differing(together, _bits(self.results, self._changing)) > 0

    def ensure(self, compiled: Any) -> None:
        """Runs a program, unless the results are its own."""
        if self._ran is None:  # never again: nothing needs to be kept
            self.results = compiled(self.state_before(), self.block)
        elif self._ran is not compiled:
            self._run(compiled)

    def _run(self, program: Callable[[Sequence[Any], Any], Any]) -> float:
        if self._kept is None:
            self._kept = _host_copies(self.results[0])
        state = jax.block_until_ready(self.state_before())
        begin = time.perf_counter()
        self.results = jax.block_until_ready(program(state, self.block))
        self._ran = program
        return time.perf_counter() - begin


def _why_unsupported(error: Exception) -> str:
    """Returns an error of JAX or XLA as a reason."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _shapes(values: Any) -> str:
    leaves, structure = jax.tree.flatten(values)
    text = f"{structure} {[(leaf.shape, str(leaf.dtype)) for leaf in leaves]}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _host_copies(values: Sequence[Any]) -> list[np.ndarray]:
    """Returns copies of arrays on the host; on a CPU, where JAX would return the memory of the arrays, too."""
    found: list[np.ndarray] = jax.device_get(list(values))
    return [np.array(value) for value in found] if jax.default_backend() == "cpu" else found


def _bits(results: tuple[Sequence[Any], Any, Any], changing: Sequence[int]) -> list[np.ndarray]:
    """Returns host copies of what a call has changed or returned."""
    state, logs, outputs = results
    values = jax.device_get([*(state[position] for position in changing), logs, outputs])
    return [np.asarray(value) for value in jax.tree.leaves(values)]


def _differing(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> int:
    return sum(not np.array_equal(_raw(one), _raw(other)) for one, other in zip(first, second, strict=True))


def _raw(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _text(compiled: Any) -> str:
    return compiled.as_text() or ""


_SOURCES = re.compile(
    r", metadata=\{[^}]*\}|^(FileNames|FunctionNames|FileLocations|StackFrames)\n(\d+ .*\n)*", re.MULTILINE
)
"""Where in the source code operations come from: that is another place if another function has traced them first."""


def fingerprint(compiled: Any) -> str:
    """Returns a digest of what a program computes and how: its operations with the kernels that were chosen."""
    text = _SOURCES.sub("", _text(compiled))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _platform() -> str:
    """Returns JAX's name of the platform that programs are lowered for."""
    backend = jax.devices()[0].client
    if backend.platform != "gpu":
        return str(backend.platform)
    return "rocm" if "rocm" in backend.platform_version.lower() else "cuda"


_FLASH_GRADIENT = re.compile(r"= \(([^()]*)\) custom-call\(.*custom_call_target=\"__cudnn\$fmha\w*Backward\"")


def racing_operations(text: str) -> set[str]:
    """Returns the operations of a compiled program whose results depend on the order in which threads run."""
    return set(_racing(text))


def _racing(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if " scatter(" in line and "unique_indices=true" not in line:
            if "to_apply" in line and not _is_integer(line):
                yield "scatter"
        elif " select-and-scatter(" in line:
            yield "select-and-scatter"
        elif (found := _FLASH_GRADIENT.search(line)) is not None:
            keys = re.findall(r"\w+\[([\d,]*)\]", found.group(1))[1].split(",")
            if int(keys[2]) > KEYS_PER_CALL:
                yield "the gradient of flash attention"


def _is_integer(line: str) -> bool:
    """Whether the result of an operation is an integer: its sums are the same in any order."""
    return re.search(r"= [suo]?(pred|[su]\d+)\[", line) is not None


@functools.cache
def _is_known(option: str) -> bool:
    """Whether this XLA has an option."""
    try:
        jax.jit(lambda x: x, compiler_options={option: True}).lower(0).compile()
    except Exception as error:  # of any type: it depends on the version
        logger.debug("this version of XLA has no option %s: %s", option, error)
        return False
    return True
