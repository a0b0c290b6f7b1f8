"""One backend per process: `pytest --backend jax -m backend` repeats on JAX what depends on the backend."""

import ast
import functools
import gc
import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import Any

import hypothesis
import pytest

pytest.register_assert_rewrite("everstep.testing")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--backend", choices=["tensorflow", "jax", "torch"], help="the Keras backend of this process")
    parser.addoption("--quick", action="store_true", help="only files that neither train nor start processes")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: of a whole file: it trains, or starts processes; not in `make check`")
    config.addinivalue_line("markers", "backend: depends on the Keras backend; `make test` runs it on each")
    config.addinivalue_line("markers", "daily(*backends): on the other backends, `make test-full` alone runs it")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with it ignored
    backend = config.getoption("--backend")
    if backend == "torch" and importlib.util.find_spec("torch") is None:
        pytest.exit(f"all tests on PyTorch are skipped: it is not installed{_why_not()}", returncode=0)
    if backend:
        os.environ["KERAS_BACKEND"] = backend  # before any test module imports Keras
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of PyTorch: several tests run at once
    hypothesis.settings.register_profile("tests", deadline=None)  # a machine may be slow
    hypothesis.settings.load_profile("tests")
    _keep_compiled_programs(config.rootpath / ".pytest_cache" / "compiled")
    _start_children_sooner(config.rootpath / "tests" / "children")
    sys.addaudithook(_note_processes)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Lets the garbage collector run less often, and leave alone all that is imported: each of its runs takes long."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _why_not() -> str:
    """Returns pip's errors when `make` tried to install it."""
    log = Path(sys.prefix, "torch.log")
    lines = log.read_text("utf-8").split("\n") if log.is_file() else []
    return "".join(f" ({line.strip()})" for line in lines if line.startswith("ERROR"))


def _keep_compiled_programs(folder: Path) -> None:
    """Most of the time on JAX goes into compiling the same small programs: XLA keeps them from run to run."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def _start_children_sooner(folder: Path) -> None:
    """Processes that tests start read the `sitecustomize.py` in this folder; this process has started already."""
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(folder) not in path:  # the worker of a pytest that has put it there
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), *path]))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips whole files, without importing them.

    On a further backend, files without backend tests. With `-m gpu`, files and folders without tests for a GPU: what
    they import may not be there. With `--quick`, files that are marked `slow`: they take nine tenths of the time.
    """
    mark = config.getoption("markexpr").partition(" ")[0]
    if mark == "gpu" and collection_path.is_dir():
        return not any("mark.gpu" in path.read_text("utf-8") for path in collection_path.rglob("test_*.py")) or None
    if not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text("utf-8")
    if mark in ("backend", "gpu") and f"mark.{mark}" not in text:
        return True
    if config.getoption("--quick") and is_slow(collection_path):
        return True
    return None


@functools.cache
def is_slow(path: Path) -> bool:
    """Whether a file of tests is marked `slow` as a whole, or `backend`: then it trains on each of them."""
    assigned = [node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.Assign)]
    marks = [node.value for node in assigned if ast.unparse(node.targets[0]) == "pytestmark"]
    names = {ast.unparse(node) for mark in marks for node in ast.walk(mark) if isinstance(node, ast.Attribute)}
    return bool(names & {"pytest.mark.slow", "pytest.mark.backend"})


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks as `full` what is tested daily on other backends; moves files that train or start processes to the front.

    So no core waits for one of them at the end. With `-m gpu`, the longest are every second test at the beginning: each
    core begins with two tests, and gets one of them.
    """
    everywhere = {"torch"} if importlib.util.find_spec("torch") is None else set()  # what it would run is run by others
    for item in items:
        daily = item.get_closest_marker("daily")
        if daily is not None and not {config.getoption("--backend"), *everywhere} & set(daily.args):
            item.add_marker("full")
    items.sort(key=lambda item: not is_slow(item.path))
    if config.getoption("markexpr") == "gpu":
        long = [item for item in items if item.get_closest_marker("full") or item.get_closest_marker("slow")]
        long.sort(key=lambda item: item.get_closest_marker("slow") is None)  # kills of whole runs
        items[:] = [item for item in items if item not in long]
        for place, item in enumerate(long):
            items.insert(2 * place, item)


_slow_events: list[str] = []
"""What the test that runs now has done that only files marked `slow` may do."""


def _note_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """Notes each Python, and each program of its environment, that this process starts; a `git` is no reason."""
    if event == "os.fork":
        _slow_events.append("starts a process")
    elif event in ("subprocess.Popen", "os.posix_spawn"):
        folder, program = os.path.split(os.fsdecode(arguments[0]))
        if folder == os.path.dirname(sys.executable):
            _slow_events.append(f"starts {program}")


@functools.cache
def _note_training() -> None:
    from everstep.engine import Engine

    calls = Engine.calls

    def noting(*arguments: Any, **options: Any) -> Any:
        _slow_events.append("trains")
        return calls(*arguments, **options)

    Engine.calls = functools.wraps(calls)(noting)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    _slow_events.clear()
    if item.config.getoption("--quick") or "everstep.engine.engine" in sys.modules:
        _note_training()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Any:
    """Fails a test that trains or starts processes in a file that `make check` runs."""
    result = yield
    if _slow_events and not is_slow(item.path):
        pytest.fail(f"{item.path.name} {_slow_events[0]}: mark the file, pytestmark = pytest.mark.slow", pytrace=False)
    return result


@pytest.fixture(autouse=True)
def _signals_are_handled_as_before():
    """Fails a test after which another handler answers a signal: Ctrl-C would not end what the next ones start.

    SIGALRM is pytest-timeout's, which no longer answers it when a test has failed.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    changed = {number: former for number, former in before.items() if signal.getsignal(number) != former}
    for number, former in changed.items():
        signal.signal(number, former)
    assert not changed, f"the test leaves handlers behind: {[signal.Signals(number).name for number in changed]}"


@pytest.fixture(autouse=True)
def _restore_registered_optimizers():
    """Removes the optimizers that a test has registered: the next one expects the shipped ones."""
    from everstep.task.optim import config as registry

    before = dict(registry._registered)
    yield
    if registry._registered != before:
        registry._registered.clear()
        registry._registered.update(before)
        registry._extended.cache_clear()


@pytest.fixture
def no_export(monkeypatch):
    """Runs of `fit` end without an export, which on PyTorch takes longer than a short training."""
    monkeypatch.setattr("everstep.run.exporting.export_all", lambda model, directory, sample, formats: [directory])


@pytest.fixture(scope="session")
def tiny_preset(tmp_path_factory):
    """Returns a function that makes a tiny KerasHub preset, once: `tiny_preset("causal_lm", "llama3")`."""

    @functools.cache
    def preset_folder(kind: str, family: str, **arguments: Any) -> str:
        from everstep.testing import hub

        directory = tmp_path_factory.mktemp("presets") / family
        return getattr(hub, f"tiny_{kind}")(directory, family, **arguments)

    return preset_folder
