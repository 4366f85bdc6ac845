"""No imports in a circle: neither of files, nor of the files and sub-packages of any one package.

Imports inside functions and those for types alone count too.
"""

import ast
from collections.abc import Iterable

from tests.house.source import PACKAGES, name_of, nodes_of, python_files, tree_of

Graph = dict[str, set[str]]


def module_of(path: str) -> str:
    """The module that a file is, by the file's path."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports_of(module: str, tree: ast.Module, known: Iterable[str]) -> set[str]:
    """Those of the known modules that a file imports, wherever in it."""
    names: list[str] = []
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    found = set()
    for name in names:
        while name and name not in known:
            name = name.rpartition(".")[0]  # noqa: PLW2901
        found.add(name)
    return found - {module, ""}


def graph_of(trees: dict[str, ast.Module]) -> Graph:
    """The imports of each module."""
    return {module: imports_of(module, tree, trees.keys()) for module, tree in trees.items()}


def inside(graph: Graph, package: str) -> Graph:
    """The same of a package's own files and sub-packages, each sub-package as one."""

    def child(module: str) -> str:
        below = module.removeprefix(f"{package}.").partition(".")[0]
        return package if module == package else f"{package}.{below}"

    folded: Graph = {}
    for module, imported in graph.items():
        if f"{module}.".startswith(f"{package}."):
            ends = {child(name) for name in imported if f"{name}.".startswith(f"{package}.")}
            folded.setdefault(child(module), set()).update(ends - {child(module)})
    return folded


def circle_in(graph: Graph) -> list[str]:
    """One path of imports that ends where it begins; empty where there is none."""
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        path.append(name)
        for imported in sorted(graph.get(name, ())):
            if found := visit(imported):
                return found
        done.add(path.pop())
        return []

    return next((found for name in sorted(graph) if (found := visit(name))), [])


def circles(trees: dict[str, ast.Module]) -> list[str]:
    """The circles of files and of each package, as paths."""
    graph = graph_of(trees)
    packages = {module.rpartition(".")[0] for module in trees} - {""}
    graphs = [graph, *(inside(graph, package) for package in sorted(packages))]
    paths = (" -> ".join(found) for checked in graphs if (found := circle_in(checked)))
    return list(dict.fromkeys(paths))


def parsed(texts: dict[str, str]) -> dict[str, ast.Module]:
    return {module: ast.parse(text) for module, text in texts.items()}


def test_the_check_sees_two_files() -> None:
    texts = {"a": "", "a.b": "def f():\n    from a import c", "a.c": "if 0:\n    import a.b"}
    assert circles(parsed(texts)) == ["a.b -> a.c -> a.b"]


def test_the_check_sees_a_sub_package_that_no_two_files_show() -> None:
    texts = {"a": "", "a.b": "import a.p.one", "a.p.one": "", "a.p.two": "import a.b"}
    assert circles(parsed(texts)) == ["a.b -> a.p -> a.b"]


def test_a_package_may_use_its_own_parts() -> None:
    texts = {"a": "from a.b import C", "a.b": "from a.c import D", "a.c": "", "a.p": "import a.b"}
    assert circles(parsed(texts)) == []


def test_there_is_no_circle() -> None:
    trees = {module_of(name_of(path)): tree_of(path) for path in python_files(*PACKAGES)}
    assert circles(trees) == []
