"""How the parts hang together: who may import whom, no circles, no module that grew too long."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_LINES = 400
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for folder in ("app", "accel")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
Imports = dict[str, set[str]]
NOT_CALLED_HERE = {
    "pre_forward": "accelerate calls it",
    "read_request": "for who has a clip",
    "decode_frames": "for who has a clip",
}
"""What nothing in the tree calls by name, and who does."""


def imports(name: str, tree: ast.Module, is_package: bool, known: Mapping[str, object], inside: bool) -> Iterator[str]:
    """The known modules that `name` imports: at module level, and with `inside` in functions and for types too."""
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        lazy = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        lazy = lazy or (isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "MYPY"))
        if inside or not lazy:
            nodes += ast.iter_child_nodes(node)
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = name.split(".")[: len(name.split(".")) - node.level + is_package]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            found = [whole if (whole := f"{base}.{alias.name}") in known else base for alias in node.names]
        yield from (one for one in found if one in known and one != name)


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}


def graph(trees: Mapping[str, ast.Module], inside: bool) -> Imports:
    return {
        name: set(imports(name, tree, FILES[name].name == "__init__.py", FILES, inside)) for name, tree in trees.items()
    }


def circle(edges: Imports) -> list[str]:
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def rooms(edges: Imports) -> Imports:
    """The same between packages: those inside another one belong to it, a module beside them is a room of its own."""
    imported = set().union(*edges.values())
    packages = {name for name in FILES if FILES[name].name == "__init__.py"}

    def room(name: str) -> str:
        whole = ".".join(name.split(".")[:2])
        return whole if whole in packages else name

    found: Imports = {}
    for name in imported:
        found.setdefault(room(name), set()).update(one for seen in edges[name] if (one := room(seen)) != room(name))
    return found


def test_the_accelerators_know_nothing_of_the_studio(trees: Mapping[str, ast.Module]) -> None:
    edges = graph(trees, inside=True)
    strays = {
        name: sorted(found) for name, seen in edges.items() if (found := {one for one in seen if folder(one) == "app"})
    }
    assert {name: seen for name, seen in strays.items() if folder(name) == "accel"} == {}
    assert "app.engine.acceleration" in edges
    assert any(folder(one) == "accel" for one in edges["app.engine.acceleration"]), "the reader sees no imports at all"


def test_only_the_command_line_opens_the_page(trees: Mapping[str, ast.Module]) -> None:
    edges = graph(trees, inside=True)
    users = {name for name, seen in edges.items() if any(is_page(one) for one in seen) and not is_page(name)}
    assert users == {"app.cli"}


def test_no_module_level_imports_go_in_circles(trees: Mapping[str, ast.Module]) -> None:
    assert circle(graph(trees, inside=False)) == []


def test_no_rooms_go_in_circles(trees: Mapping[str, ast.Module]) -> None:
    """Imports inside functions and for types count too. A program that nothing imports can't close a circle."""
    assert circle(rooms(graph(trees, inside=True))) == []


def defined(tree: ast.Module) -> set[str]:
    """Functions, classes, methods, and the module's own constants; Python itself calls what begins with two lines."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    return {name for name in names if not name.startswith("__")}


def used(tree: ast.Module) -> Iterator[str]:
    """Every name that is read, as itself, as an attribute, or as a string that is nothing else; exports don't count."""
    exports = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    exported = {id(part) for node in exports for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in exported:
            yield node.value


def test_nothing_is_defined_that_nothing_uses(trees: Mapping[str, ast.Module]) -> None:
    everywhere = [*trees.values(), ast.parse((ROOT / "launch.py").read_text(encoding="utf-8"))]
    uses = {name for tree in everywhere for name in used(tree)}
    unused = {name for tree in trees.values() for name in defined(tree)} - uses
    assert unused == set(NOT_CALLED_HERE)


def test_the_readers_above_see_what_is_defined_and_used() -> None:
    tree = ast.parse(
        "__all__ = ['A']\nA: int = 1\nB = C = 2\n"
        "class D:\n    def e(self): return self.f(B)\n    def __enter__(self): ...\nasync def g(h): call('i')"
    )
    assert defined(tree) == {"A", "B", "C", "D", "e", "g"}
    assert set(used(tree)) == {"int", "self", "f", "B", "call", "i"}


def test_modules_are_short_enough_to_be_read() -> None:
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in FILES.items()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


@pytest.mark.parametrize(
    ("text", "inside", "found"),
    [
        ("import app.cli", False, {"app.cli"}),
        ("from app import cli, __version__", False, {"app.cli", "app"}),
        ("from .service import Service\nfrom .. import cli", False, {"app.queue.service", "app.cli"}),
        ("def f():\n    import app.cli", False, set()),
        ("def f():\n    import app.cli", True, {"app.cli"}),
        ("if TYPE_CHECKING:\n    import app.cli", False, set()),
        ("class A:\n    try:\n        import app.cli\n    except ImportError:\n        pass", False, {"app.cli"}),
    ],
)
def test_the_reader_above_sees_imports(text: str, inside: bool, found: set[str]) -> None:
    assert set(imports("app.queue.owner", ast.parse(text), False, FILES, inside)) == found


def test_rooms_are_packages_and_the_modules_beside_them() -> None:
    edges: Imports = {
        "app.cli": {"app.queue.service", "app.models.sources.cache"},
        "app.queue.service": {"app.queue", "app.errors"},
        "app.queue.__main__": {"app.cli"},
        "app.models.sources.cache": {"app.models.base", "app.queue"},
        **{name: set() for name in ("app.queue", "app.errors", "app.models.base")},
        "app": {"app.cli"},
        "accel": {"app"},
    }
    assert rooms(edges) == {
        "app": {"app.cli"},
        "app.cli": {"app.queue", "app.models"},
        "app.queue": {"app.errors"},
        "app.models": {"app.queue"},
        "app.errors": set(),
    }


def test_the_search_above_finds_circles() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert not circle({"a": {"b", "c"}, "b": {"c"}})


def folder(name: str) -> str:
    return name.partition(".")[0]


def is_page(name: str) -> bool:
    return name == "app.ui" or name.startswith("app.ui.")
