"""What each room of the package must know of others: the names that it imports, and from how many modules.

    python -m tools.rooms           # of this checkout
    python -m tools.rooms CHECKOUT  # of another one, such as a worktree of an earlier commit

A room is a folder at the top level of the package, or a file there; below `frontends`, `projects` and `recipes`
each folder is one. Doors only list names for others, so what they import does not count.
"""

import argparse
import ast
from pathlib import Path
from typing import NamedTuple

FLOORS = {"frontends", "projects", "recipes"}


class Room(NamedTuple):
    """A room: its lines, and the names and modules of others that it imports."""

    name: str
    lines: int
    names: set[str]
    modules: set[str]


def rooms(checkout: Path) -> list[Room]:
    """Returns the rooms of a checkout, the one that knows most of others first."""
    source = checkout / "src"
    paths = {_dotted(path.relative_to(source)): path for path in (source / "everstep").rglob("*.py")}
    found: dict[str, Room] = {}
    for module, path in paths.items():
        name = _room(module, paths)
        room = found.setdefault(name, Room(name, 0, set(), set()))
        text = path.read_text("utf-8")
        found[name] = room = room._replace(lines=room.lines + len(text.splitlines()))
        if module == "everstep" or "lazy_names(__name__" in text:
            continue
        for imported in _imported(ast.parse(text)):
            target = imported if imported in paths else imported.rpartition(".")[0]
            if target != "everstep" and _room(target, paths) != name:
                room.names.add(imported)
                room.modules.add(target)
    return sorted(found.values(), key=lambda room: -len(room.names))


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _room(module: str, paths: dict[str, Path]) -> str:
    names = [*module.split(".")[1:], "", ""]
    folder = paths.get(f"everstep.{names[0]}.{names[1]}")
    return f"{names[0]}.{names[1]}" if names[0] in FLOORS and folder and folder.stem == "__init__" else names[0]


def _imported(tree: ast.Module) -> list[str]:
    """Returns what a module imports of the package, also inside functions."""
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    own = [node for node in statements if (node.module or "").startswith("everstep")]
    return [f"{node.module}.{name.name}" for node in own for name in node.names]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, nargs="?", default=Path(__file__).parent.parent)
    found = rooms(parser.parse_args().checkout)
    print("| room | lines | names of others | from modules |\n|---|---|---|---|")
    for room in found:
        if room.names:
            print(f"| `{room.name}` | {room.lines:,} | {len(room.names)} | {len(room.modules)} |")
    print(f"\n{sum(room.lines for room in found):,} lines")


if __name__ == "__main__":
    main()
