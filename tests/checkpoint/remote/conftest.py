"""One server and one bad network per kind of store, shared by all tests of this folder."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from tests.checkpoint.remote.servers import BadNetwork, Server, environment, fresh_url, running


class Place:
    """A kind of store, and the network to it.

    Attributes:
      network: The proxy in front of the server; None for a store without a server.
    """

    def __init__(self, scheme: str, folder: Path, server: Server | None = None, network: BadNetwork | None = None):
        self.scheme, self.folder, self.server, self.network = scheme, folder, server, network

    def url(self, name: str = "run") -> str:
        return fresh_url(self.scheme, self.folder, name)

    def environment(self) -> dict[str, str]:
        return environment(self.scheme, self.network.uri) if self.network else {}


@pytest.fixture(scope="session")
def _places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Place]]:
    folder = tmp_path_factory.mktemp("stores")
    places = {scheme: Place(scheme, folder) for scheme in ("file", "memory")}
    with contextlib.ExitStack() as stack:

        class OnDemand(dict):
            def __missing__(self, scheme: str) -> Place:
                server = stack.enter_context(running(scheme, folder))
                self[scheme] = Place(scheme, folder, server, stack.enter_context(BadNetwork(server.uri)))
                return self[scheme]

        yield OnDemand(places)


@pytest.fixture(scope="module")
def _with_clients() -> set[str]:
    """The kinds of store that this module has a client for: creating one takes long, so tests share it."""
    return set()


class _ShortSleeps:
    """Stands in for `asyncio` in gcsfs, which sleeps a second and more between its retries."""

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 50)


@pytest.fixture
def place(
    request: pytest.FixtureRequest, _places: dict[str, Place], _with_clients: set[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """The store of a test's parameter, with a good network at the start and short pauses between retries."""
    found = _places[request.param]
    for name, value in {**found.environment(), "EVERSTEP_STORE_TIMEOUT": "30"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("everstep.checkpoint.remote.store._FIRST_PAUSE", 0.02)
    monkeypatch.setattr("everstep.checkpoint.remote.mirror._POLL_SECONDS", 0.05)
    monkeypatch.setattr("everstep.checkpoint.remote.mirror._FIRST_PAUSE", 0.1)
    if found.scheme == "gs":  # not for others: gcsfs reads the environment when it is imported
        monkeypatch.setattr("gcsfs.retry.asyncio", _ShortSleeps)
    if found.scheme not in _with_clients:  # clients of other modules may use other servers
        fsspec.get_filesystem_class(found.scheme).clear_instance_cache()
        _with_clients.add(found.scheme)
    yield found
    if found.network:
        found.network.fault, found.network.delay = "none", 0.0
        found.network.trouble, found.network.trouble_at, found.network.trouble_left = "", "", 1 << 30


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test that uses `place` on each store of its mark `stores`, by default on all of them."""
    if "place" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("stores")
        schemes = mark.args if mark else ("file", "memory", "s3", "gs")
        metafunc.parametrize("place", schemes, indirect=True, ids=list(schemes))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "stores(*schemes): the kinds of store that a test runs on")


@pytest.fixture(autouse=True)
def _no_thread_outlives_its_test() -> Iterator[None]:
    """A thread that still uploads, fetches or renews would do so in the next test."""
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before and "everstep" in thread.name]
    assert not left
