"""The house keeps its shape: a compact system, a laboratory beside it, no circles, files short enough to read."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from spin_core.lab.provenance import ROOT

FILES = sorted((ROOT / "spin_core").rglob("*.py"))
SYSTEM = [path for path in FILES if "lab" not in path.relative_to(ROOT).parts]
COMMAND_LINE = {"spin_core/__main__.py", "spin_core/reproduce.py"}     # they load the laboratory when asked to
LONGEST = 350
REASON = "# A long file:"                 # begins the line in which such a file says why it is one


def name(path: Path) -> str:
    """``spin_core/kv/cache.py`` -> ``spin_core.kv.cache``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name(path): path for path in FILES}


def is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imported(path: Path, within_functions: bool = True) -> set[str]:
    """The modules of this package that a file imports, those for type checkers aside."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt) and is_for_types(child):
                continue
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and not within_functions:
                continue
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                package = name(path).split(".")[:None if path.name == "__init__.py" else -1]
                base = ".".join([*package[:len(package) - child.level + 1], *filter(None, [child.module])]) \
                    if child.level else child.module
                found.update({f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base
                              for alias in child.names})
            visit(child)

    visit(ast.parse(path.read_text("utf-8")))
    return {module for module in found if module in MODULES} - {name(path)}


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Groups of nodes that reach each other (strongly connected components of more than one node)."""
    reach = {node: set() for node in edges}
    for node in edges:
        waiting = [node]
        while waiting:
            for following in edges.get(waiting.pop(), ()):
                if following not in reach[node]:
                    reach[node].add(following)
                    waiting.append(following)
    groups = {frozenset({node, *(other for other in reach[node] if node in reach[other])})
              for node in edges if node in reach[node]}
    return [set(group) for group in groups]


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_the_system_never_imports_the_laboratory():
    upward = {str(path.relative_to(ROOT)): sorted(m for m in imported(path) if m.startswith("spin_core.lab"))
              for path in SYSTEM}
    assert {file for file, modules in upward.items() if modules} <= COMMAND_LINE, upward


def test_modules_do_not_import_each_other_in_circles():
    """A package's ``__init__`` gathers what its modules offer: a module may import its own package's neighbours."""
    edges = {module: imported(path) for module, path in MODULES.items()}
    assert circles(edges) == []


def test_rooms_of_the_system_do_not_import_each_other_in_circles():
    def room(module: str) -> str:
        return ".".join(module.split(".")[:2])

    edges: dict[str, set[str]] = {}
    for module, path in ((name(path), path) for path in SYSTEM):
        edges.setdefault(room(module), set()).update(map(room, imported(path)))
    for node, following in edges.items():
        following.discard(node)
    assert circles(edges) == []


@pytest.mark.parametrize("path", SYSTEM, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_of_the_system_is_long_without_a_reason(path):
    text = path.read_text("utf-8")
    assert text.count("\n") <= LONGEST or REASON in text


def test_every_room_says_what_it_is():
    for path in FILES:
        if path.name == "__init__.py":
            assert ast.get_docstring(ast.parse(path.read_text("utf-8"))), f"{path} has no docstring"


def test_the_students_path_is_an_afternoons_reading():
    """README's table of files to read in order: they exist, the lines it states are right, and they are few."""
    readme = (ROOT / "README.md").read_text("utf-8")
    rows = [line for line in readme.splitlines() if line.startswith("| ") and "(spin_core/" in line
            and line.rstrip(" |").rsplit("|", 1)[1].strip().isdigit()]
    assert len(rows) >= 6
    total = whole = 0
    for row in rows:
        files = re.findall(r"\((spin_core/[\w/]+\.py)\)", row)
        lines = sum((ROOT / file).read_text("utf-8").count("\n") for file in files)
        stated = int(row.rstrip(" |").rsplit("|", 1)[1])
        assert files and abs(lines - stated) <= max(15, .1 * stated), f"{row}: {lines} lines today"
        total, whole = total + lines, whole + stated
    assert total <= 3_000 and f"| all | {whole:,} |" in readme


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text("utf-8")))))
def test_what_readme_links_to_is_there(target):
    assert target.startswith("https://") or (ROOT / target).exists()
