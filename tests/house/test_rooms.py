"""The scheduler's rooms are its own: nothing else of the daemon reaches into them."""

import ast
from collections.abc import Iterator

from tests.house.source import name_of, nodes_of, python_files, tree_of

PUBLIC = {"in_flight", "instance", "limits", "pace", "running", "started", "waiting"}
"""What the Core reads of a scheduler: its queue, what runs and flies, its pace and its limits."""


def rooms(tree: ast.Module) -> set[str]:
    """The attributes that `Scheduler` gives itself, and the properties that return one's insides,
    except public ones.
    """
    (scheduler,) = (
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Scheduler"
    )
    own = {
        node.attr
        for node in ast.walk(scheduler)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    return {name for name in own if not name.startswith("_")} - PUBLIC | {"kv"}


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def reaches(tree: ast.Module, private: set[str]) -> Iterator[int]:
    """Lines that read a room of something that is called a scheduler, or was assigned from one."""
    called = {"scheduler", "_scheduler"}
    for node in nodes_of(tree):
        if isinstance(node, ast.Assign) and _name(node.value) in called:
            called |= {_name(target) for target in node.targets}
    for node in nodes_of(tree):
        if isinstance(node, ast.Attribute) and node.attr in private and _name(node.value) in called:
            yield node.lineno


def test_the_check_sees_what_it_should() -> None:
    text = (
        "core.scheduler.order.rank\nscheduler.slots\nscheduler.waiting.order()\n"
        "there = homes[0].scheduler\nthere.kv.pool\nself._scheduler.slots\n"
    )
    assert sorted(reaches(ast.parse(text), {"order", "slots", "kv"})) == [1, 2, 5, 6]


def test_nothing_else_reaches_into_a_room() -> None:
    paths = python_files("daemon", "tui", "benchmarks")
    (home,) = (path for path in paths if name_of(path) == "daemon/scheduler/scheduler.py")
    private = rooms(tree_of(home))
    assert {"order", "admission", "residency", "slots", "drafting", "steady_decodes"} <= private
    found = [
        f"{name_of(path)}:{line}"
        for path in paths
        if not name_of(path).startswith("daemon/scheduler/")
        for line in reaches(tree_of(path), private)
    ]
    assert not found
