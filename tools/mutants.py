"""Are the tests of a module strict? It is changed in small ways; at least one test should fail for each change.

    python -m tools.mutants src/everstep/checkpoint/manifest.py --tests tests/checkpoint --minutes 15

A comparison becomes its opposite, `and` becomes `or`, a number grows by one, a condition is negated, a statement is
left out. The tests run with `-x`, in a copy of the repository: sources that you edit meanwhile are not touched. Each of
`--tests` runs only if those before it notice nothing. What survives is printed at once, with its line; not every
survivor is a hole, some changes have no effect that one could test. The changes are tried in a random order, so that
those before the time limit are a fair sample.
"""

import argparse
import ast
import contextlib
import copy
import gc
import importlib.util
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
OPPOSITES: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mod: ast.Mult,
}


def variants(node: ast.AST) -> Iterator[ast.AST]:
    """Yields what a node is replaced with, one small change each."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPPOSITES:
        yield ast.Compare(node.left, [OPPOSITES[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(OPPOSITES[type(node.op)](), node.values)  # type: ignore[arg-type]
        yield from node.values
    elif isinstance(node, ast.BinOp) and type(node.op) in OPPOSITES and not isinstance(node.left, ast.JoinedStr):
        yield ast.BinOp(node.left, OPPOSITES[type(node.op)](), node.right)  # type: ignore[arg-type]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        yield ast.Constant(not node.value if isinstance(node.value, bool) else node.value + 1)
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        changed = copy.copy(node)
        changed.test = ast.UnaryOp(ast.Not(), node.test)
        yield changed
    elif isinstance(node, ast.Return) and _is_more_than_none(node.value):
        yield ast.Return(ast.Constant(None))
    elif _is_left_out(node):
        yield ast.Pass()


def _is_more_than_none(value: ast.expr | None) -> bool:
    """Whether it makes a difference to return None: it makes none for `return`, and hardly ever for `return False`."""
    is_false = isinstance(value, ast.Constant) and (value.value is None or value.value is False)
    return value is not None and not is_false


def _is_left_out(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant | ast.Yield)  # a call, not a docstring
    return isinstance(node, ast.Raise | ast.AugAssign | ast.Continue | ast.Break)


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        """Replaces one node, and looks no further below it."""
        return ast.copy_location(self.new, node) if node is self.old else self.generic_visit(node)


def mutants(source: str) -> Iterator[tuple[int, str, str]]:
    """Yields each change of a module as its line, a description, and the changed source."""
    for index, node in enumerate(ast.walk(ast.parse(source))):
        for number in range(len(list(variants(node)))):
            tree = ast.parse(source)
            old = next(itertools.islice(ast.walk(tree), index, None))
            new = list(variants(old))[number]
            described = f"{_first_line(old)}  ->  {_first_line(new)}"
            changed = _Replace(old, new).visit(tree)
            yield getattr(node, "lineno", 0), described, ast.unparse(ast.fix_missing_locations(changed))


def _first_line(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).splitlines()[0][:100]


def fails(tests: str, seconds: float) -> bool:
    """Runs tests in a fork of this process, which has imported what they need; returns whether one fails."""
    pid = os.fork()
    if not pid:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # loading all of them takes longer than quick tests
        import pytest

        options = ["-x", "-q", "-p", "pytest_timeout", "-p", "no:cacheprovider", "-m", "not full"]
        os._exit(int(pytest.main([*options, tests])) != 0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status != 0
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)  # a loop that does not end is a failure, too
    os.waitpid(pid, 0)
    return True


def seconds_of(tests: str) -> float:
    """Returns how long tests take while the module is unchanged."""
    begin = time.monotonic()
    if fails(tests, 600):
        raise SystemExit(f"{tests} fails without any change")
    return time.monotonic() - begin


def import_what_tests_need(tests: list[str], module: Path) -> None:
    """Imports what the tests load, and what does not need the changed module: then a fork is ready at once."""
    code = f"import pytest, sys; pytest.main(['-q', '--collect-only', *{tests}]); print('\\n', *sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    packages = ("everstep", "jax", "keras", "numpy", "orbax", "pyarrow", "pytest", "tensorboard", "torch")
    changed = ".".join(module.with_suffix("").parts[1:]).removesuffix(".__init__")
    sys.modules[changed] = None  # type: ignore[assignment]  # what needs it cannot be imported now
    for name in printed.splitlines()[-1].split():
        rewritten = name.startswith("everstep.testing")  # its asserts, by pytest
        if name.partition(".")[0] in packages and not rewritten:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    del sys.modules[changed]
    gc.freeze()  # a collection in a fork would look at all of that, and copy it


def main() -> int:
    """Prints the changes that no test notices; returns 1 if there are some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", type=Path)
    parser.add_argument("--tests", nargs="+", required=True, help="files or folders, the quickest first")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--lines", type=int, nargs="+", help="only the changes of these lines")
    parser.add_argument("--seed", type=int, default=0, help="decides the order")
    given = parser.parse_args()
    module = given.module.resolve().relative_to(ROOT)
    source = (ROOT / module).read_text("utf-8")
    found = list({text: (line, what, text) for line, what, text in mutants(source)}.values())
    found = [change for change in found if not given.lines or change[0] in given.lines]
    random.Random(given.seed).shuffle(found)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("src", "tests", "benchmarks", "tools", "pyproject.toml"):
            copied = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copied(ROOT / name, Path(folder, name))
        survivors, tried, end = [], 0, time.monotonic() + 60 * given.minutes
        os.chdir(folder)
        sys.path[:0] = [str(Path(folder, "src")), folder]
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
        compiled = Path(importlib.util.cache_from_source(str(module)))
        os.environ.setdefault("KERAS_BACKEND", "jax")
        import_what_tests_need(given.tests, module)
        limits = {tests: 20 + 5 * seconds_of(tests) for tests in given.tests}
        for line, what, text in found:
            if time.monotonic() > end:
                break
            tried += 1
            Path(module).write_text(text, "utf-8")
            compiled.unlink(missing_ok=True)  # of the change before: a clock may not tell the two files apart
            if not any(fails(tests, seconds) for tests, seconds in limits.items()):
                survivors.append(line)
                print(f"{module}:{line}  {what}", flush=True)
    print(f"{len(found)} changes, {tried} tried, {tried - len(survivors)} noticed, {len(survivors)} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
