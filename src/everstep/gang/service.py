"""`ServiceGang`: several processes that agree through JAX's coordination service; it is installed with every backend.

The service runs in the first process and keeps values by their keys. A value for all is set by one process and read by
the others; what all of them say is collected by the first one, which hands the list to all.

Each process writes a heartbeat. The first process reads those of all others, and they read the first one's, together
with everything else that concerns all (`_NEWS`): a process that died or froze is named within a minute, and the others
end. So the work of the service grows with the number of processes, not with its square.
"""

import collections
import contextlib
import importlib
import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from everstep import redaction
from everstep.errors import TrainingError, UsageError
from everstep.gang.coordinates import COORDINATOR, Coordinates, Member
from everstep.gang.one import Gang
from everstep.liveness import SignsOfLife

logger = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
LOST_SECONDS = 40.0
"""Without a heartbeat for so long, a process counts as lost; with the beats between, that is less than a minute."""
SLOW_SECONDS = 45.0
"""Who lets others wait for so long is named; with the pauses between two looks, that is less than a minute."""

_OWN_END_SECONDS = 2.0
_READ_SECONDS = BEAT_SECONDS + _OWN_END_SECONDS + 1.0
"""The service ends with the first process: the others, whom JAX would abort, need so long to read why it fails."""
_LEAVE_SECONDS = 60.0
_SERVICE_SECONDS = 3600
"""The limits of the service itself, which aborts the process: our own are always reached first."""

_BEATS = "everstep/beat"
"""The folder with the heartbeats of all processes but the first, which alone reads them."""
_SERVICE = "the service"
"""Among the ranks of those that must give signs of life; it does so by answering."""
_NEWS = "everstep/news"
"""The folder that every process reads: the heartbeat of the first one, a requested stop, the failure that ends all."""

_BROADCASTS = "everstep/broadcast"
"""The folder with the values that processes tell each other outside of their meetings."""


class _NotYet(Exception):
    """There is no value under a key yet."""


