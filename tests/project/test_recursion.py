"""The danger: a function that calls itself over what users give ends in a RecursionError some hundred levels deep."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BOUNDED: dict[str, dict[str, str]] = {
    "client/stateward/_io/target.py": {"resolve_target": "once, for what the environment names"},
    "client/stateward/_operations/migrating.py": {"bring_up": "once, with the whole state"},
    "client/stateward/_workspace/tars.py": {"Unpacking._directory": "at most DEPTH_MAX names, checked before"},
    "client/stateward/cli/show/compare.py": dict.fromkeys(
        ("compare_values", "_compare_lists"), "compares deep values as a whole"
    ),
    "client/stateward/cli/show/decoding.py": {"_extension": "`unpack` counts the levels"},
    "client/stateward/cli/show/describe.py": dict.fromkeys(
        ("plain", "for_screen", "_plain"), "`plain` and `for_screen` write deep values flatly"
    ),
    "client/stateward/cli/show/layouts.py": {"_find": "counts the levels"},
    "client/stateward/cli/show/msgpack.py": dict.fromkeys(("_Reader.read", "_Reader._of"), "counts the levels"),
    "client/stateward/conformance/compare.py": dict.fromkeys(
        ("_differences", "_lists"), "the contract's messages are not inside themselves"
    ),
    "client/stateward/fromproto.py": {"_converter": "the type of a field of ours"},
    "client/stateward/langgraph/_verbatim.py": dict.fromkeys(
        ("Verbatim.loads_typed", "Verbatim._convert"), "once: what is converted is no JSON"
    ),
    "client/stateward/opening/settings.py": {"_toml": "a list of texts"},
    "client/stateward/values.py": dict.fromkeys(("decode", "_decode_blob"), "once: what was a blob is none"),
    "sidecar/stateward_sidecar/archive/own/reconcile.py": {"Reconciler.settle": "once, if the archive returns"},
    "sidecar/stateward_sidecar/archive/ship/ship.py": {"Shipper._entries": "once: the tail is packed then"},
    "sidecar/stateward_sidecar/codec/pieces.py": dict.fromkeys(
        ("_encode", "_put_message", "_put_messages", "_put_named", "_put_plain"),
        "the contract's messages are not inside themselves",
    ),
    "sidecar/stateward_sidecar/codec/diff.py": {"_compare": "counts the levels"},
    "sidecar/stateward_sidecar/service/admission/grants.py": {"_places": "one step of the path to a field of ours"},
    "sidecar/stateward_sidecar/service/admission/weight.py": dict.fromkeys(
        ("_plan", "_Count.walk"), "the contract's messages are not inside themselves"
    ),
    "sidecar/stateward_sidecar/tracebacks.py": {"_parts": "groups in groups, of which twenty exceptions are taken"},
    "sidecar/stateward_sidecar/store/clean/delete.py": dict.fromkeys(
        ("Deleter._purge_rows", "Deleter._purge_rows.run"), "the writer calls it after the step before"
    ),
}
"""The functions that may call themselves, or each other in a circle, with the reason: what bounds the depth.

Any other walk uses `stateward._walking`, or a stack of its own.
"""


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """What is in a function or a module, without what is in the functions and classes there."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            yield from inside(child)


def used(function: ast.AST) -> Iterator[tuple[str, str]]:
    """The functions that a function calls or passes on, and the methods of its object that it calls. What is yielded
    does not run on the stack of the one who yields it."""
    yielded = {id(node.value) for node in inside(function) if isinstance(node, ast.Yield)}
    for node in inside(function):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name)) if id(node) not in yielded:
                yield "method", name
            case ast.Call(func=ast.Name(id=name)) if id(node) in yielded:
                yielded.add(id(node.func))
            case ast.Name(id=name) if id(node) not in yielded:
                yield "function", name


def calls_of(module: ast.Module) -> dict[str, set[str]]:
    """For each function of a module, by its full name, those of the module that it calls."""
    found = dict[str, set[str]]()

    def visit(scope: ast.AST, path: str, names: Mapping[str, str], methods: Mapping[str, str]) -> None:
        names = {**names, **{each.name: path + each.name for each in inside(scope) if isinstance(each, FUNCTIONS)}}
        if isinstance(scope, FUNCTIONS):
            given = {each.arg for each in ast.walk(scope.args) if isinstance(each, ast.arg)}
            names = {name: full for name, full in names.items() if name not in given}
            known = {"function": names, "method": methods}
            found[path[:-1]] = {known[kind][name] for kind, name in used(scope) if name in known[kind]}
        for each in inside(scope):
            if isinstance(each, ast.ClassDef):
                own = {part.name: f"{path}{each.name}.{part.name}" for part in each.body if isinstance(part, FUNCTIONS)}
                for part in each.body:
                    if isinstance(part, FUNCTIONS):
                        visit(part, f"{own[part.name]}.", names, own)
            elif isinstance(each, FUNCTIONS):
                visit(each, f"{path}{each.name}.", names, methods)

    visit(module, "", {}, {})
    return found


def circles(calls: Mapping[str, set[str]]) -> set[str]:
    """The functions that call themselves, directly or through others."""
    reached = {name: set(called) for name, called in calls.items()}
    for middle, beyond in reached.items():
        for called in reached.values():
            if middle in called:
                called |= beyond
    return {name for name, called in reached.items() if name in called}


@pytest.mark.parametrize("root", ["client/stateward", "sidecar/stateward_sidecar"])
def test_every_recursion_has_a_bound(repository: Path, root: str) -> None:
    """Each function that calls itself is known, with the reason why its depth is not the user's."""
    wrong = {}
    for path in sorted((repository / root).rglob("*.py")):
        name = path.relative_to(repository).as_posix()
        known = BOUNDED.get(name, {})
        found = circles(calls_of(ast.parse(path.read_text())))
        if found != set(known):
            wrong[name] = found ^ set(known)
    assert wrong == {}
