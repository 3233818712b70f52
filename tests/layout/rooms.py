"""The rooms of each top-level folder, the imports drawn between them, and circles: python -m tests.layout.rooms

A room is a module or a folder at the folder's top level. Modules that import one another in a circle are counted as one.
"""

import sys
from typing import NamedTuple

import grimp

PACKAGES = ("sqlagent", "app", "agent", "decoding", "kernels", "tools", "ui", "eval", "training")


class Arrangement(NamedTuple):
    rooms: int
    imports: int  # pairs of rooms of which one imports the other
    circles: int  # among all its modules


def rooms(package: str) -> Arrangement:
    graph = grimp.build_graph(package)
    depth = package.count(".") + 1
    top = {module: ".".join(module.split(".")[: depth + 1]) for module in graph.modules}
    edges = {(a, b) for a in graph.modules for b in graph.find_modules_directly_imported_by(a)}
    arrows = {(top[a], top[b]) for a, b in edges if top[a] != top[b] and package not in (top[a], top[b])}
    return Arrangement(len(graph.find_children(package)), len(arrows), _circles(graph.modules, edges))


def _circles(modules: set[str], edges: set[tuple[str, str]]) -> int:
    """Groups of two or more modules that can all reach one another."""
    following = {module: {b for a, b in edges if a == module} for module in modules}
    reached = {module: _reached(module, following) for module in modules}
    groups = {frozenset(b for b in reached[a] if a in reached[b]) for a in modules}
    return sum(len(group) > 1 for group in groups)


def _reached(start: str, following: dict[str, set[str]]) -> set[str]:
    found, todo = set[str](), [start]
    while todo:
        for module in following[todo.pop()] - found:
            found.add(module)
            todo.append(module)
    return found


if __name__ == "__main__":
    for name in sys.argv[1:] or PACKAGES:
        print("{:12} {:3} rooms {:4} imports {:2} circles".format(name, *rooms(name)))
