"""incidents.md: every incident that a worker reports, with its remedy, from the calls that report it.

Rules
1. A call of a function named in REPORTERS reports an incident: its first argument is the kind, its last two
   are message and remedy. An argument behind them says whether it is over: a lambda, a call, None, or a name
   in IS_OVER. CARRIED names classes that carry message and remedy to a report of one kind.
2. If an argument is a parameter of the calling function, each call of that function is a report of its own.
   Only calls in the same module count.
3. A text that is made while the worker runs is shown as a template, with `{names}` for values.
   Constants and functions that return texts are followed; all alternatives of a text are shown.
4. A kind that cannot be found is an error, unless its function only passes incidents on (PASSING_ON).
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from tests.reference.markdown import escaped, table

ROOT = Path(__file__).parents[2]
ROOMS = ("app", "agents", "tables")
REPORTERS = {"report_incident", "_report_incident", "Notice"}
CARRIED = {"AppendIncident": "append-trouble", "FetchIncident": "fetch-trouble"}
CALLBACKS = {"_report", "_tell", "report"}  # reporters if the kind is a literal
NAMES = REPORTERS | CALLBACKS | CARRIED.keys()
PASSING_ON = {"report_incident", "report", "report_own", "decided"}
KIND = re.compile(r"[a-z]+(-[a-z]+)*")
NOTHING = re.compile(r"\{\w+\}")  # an unknown text
ALTERNATIVES = 8  # of one text
IS_OVER = {"is_over", "ends", "until_closed", "until_deposed", "has_changed", "is_set", "_is_over"}
FILLED = 4  # alternatives of a text in braces
DEPTH = 4  # of the names and functions that are followed

Function = ast.FunctionDef | ast.AsyncFunctionDef
Bound = Mapping[str, tuple[ast.expr, "Scope"]]


@dataclass(frozen=True, slots=True)
class Scope:
    """The place of an expression: its module, its function, and the values of the function's parameters."""

    module: ModuleType
    tree: ast.Module
    function: Function | None = None
    bound: Bound = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Incident:
    """A report of one kind by `module`, with the alternatives of its texts."""

    kind: str
    messages: tuple[str, ...]
    remedies: tuple[str, ...]
    module: str

    @property
    def is_bare(self) -> bool:
        """All its texts are unknown."""
        return all(NOTHING.fullmatch(one) for one in (*self.messages, *self.remedies))


def page() -> list[str]:
    """The page."""
    by_kind: dict[str, list[Incident]] = defaultdict(list)
    for one in incidents():
        by_kind[one.kind].append(one)
    lines = [
        "# Incidents",
        "An incident is a problem that operators must know of. The worker logs it and writes it to the topic",
        "of incidents. The console and `/api/v1/incidents` show it. If it is a state, they also show whether",
        "it is still open. Names in braces stand for values that the worker fills in.",
        "",
    ]
    for kind, of_kind in sorted(by_kind.items()):
        lines += [f"## {kind}", ""]
        explained = [one for one in of_kind if not one.is_bare] or of_kind
        rows = dict.fromkeys(
            (_cell(one.messages), _cell(one.remedies), f"`{one.module}`") for one in explained
        )
        lines += table(("message", "remedy", "reported by"), rows)
    return lines


def _cell(texts: tuple[str, ...]) -> str:
    return "<br>or: ".join(map(escaped, texts))


def incidents() -> Iterator[Incident]:
    """Every report, by module."""
    for file in sorted(file for room in ROOMS for file in (ROOT / room).rglob("*.py")):
        source = file.read_text()
        if not any(name in source for name in NAMES):
            continue
        tree = ast.parse(source)
        calls = [one for one in _calls(tree, NAMES) if _is_report(one[1], tree)]
        if not calls:
            continue
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        module = importlib.import_module(name)
        for function, call in calls:
            scope = Scope(module, tree, function)
            carried = CARRIED.get(_name(call.func))
            kind = ast.Constant(carried) if carried else call.args[0]
            *_, message, remedy = _texts_of(call)
            yield from _reported(scope, kind, message, remedy, name)


def _texts_of(call: ast.Call) -> list[ast.expr]:
    """The arguments of a report without the one that says whether it is over."""
    match call.args[-1]:
        case ast.Lambda() | ast.IfExp(body=ast.Lambda()) | ast.IfExp(orelse=ast.Lambda()):
            return call.args[:-1]
        case ast.Constant(value=None):
            return call.args[:-1]
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Call(func=ast.Name(id=name)):
            return call.args[:-1] if name in IS_OVER else call.args
        case ast.Call(func=ast.Attribute(attr=name)):
            return call.args[:-1] if name in IS_OVER else call.args
    return call.args