class ServiceGang(Gang):
    """Several processes that agree through the coordination service.

    Args:
      coordinates: Where they meet.
      members: All processes, by rank.
      seconds: How long to wait for the service at the start.
      spans_devices: Whether JAX's devices become those of all processes.
    """

    def __init__(
        self, coordinates: Coordinates, members: Sequence[Member], seconds: float, spans_devices: bool
    ) -> None:
        self.rank, self.size, self._members = coordinates.rank, coordinates.size, members
        self._service, self._client = connect(coordinates, seconds)
        self._spans_devices = spans_devices
        if spans_devices:
            _span_devices(coordinates, self._service, self._client)
        self._count = 0  # of the times that this process has met the others
        self._news: dict[str, str] = {}
        self._waits_since = 0.0  # for the others, in the middle of a step; 0 if it does not
        self._slow: set[int] = set()  # the processes that were named as slow
        self._used: list[str] = []  # keys of this process that all others have read when they meet next
        self._read: collections.deque[str] = collections.deque()  # keys that they have read; removed with a heartbeat
        self._left = threading.Event()
        self._stay_alive_until = 0.0  # after a failure: until the others have read it
        self._failure = threading.Lock()
        self._watched = range(1, self.size) if self.is_first else range(1)
        self._signs = SignsOfLife({_SERVICE: "", **dict.fromkeys(self._watched, "")})  # of other processes, by rank
        threading.Thread(target=self._beat, name="everstep-gang-beat", daemon=True).start()
        threading.Thread(target=self._watch, name="everstep-gang-watch", daemon=True).start()

    @property
    def members(self) -> Sequence[Member]:
        """All processes, by rank."""
        return self._members

    def share(self, name: str, value: Any) -> Any:
        """See `Gang.share`."""
        key = self._next_key()
        if not self.is_first:
            return self._get(f"{key}/all", name, 0)
        self._set(f"{key}/all", name, value)
        self._used.append(key)
        return value

    def gather(self, name: str, value: Any) -> list[Any]:
        """See `Gang.gather`: the first process collects the values and hands the list to all."""
        key = self._next_key()
        if not self.is_first:
            self._set(f"{key}/{self.rank}", name, value)
            return list(self._get(f"{key}/all", name, 0))
        values = [value, *(self._get(f"{key}/{rank}", name, rank) for rank in range(1, self.size))]
        self._read.extend(self._used)  # everybody is here, and has read what came before
        self._set(f"{key}/all", name, values)
        self._used = [key]  # a prefix: with it go all keys of this gathering
        return values

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """See `Gang.waiting`; the others get to know with the heartbeats."""
        self._waits_since = time.monotonic()
        try:
            yield
        finally:
            self._waits_since = 0.0

    def broadcast(self, key: str, value: Any) -> None:
        """See `Gang.broadcast`."""
        self._set(f"{_BROADCASTS}/{key}", key, value)

    def receive(self, key: str, gives_up: Callable[[], bool] = lambda: False) -> Any:
        """See `Gang.receive`."""
        while not gives_up():
            with contextlib.suppress(_NotYet):
                return self._wait_for(f"{_BROADCASTS}/{key}", 0.1)["value"]
        return None

    def forget(self, key: str) -> None:
        """See `Gang.forget`."""
        self._used.append(f"{_BROADCASTS}/{key}")

    def request_stop(self, reason: str) -> None:
        """See `Gang.request_stop`."""
        with contextlib.suppress(RuntimeError):  # requested already, or the gang is ending
            self._client.key_value_set(f"{_NEWS}/stop", reason)

    def requested_stop(self, at_once: bool = False) -> str | None:
        """See `Gang.requested_stop`; unless `at_once`, only the thread of the heartbeats communicates."""
        if at_once:
            with contextlib.suppress(RuntimeError):  # the gang is ending
                self._news = self._all_under(_NEWS)
        return self._news.get("stop")

    def fail(self, cause: str, exit_code: int = 1) -> bool:
        """See `Gang.fail`. The process may not end before the others know it, and the first one has printed it."""
        if self._left.is_set():
            return False
        self._left.set()
        first_failed = self._publish_failure(self.rank, cause, exit_code)
        is_told = not self.is_first and exit_code == 2 and first_failed is not None
        if self.is_first:
            self._stay_alive_until = time.monotonic() + _READ_SECONDS
        elif is_told:
            self._stay_alive_until = time.monotonic() + (1.0 if first_failed == 0 else _READ_SECONDS - 0.5)
        return is_told

    def leave(self) -> None:
        """Ends the gang when its work is done; waits until all processes are done."""
        if self._left.is_set():
            time.sleep(max(0.0, self._stay_alive_until - time.monotonic()))
            return
        self._left.set()
        with contextlib.suppress(RuntimeError):  # the service may be gone
            if self.is_first:  # the service ends with this process: the others may still be reading
                end = time.monotonic() + _LEAVE_SECONDS
                while len(self._all_under("everstep/left")) < self.size - 1 and time.monotonic() < end:
                    time.sleep(0.05)
            else:
                self._client.key_value_set(f"everstep/left/{self.rank}", "")
            self._client.shutdown()
        if self._service is not None:
            self._service.shutdown()
        if self._spans_devices:  # JAX would do it once more
            state = importlib.import_module("jax._src.distributed").global_state
            state.client = state.service = None

    def _next_key(self) -> str:
        self._count += 1
        return f"everstep/meet/{self._count}"

    def _set(self, key: str, name: str, value: Any) -> None:
        try:
            self._client.key_value_set(key, json.dumps({"name": name, "value": value}))
        except RuntimeError as error:
            self._raise_lost(error)

    def _get(self, key: str, name: str, rank: int) -> Any:
        """Waits for a value of a process, however long it works, as long as it lives: `_watch` finds those lost."""
        begin = time.monotonic()
        limit = SLOW_SECONDS
        while True:
            with contextlib.suppress(_NotYet):
                found = self._wait_for(key, 5.0)
                self._check_place(rank, name, found["name"])
                return found["value"]
            if time.monotonic() - begin > limit:
                limit = math.inf
                self._say_where(name, rank)

    def _wait_for(self, key: str, seconds: float) -> dict[str, Any]:
        """Returns the value under a key.

        Raises:
          _NotYet: There was none within these seconds.
          TrainingError: The service is gone.
        """
        try:
            return dict(json.loads(self._client.blocking_key_value_get(key, int(1000 * seconds))))
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                raise _NotYet from None
            self._raise_lost(error)

    def _say_where(self, name: str, rank: int) -> None:
        """After a long wait: tells the others where this process waits, and looks where the awaited one does."""
        place = f"everstep/at/{self.rank}"
        self._client.key_value_set(place, json.dumps([self._count, name]), allow_overwrite=True)
        logger.warning(
            "%s waits for %s at %r for %d s", self._members[self.rank], self._members[rank], name, SLOW_SECONDS
        )
        for key, there in self._client.key_value_dir_get("everstep/at"):
            count, other = json.loads(there)
            if key.endswith(f"/{rank}") and count == self._count:
                self._check_place(rank, name, other)

    def _check_place(self, rank: int, name: str, other: str) -> None:
        if name != other:
            here, there = self._members[self.rank], self._members[rank]
            raise TrainingError(
                f"the processes do not do the same: rank {here.rank} is at {name!r}, {there} is at {other!r}",
                remedy="hooks, actions and callbacks must decide the same on every process",
            )

    def _raise_lost(self, error: Exception) -> NoReturn:
        text = str(error).partition("\n")[0]
        raise TrainingError(f"the connection to {self._members[0]} is lost: {text}") from error

    # -- heartbeats ----------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Removes what all have read, writes a heartbeat, reads the news and the heartbeats to watch; runs in a thread.

        A heartbeat is a number that grows, and for how many seconds the process has waited for others.
        """
        own = f"{_NEWS}/beat" if self.is_first else f"{_BEATS}/{self.rank}"
        count = 0
        while not self._left.wait(BEAT_SECONDS):
            count += 1
            since = self._waits_since
            beat = f"{count} {time.monotonic() - since if since else 0.0:.1f}"
            try:
                while self._read:
                    self._client.key_value_delete(self._read.popleft())
                self._client.key_value_set(own, beat, allow_overwrite=True)
                self._news = self._all_under(_NEWS)
                beats = self._all_under(_BEATS) if self.is_first else {"0": self._news.get("beat", "")}
            except RuntimeError:
                continue
            self._signs.hear(_SERVICE, count)
            for rank in self._watched:
                if found := beats.get(str(rank)):
                    self._signs.hear(rank, found)
            if self.is_first:
                self._name_slow({"0": beat, **beats})
            if failed := self._news.get("failed"):
                self._end(**json.loads(failed))

    def _name_slow(self, beats: Mapping[str, str]) -> None:
        """Names those for whom others have waited long in the middle of a step, once each time."""
        waited = {int(rank): float(beat.split()[1]) for rank, beat in beats.items()}
        longest = max(waited.values())
        slow = {rank for rank, seconds in waited.items() if not seconds} if longest > SLOW_SECONDS else set()
        for rank in sorted(slow - self._slow):
            logger.warning("other processes wait for %s in the middle of a step for %d s", self._members[rank], longest)
        self._slow = slow

    def _all_under(self, folder: str) -> dict[str, str]:
        """Returns the values in a folder of the service by the rest of their keys."""
        return {key.partition(f"{folder}/")[2]: value for key, value in self._client.key_value_dir_get(folder)}

    def _watch(self) -> None:
        """Ends this process when another one is lost; a thread of its own, because a frozen service blocks `_beat`."""
        while not self._signs.pause(BEAT_SECONDS, self._left.wait):
            if silent := self._signs.silent(LOST_SECONDS):
                lost = 0 if _SERVICE in silent else silent[0]
                cause = f"no heartbeat for {LOST_SECONDS:g} s: it died, is frozen, or cannot be reached"
                if self.is_first:
                    self._publish_failure(lost, cause, 1)
                self._end(lost, cause, 1)

    def _publish_failure(self, rank: int, cause: str, exit_code: int) -> int | None:
        """Tells all others of a failure; returns the rank whose failure they know, None if the service is gone."""
        line = {"rank": rank, "cause": cause, "exit_code": exit_code}
        try:
            self._client.key_value_set(f"{_NEWS}/failed", json.dumps(line))
        except RuntimeError:  # another failure is known already, or the service is gone
            with contextlib.suppress(RuntimeError, KeyError):
                return int(json.loads(self._all_under(_NEWS)["failed"])["rank"])
            return None
        return rank

    def _end(self, rank: int, cause: str, exit_code: int) -> None:
        """Ends this process because another one failed; what it has saved is safe at any instant."""
        if rank == self.rank or not self._failure.acquire(blocking=False):
            return
        if self._left.wait(_OWN_END_SECONDS):  # it may be failing for the same reason, and say so itself
            return
        if self.is_first or exit_code != 2:  # bad input is said once
            line = f"everstep: {self._members[rank]} failed: {redaction.text(cause)}"
            print(line, file=sys.stderr, flush=True)
        with contextlib.suppress(Exception):
            logging.shutdown()
        if self.is_first:
            time.sleep(_READ_SECONDS)
        elif exit_code == 2:
            time.sleep(BEAT_SECONDS + 0.5)  # the first process may know of it one heartbeat later
        os._exit(exit_code)


def connect(coordinates: Coordinates, seconds: float) -> tuple[Any, Any]:
    """Starts the service in the first process, and connects to it; returns service and client."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # else it prints a line per barrier
    runtime = importlib.import_module("jaxlib._jax")
    service = None
    if coordinates.rank == 0:
        host = "127.0.0.1" if coordinates.is_local else "[::]"
        service = runtime.get_distributed_runtime_service(
            f"{host}:{coordinates.host_and_port[1]}",
            coordinates.size,
            heartbeat_timeout=_SERVICE_SECONDS,
            cluster_register_timeout=int(seconds),
            shutdown_timeout=30,
        )
    client = runtime.get_distributed_runtime_client(
        coordinates.address,
        coordinates.rank,
        init_timeout=int(seconds),
        heartbeat_timeout=_SERVICE_SECONDS,
        shutdown_timeout=30,
        shutdown_on_destruction=False,
        use_compression=True,
    )
    client.connect()
    return service, client


def _span_devices(coordinates: Coordinates, service: Any, client: Any) -> None:
    """Makes the devices of all processes one set for JAX, as `jax.distributed.initialize` does.

    Raises:
      UsageError: JAX has set up its devices already.
    """
    if importlib.import_module("jax._src.xla_bridge").backends_are_initialized():
        raise UsageError(
            "JAX has computed something before this process joined the others",
            key=COORDINATOR,
            received=coordinates.address,
            remedy="start with `everstep train`, or create Keras objects inside the task only",
        )
    state = importlib.import_module("jax._src.distributed").global_state
    state.process_id, state.num_processes = coordinates.rank, coordinates.size
    state.service, state.client, state.coordinator_address = service, client, coordinates.address
