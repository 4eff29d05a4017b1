"""The structure that the architecture page promises, as far as the import contracts do not check it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PACKAGES = ("app", "agents", "tables", "spark")
# Where kinds of jobs are named: their registries, and the definitions that name their jobs.
KINDS_ARE_NAMED_IN = {
    "app/main.py",
    "app/worker/runtime/job_kinds.py",
    "app/audit/definition.py",
    "app/dispatch/definition.py",
    "app/replicate/definition.py",
}
KIND_SWITCH = re.compile(r"\bKind\.(DISPATCH|REPLICATE|AUDIT)\b|isinstance\([^)]*\b\w+(Pump|Controller)\b")
# The only files that may use private attributes of libraries' objects. Each names the upstream issues known.
USE_INTERNALS = {
    "app/kafka/client/aiokafka_internals.py",
    "app/kafka/client/aiokafka_patches.py",
    "spark/jvm.py",
    "app/faust_store.py",
}
PUBLIC_IN_SPITE_OF_THEIR_NAME = {"_asdict", "_fields", "_make", "_replace"}  # of named tuples


def circles() -> list[set[str]]:
    """The sets of modules that import each other, also for types only; the largest first (Tarjan, 1972)."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imported = {module: sorted(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_modules: list[str] = []
    found: list[set[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        open_modules.append(module)
        for other in imported[module]:
            if other not in number:
                visit(other)
            if other in open_modules:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == number[module]:
            circle = set(open_modules[open_modules.index(module) :])
            del open_modules[-len(circle) :]
            if len(circle) > 1:
                found.append(circle)

    for module in sorted(imported):
        if module not in number:
            visit(module)
    return sorted(found, key=len, reverse=True)


def test_no_modules_import_each_other() -> None:
    assert [sorted(circle) for circle in circles()] == []


def test_only_registries_name_a_kind_of_job() -> None:
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    naming = {str(path.relative_to(ROOT)) for path in files if KIND_SWITCH.search(path.read_text())}
    assert naming == KINDS_ARE_NAMED_IN


def private_uses(tree: ast.Module) -> set[str]:
    """The private attributes that a file uses of other objects, and that no class of the file defines."""
    own = set(PUBLIC_IN_SPITE_OF_THEIR_NAME)
    for kind in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        own |= {part.name for part in kind.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
        own |= {
            part.target.id
            for part in kind.body
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        }
        own |= {
            node.attr
            for node in ast.walk(kind)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node.value) in {"self", "cls"}
        }
    return private_attributes(tree) - own


def private_attributes(tree: ast.Module) -> set[str]:
    """The private attributes that a file uses of other objects than `self`."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.endswith("__")
        and ast.unparse(node.value) not in {"self", "cls", "super()"}
        and ast.unparse(node) != "os._exit"
    }


def installs_at_import(tree: ast.Module) -> bool:
    """Whether importing the file calls a function `install`."""
    calls = [
        node for statement in tree.body if isinstance(statement, ast.Expr) for node in ast.walk(statement)
    ]
    return any(
        isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "install"
        for node in calls
    )


def test_only_named_files_use_private_attributes_of_other_classes() -> None:
    trees = {
        str(path.relative_to(ROOT)): ast.parse(path.read_text())
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if not path.name.endswith("_pb2.py")
    }
    assert set(trees) > USE_INTERNALS, "a named file is gone"
    of_libraries = set[str]().union(*(private_attributes(trees[place]) for place in USE_INTERNALS))
    found = {
        (place, name)
        for place, tree in trees.items()
        if place not in USE_INTERNALS
        for name in private_uses(tree) | (private_attributes(tree) & of_libraries)
    }
    assert found == set(), "add a public method, or a function in the library's named file"
    assert [place for place, tree in trees.items() if installs_at_import(tree)] == []


MOST_UNTYPED = 400  # uses of `Any`; a new one needs a former one to go


def test_few_values_have_no_type() -> None:
    trees = (
        ast.parse(path.read_text())
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if not path.name.endswith("_pb2.py")
    )
    uses = sum(isinstance(node, ast.Name) and node.id == "Any" for tree in trees for node in ast.walk(tree))
    assert uses <= MOST_UNTYPED, "say what the value is; `object` where it is only passed on"


MOST_PARAMETERS = 8  # of a constructor
MAY_TAKE_MORE = {  # (file, class) -> why
    ("app/placement/model/round.py", "PlacementRound"): "what a round knows at its start, from one caller",
    ("app/sdk/audit/switchyard/audit/background_thread.py", "Auditing"): "a library's settings, by keyword",
    ("app/sdk/receiver/switchyard/receiver/server.py", "Receiver"): "a library's settings, by keyword",
}


def constructor_parameters(defined: ast.ClassDef) -> int:
    """The number of parameters of a class's own `__init__`, without `self`; 0: it has none."""
    for function in defined.body:
        if isinstance(function, ast.FunctionDef) and function.name == "__init__":
            arguments = function.args
            return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - 1
    return 0


def test_no_constructor_takes_more_than_eight_parameters() -> None:
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found = {
        (str(path.relative_to(ROOT)), node.name)
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and constructor_parameters(node) > MOST_PARAMETERS
    }
    assert found == MAY_TAKE_MORE.keys(), "group parameters that belong together"
