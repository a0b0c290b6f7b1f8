"""What each room of the package must know of others: the names that it imports, and from how many modules.

    python -m tools.rooms           # of this checkout
    python -m tools.rooms CHECKOUT  # of another one, such as a worktree of an earlier commit

A room is a folder at the top level of the package, or a file there; below `frontends`, `projects` and `recipes`
each folder is one. Doors only list names for others, so what they import does not count.

A name that a door offers counts for the door, wherever the door has it from: `from everstep.config import dialect` is a
name of the module `everstep.config`, and `from everstep import Task, fit` are two names of the module `everstep`. A
module that no door offers counts itself: `from everstep import storage` is the module `everstep.storage`.
"""

import argparse
import ast
from pathlib import Path
from typing import NamedTuple

from everstep.doors import listed

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
    texts = {module: path.read_text("utf-8") for module, path in paths.items()}
    doors = {module: listed(text) for module, text in texts.items() if "lazy_names(__name__" in text}
    for module, text in texts.items():
        name = _room(module, paths)
        room = found.setdefault(name, Room(name, 0, set(), set()))
        found[name] = room = room._replace(lines=room.lines + len(text.splitlines()))
        if module == "everstep" or module in doors:
            continue
        for source_module, imported in _imported(ast.parse(text)):
            full_name = f"{source_module}.{imported}"
            is_module = full_name in paths and imported not in doors.get(source_module, {})
            target = full_name if is_module else source_module
            if _room(target, paths) != name:
                room.names.add(full_name)
                room.modules.add(target)
    return sorted(found.values(), key=lambda room: -len(room.names))


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _room(module: str, paths: dict[str, Path]) -> str:
    names = [*module.split(".")[1:], "", ""]
    folder = paths.get(f"everstep.{names[0]}.{names[1]}")
    return f"{names[0]}.{names[1]}" if names[0] in FLOORS and folder and folder.stem == "__init__" else names[0]


def _imported(tree: ast.Module) -> list[tuple[str, str]]:
    """Returns what a module imports of the package, also inside functions: the modules it names, and names of them."""
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return [
        (node.module, name.name)
        for node in statements
        if node.module and node.module.partition(".")[0] == "everstep"
        for name in node.names
    ]


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
