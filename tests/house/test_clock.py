"""A clock that jumps moves no deadline: what the wall clock says is shown, and nothing else."""

import ast

from tests.house.source import name_of, nodes_of, python_files, tree_of

SHOWN = {
    "daemon/api/sandbox/chat_template.py": "the date that a template may print",
    "daemon/api/model.py": "`created` of /v1/models",
    "daemon/api/answer/shapes.py": "`created` of an answer",
    "daemon/predictor/keeper.py": "when answers ended that are kept on disk for days",
}
WALL = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow")}


def test_the_wall_clock_is_asked_only_to_be_shown() -> None:
    found = set()
    for path in python_files("daemon"):
        for node in nodes_of(tree_of(path)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner = node.func.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if (name, node.func.attr) in WALL:
                found.add(name_of(path))
    assert found == set(SHOWN)