def _is_report(call: ast.Call, tree: ast.Module) -> bool:
    if (
        len(call.args) < 3
        or len(texts := _texts_of(call)) < 3
        or any(isinstance(one, ast.Starred) for one in call.args)
    ):
        return False
    name, kind = _name(call.func), call.args[0]
    if name in REPORTERS or name in CARRIED:
        return True
    is_literal = isinstance(kind, ast.Constant) and bool(KIND.fullmatch(str(kind.value)))
    return is_literal and len(texts) in {3, 4} and _function(tree, name) is None


def _reported(
    scope: Scope, kind: ast.expr, message: ast.expr, remedy: ast.expr, module: str, depth: int = 0
) -> Iterator[Incident]:
    """The incidents of a report; rule 2 is applied first."""
    names = {
        name.id for one in (kind, message, remedy) for name in ast.walk(one) if isinstance(name, ast.Name)
    }
    function = scope.function
    if function is not None and names & _parameters(function).keys() and depth < DEPTH and not scope.bound:
        callers = [
            (Scope(scope.module, scope.tree, outer), call)
            for outer, call in _calls(scope.tree, {function.name})
            if call.args and not any(isinstance(one, ast.Starred) for one in call.args)
        ]
        for outer, call in callers:
            bound = _bindings(function, call, outer)
            for found in _expanded(outer, depth):
                inner = Scope(
                    scope.module, scope.tree, function, {n: (e, found) for n, (e, _) in bound.items()}
                )
                yield from _reported(inner, kind, message, remedy, module, depth + 1)
        if callers:
            return
    kinds = list(_kinds(kind, scope))
    if not kinds and (function is None or function.name not in PASSING_ON):
        raise ValueError(f"{module}, line {kind.lineno}: no kind in {ast.unparse(kind)}")
    for literal, texts in kinds:
        paired = Scope(scope.module, scope.tree, function, {**scope.bound, **texts})
        yield Incident(literal, _joined(message, paired), _joined(remedy, paired), module)


def _expanded(scope: Scope, depth: int) -> Iterator[Scope]:
    """The scope, with its parameters bound by each known call."""
    function = scope.function
    if function is None or depth >= DEPTH - 1 or not _parameters(function):
        yield scope
        return
    calls = [
        (Scope(scope.module, scope.tree, outer), call)
        for outer, call in _calls(scope.tree, {function.name})
        if outer is not function and not any(isinstance(one, ast.Starred) for one in call.args)
    ]
    if not 0 < len(calls) <= ALTERNATIVES:
        yield scope
        return
    for outer, call in calls:
        yield Scope(scope.module, scope.tree, function, _bindings(function, call, outer))


# -- kinds -----------------------------------------------------------------------------------------


def _kinds(node: ast.expr, scope: Scope, depth: int = 0) -> Iterator[tuple[str, Bound]]:
    """The possible kinds of an expression, and the texts that are assigned together with each."""
    if depth > DEPTH:
        return
    match node:
        case ast.Constant(value=str() as kind):
            yield kind, {}
        case ast.IfExp():
            yield from _kinds(node.body, scope, depth + 1)
            yield from _kinds(node.orelse, scope, depth + 1)
        case ast.Name(id=name):
            if name in scope.bound:
                yield from _kinds(*scope.bound[name], depth + 1)
            elif isinstance(value := getattr(scope.module, name, None), str):
                yield value, {}
            elif scope.function is not None:
                yield from _assigned_kinds(name, scope)


def _assigned_kinds(name: str, scope: Scope) -> Iterator[tuple[str, Bound]]:
    """The kinds of a local variable, from an assignment of a tuple or from a dictionary of pairs.

    For example `kind, what = "a-kind", "a text"`, or `for (_, message), (kind, remedy) in texts.items()`.
    """
    assert scope.function is not None
    for node in ast.walk(scope.function):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                names = [target.id if isinstance(target, ast.Name) else "" for target in targets]
                literal = values[names.index(name)] if name in names else None
                if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
                    bare = Scope(scope.module, scope.tree, scope.function, scope.bound)
                    yield (
                        literal.value,
                        {n: (v, bare) for n, v in zip(names, values, strict=True) if n != name},
                    )
            case ast.For(target=ast.Tuple(elts=[ast.Tuple(elts=keys), ast.Tuple(elts=values)])):
                key_names, value_names = ([_name(one) for one in of_kind] for of_kind in (keys, values))
                if name == value_names[0]:
                    for key, value in _entries(scope.function):
                        texts = zip([*key_names, *value_names], [*key.elts, *value.elts], strict=True)
                        kind = value.elts[0]
                        if isinstance(kind, ast.Constant) and isinstance(kind.value, str):
                            yield kind.value, {n: (v, scope) for n, v in texts if n != name}


