"""A clock that jumps moves no deadline: what the wall clock says is shown, and nothing else."""

import ast

from tests.house.source import ROOT

SHOWN = {
    "daemon/api/chat_template.py": "the date that a template may print",
    "daemon/api/model.py": "`created` of /v1/models",
    "daemon/api/shapes.py": "`created` of an answer",
    "daemon/predictor/keeper.py": "when answers ended that are kept on disk for days",
}
WALL = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow")}


def test_the_wall_clock_is_asked_only_to_be_shown() -> None:
    found = set()
    for path in (ROOT / "daemon").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner = node.func.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if (name, node.func.attr) in WALL:
                found.add(path.relative_to(ROOT).as_posix())
    assert found == set(SHOWN)
