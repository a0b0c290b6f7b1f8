"""The states of the global random generators of Python and NumPy, read and set in microseconds.

Around each batch of a source whose code may draw random numbers, both states are exchanged, and exchanged back. The
functions of `random` and `np.random` take some 200 microseconds for that, because they make 1,250 Python numbers of a
state: more than reading a small batch takes. So the states are copied as bytes here. NumPy gives the address of its
generator's memory; Python's generator is an object with its numbers behind the header. Before that is used, a process
checks on generators of its own that it finds their numbers there. Where it does not, and for another kind of generator,
the functions are called.
"""

import ctypes
import functools
import random
import threading
from typing import Any, NamedTuple

import numpy as np

from everstep.data import nest

_WORDS = 624  # of a Mersenne Twister; a number beside them is the place of the next one
_BYTES = 4 * (_WORDS + 1)
_numpy: Any = np.random  # its stubs lack two functions


class States(NamedTuple):
    """The states of both generators: as bytes, or as `getstate` and `get_state` return them.

    Attributes:
      python: That of `random`: its place and words.
      gauss: The second of two normal numbers that `random.gauss` drew at once, if it is left over.
      numpy: That of `np.random`: its words and place.
      normal: A normal number that is left over there.
    """

    python: Any
    gauss: float | None
    numpy: Any
    normal: float | None

    def for_people(self) -> tuple[Any, Any]:
        """Returns what `random.getstate()` and `np.random.get_state(legacy=False)` return in these states."""
        python, numpy = self.python, self.numpy
        if isinstance(python, bytes):
            place, *words = np.frombuffer(python, np.uint32).tolist()
            python = random.Random.VERSION, (*words, place), self.gauss
        if isinstance(numpy, bytes):
            words = np.frombuffer(numpy, np.uint32)
            state = {"key": words[:_WORDS].copy(), "pos": int(words[_WORDS])}
            rest = {"has_gauss": int(self.normal is not None), "gauss": self.normal or 0.0}
            numpy = {"bit_generator": "MT19937", "state": state, **rest}
        return python, numpy

    def differ_from(self, other: "States") -> bool:
        """Whether anything was drawn, or set, between the two."""
        return self._comparable() != other._comparable()

    def _comparable(self) -> tuple[Any, ...]:
        if isinstance(self.numpy, bytes):
            return self
        leaves = nest.walk(self.numpy)
        return *self[:2], [(path, leaf.tobytes() if isinstance(leaf, np.ndarray) else leaf) for path, leaf in leaves]


def get() -> States:
    """Returns the states of both global generators."""
    if not _are_usual():
        return States(random.getstate(), None, np.random.get_state(legacy=False), None)
    generator = _global_python()
    python, gauss = _memory_of_python(generator).raw, generator.gauss_next
    bits: Any = _numpy.get_bit_generator()
    memory = _memory_of_numpy(bits)
    numpy = memory.raw
    # Whether a normal number is left over cannot be read. If there is one, this returns it, and draws nothing.
    normal = np.random.standard_normal()
    if memory.raw != numpy:
        memory.raw = numpy
        _numpy.set_bit_generator(bits)  # forgets the second of the two numbers that were drawn now
        return States(python, gauss, numpy, None)
    states = States(python, gauss, numpy, normal)
    put(states)
    return states


def put(states: States) -> None:
    """Sets the states of both global generators."""
    if not (isinstance(states.python, bytes) and _are_usual()):
        python, numpy = states.for_people()
        random.setstate(python)
        np.random.set_state(numpy)
        return
    generator = _global_python()
    _memory_of_python(generator).raw, generator.gauss_next = states.python, states.gauss
    bits: Any = _numpy.get_bit_generator()
    _memory_of_numpy(bits).raw = states.numpy
    if states.normal is None:
        _numpy.set_bit_generator(bits)  # forgets a normal number that is left over
    else:
        np.random.set_state(states.for_people()[1])


def seeded(words: np.ndarray) -> States:
    """Returns the states after `random.seed(words.tobytes())` and `np.random.seed(words)`."""
    with _seeding:
        python, bits, numpy = _own_generators()
        python.seed(words.tobytes())
        numpy.seed(words)
        if not _is_memory_known():
            return States(python.getstate(), None, numpy.get_state(legacy=False), None)
        return States(_memory_of_python(python).raw, None, _memory_of_numpy(bits).raw, None)


_seeding = threading.Lock()  # held while the own generators are used


@functools.cache
def _own_generators() -> tuple[Any, Any, Any]:
    bits = np.random.MT19937(0)
    return random.Random(0), bits, np.random.RandomState(bits)


def _are_usual() -> bool:
    """Whether the global generators are of the kinds whose memory is known."""
    numpy = type(_numpy.get_bit_generator())
    return type(_global_python()) is random.Random and numpy is np.random.MT19937 and _is_memory_known()


def _global_python() -> Any:
    """Returns the object whose methods `random.getstate` and the others are."""
    return getattr(random.getstate, "__self__", None)


@functools.cache
def _is_memory_known() -> bool:
    """Whether both memories have the numbers of a state: on generators that have drawn some."""
    python, bits = random.Random(1), np.random.MT19937(1)
    python.random()
    bits.random_raw()
    if object.__basicsize__ + _BYTES > python.__sizeof__():
        return False
    *words, place = python.getstate()[1]
    state: Any = bits.state["state"]
    return bool(
        _memory_of_python(python).raw == np.array([place, *words], np.uint32).tobytes()
        and _memory_of_numpy(bits).raw == np.append(state["key"], state["pos"]).astype(np.uint32).tobytes()
    )


def _memory_of_python(generator: random.Random) -> Any:
    return (ctypes.c_char * _BYTES).from_address(id(generator) + object.__basicsize__)


def _memory_of_numpy(bits: Any) -> Any:
    return (ctypes.c_char * _BYTES).from_address(bits.ctypes.state_address)