def _entries(function: Function) -> Iterator[tuple[ast.Tuple, ast.Tuple]]:
    """The pairs that a function puts into dictionaries as keys and values."""
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Subscript(slice=ast.Tuple() as key)], value=ast.Tuple() as value):
                yield key, value
            case ast.DictComp(key=ast.Tuple() as key, value=ast.Tuple() as value):
                yield key, value


# -- texts -----------------------------------------------------------------------------------------


def _joined(node: ast.expr, scope: Scope) -> tuple[str, ...]:
    """The alternatives of an expression's text."""
    found = dict.fromkeys(one.strip() for one in _texts(node, scope) if one.strip())
    return tuple(one for one in found if not NOTHING.fullmatch(one)) or tuple(found)


def _texts(node: ast.expr, scope: Scope, depth: int = 0) -> list[str]:
    """The alternatives, at most ALTERNATIVES; `{name}` for an unknown text."""
    if depth > 2 * DEPTH:
        return [_placeholder(node)]
    found: list[str] = []
    match node:
        case ast.Constant(value=str() as text):
            found = [text]
        case ast.JoinedStr(values=values):
            found = _product([_texts(one, scope, depth) for one in values])
        case ast.FormattedValue(value=inner):
            found = _filled(inner, scope, depth + 1)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            found = _product([_texts(left, scope, depth), _texts(right, scope, depth)])
        case ast.BinOp(left=ast.Constant(value=str()) | ast.JoinedStr() as left, op=ast.Mult()):
            found = ["", *_texts(left, scope, depth + 1)]
        case ast.IfExp(body=body, orelse=orelse):
            found = [*_texts(body, scope, depth + 1), *_texts(orelse, scope, depth + 1)]
        case ast.BoolOp(values=values):
            found = [text for one in values for text in _texts(one, scope, depth + 1)]
        case ast.Subscript(value=ast.Name(id=name)):
            found = _values(name, scope)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="get"), args=[_, default]):
            found = [*_values(name, scope), *_texts(default, scope, depth + 1)]
        case ast.Name():
            found = _named(node, scope, depth + 1)
        case ast.Call():
            found = _returned(node, scope, depth + 1)
    return list(dict.fromkeys(found))[:ALTERNATIVES] or [_placeholder(node)]


def _values(name: str, scope: Scope) -> list[str]:
    """The texts of a module's dictionary."""
    mapping = getattr(scope.module, name, None)
    return [one for one in mapping.values() if isinstance(one, str)] if isinstance(mapping, dict) else []


def _filled(node: ast.expr, scope: Scope, depth: int) -> list[str]:
    """The texts of an expression in braces: constants and alternatives, else its name in braces."""
    if not isinstance(node, ast.Name | ast.IfExp | ast.BinOp | ast.Subscript | ast.Call):
        return [_placeholder(node)]
    found = _texts(node, scope, depth)
    return found if len(found) <= FILLED else [_placeholder(node)]


def _named(node: ast.Name, scope: Scope, depth: int) -> list[str]:
    """The possible texts of a name."""
    name, unknown = node.id, [_placeholder(node)]
    if name in scope.bound:
        return _texts(*scope.bound[name], depth)
    if scope.function is not None:
        if name in _parameters(scope.function):
            return unknown
        assigned = list(_assigned(node, scope.function))
        if assigned:
            texts = [
                text
                for value in assigned
                if not any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(value))
                for text in _texts(value, scope, depth + 1)
            ]
            return [one for one in texts if not NOTHING.fullmatch(one)] or unknown
    value = getattr(scope.module, name, None)
    if isinstance(value, str):
        return [value]
    return [f"{value:g}"] if isinstance(value, int | float) else unknown


def _returned(call: ast.Call, scope: Scope, depth: int) -> list[str]:
    """The texts that a function of the application returns."""
    name = _name(call.func)
    function, where = _function(scope.tree, name), scope
    if function is None and isinstance(call.func, ast.Name):
        target = getattr(scope.module, name, None)
        if inspect.isfunction(target) and target.__module__.startswith(ROOMS):
            module = importlib.import_module(target.__module__)
            where = Scope(module, ast.parse(inspect.getsource(module)))
            function = _function(where.tree, name)
    if function is None or ast.unparse(function.returns or ast.Constant("")) != "str":
        return []
    inner = Scope(where.module, where.tree, function, _bindings(function, call, scope))
    returns = [one.value for one in ast.walk(function) if isinstance(one, ast.Return) and one.value]
    return [text for value in returns for text in _texts(value, inner, depth + 1)]


