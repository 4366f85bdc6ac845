"""The scheduler's rooms are its own: nothing else of the daemon reaches into them."""

import ast
from collections.abc import Iterator

from tests.house.source import name_of, nodes_of, python_files, tree_of

ROOMS = {"order", "admission", "residency"}


def reaches(tree: ast.Module) -> Iterator[int]:
    """Lines that read a room of something that is called a scheduler."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Attribute) and node.attr in ROOMS:
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if name == "scheduler":
                yield node.lineno


def test_the_check_sees_what_it_should() -> None:
    text = "core.scheduler.order.rank\nscheduler.residency\nscheduler.slots.order()\n"
    assert sorted(reaches(ast.parse(text))) == [1, 2]


def test_nothing_else_reaches_into_a_room() -> None:
    found = [
        f"{name_of(path)}:{line}"
        for path in python_files("daemon", "tui", "benchmarks")
        if "daemon/scheduler" not in name_of(path)
        for line in reaches(tree_of(path))
    ]
    assert not found