def _product(parts: list[list[str]]) -> list[str]:
    return ["".join(one) for one in itertools.islice(itertools.product(*parts), ALTERNATIVES)]


def _placeholder(node: ast.expr) -> str:
    """`{name}` for a value that the worker fills in."""
    match node:
        case ast.Attribute(value=inner, attr="__name__"):
            return _placeholder(inner)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return f"{{{name.strip('_')}}}"
        case ast.Subscript(value=inner) | ast.Await(value=inner) | ast.UnaryOp(operand=inner):
            return _placeholder(inner)
        case ast.Call(func=ast.Name(id=name), args=[inner, *_]) if hasattr(builtins, name):
            return _placeholder(inner)
        case ast.Call(func=ast.Attribute(attr="join"), args=[inner]):
            return _placeholder(inner)
        case ast.Call(func=ast.Attribute(attr="get"), args=[inner, *_]):
            return _placeholder(inner)
        case ast.Call(func=func):
            return _placeholder(func)
        case ast.BinOp(left=ast.Constant(), right=inner) | ast.BinOp(left=inner):
            return _placeholder(inner)
        case ast.IfExp(body=inner) | ast.BoolOp(values=[inner, *_]):
            return _placeholder(inner)
        case ast.GeneratorExp(generators=[first, *_]) | ast.ListComp(generators=[first, *_]):
            return _placeholder(first.iter)
        case ast.Constant(value=str() as text):
            return text
    return "{...}"


# -- trees -----------------------------------------------------------------------------------------


def _calls(tree: ast.Module, names: set[str]) -> Iterator[tuple[Function | None, ast.Call]]:
    """Calls of functions with these names, and the function around each."""

    def visit(node: ast.AST, function: Function | None) -> Iterator[tuple[Function | None, ast.Call]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call) and _name(child.func) in names:
                yield function, child
            yield from visit(child, child if isinstance(child, Function) else function)

    return visit(tree, None)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _function(tree: ast.Module, name: str) -> Function | None:
    return next((n for n in ast.walk(tree) if isinstance(n, Function) and n.name == name), None)


def _parameters(function: Function) -> dict[str, ast.expr | None]:
    """The parameters without `self`, and their defaults."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    found = dict(zip((one.arg for one in positional), defaults, strict=True))
    found |= dict(zip((one.arg for one in arguments.kwonlyargs), arguments.kw_defaults, strict=True))
    found.pop("self", None)
    return found


def _bindings(function: Function, call: ast.Call, scope: Scope) -> Bound:
    """The values of the function's parameters in a call."""
    parameters = _parameters(function)
    given: dict[str, ast.expr] = {n: default for n, default in parameters.items() if default is not None}
    given |= dict(zip(parameters, call.args, strict=False))
    given |= {one.arg: one.value for one in call.keywords if one.arg}
    return {name: (value, scope) for name, value in given.items()}


def _assigned(use: ast.Name, function: Function) -> Iterator[ast.expr]:
    """The values that a local variable may have where it is used.

    They are the assignments before, back to one that is always executed.
    """
    blocks: dict[int, int] = {}  # the block of each statement
    around: set[int] = set()  # the blocks around the use
    for node in ast.walk(function):
        for name in ("body", "orelse", "finalbody", "handlers"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                blocks |= {id(one): id(block) for one in block}
                if any(one is use for statement in block for one in ast.walk(statement)):
                    around.add(id(block))
    found = [
        (statement, value)
        for statement in ast.walk(function)
        if isinstance(statement, ast.stmt) and statement.lineno <= use.lineno
        for value in _values_given(statement, use.id)
    ]
    for statement, value in sorted(found, key=lambda one: -one[0].lineno):
        yield value
        if blocks[id(statement)] in around and isinstance(statement, ast.Assign):
            return


def _values_given(statement: ast.stmt, name: str) -> Iterator[ast.expr]:
    match statement:
        case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
            yield value
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            pairs = zip(targets, values, strict=False)
            yield from (
                value for target, value in pairs if isinstance(target, ast.Name) and target.id == name
            )
        case ast.If(test=test) | ast.While(test=test):
            for node in ast.walk(test):
                if isinstance(node, ast.NamedExpr) and node.target.id == name:
                    yield node.value
