"""The work of the demo's agent: facts about Python source files, and their totals. Its only I/O is reading the files.

The input is the source of the standard library, which every Python has: real files of some size, the same for the agent
and for the code that checks its work.
"""

from __future__ import annotations

import ast
import sysconfig
from pathlib import Path
from typing import Any

NAMED_IMPORTS_MAX = 12
FINDINGS_KEPT = 5

Facts = dict[str, Any]


def library() -> Path:
    """Returns the directory of the source."""
    return Path(sysconfig.get_path("stdlib"))


def make_plan() -> list[str]:
    """Returns the sorted names of the files to survey: the modules at the top level of the library."""
    return sorted(path.name for path in library().glob("*.py") if path.is_file())


def survey_file(name: str) -> Facts:
    """The agent's tool: returns the facts about one file."""
    source = (library() / name).read_bytes()
    facts: Facts = {"file": name, "bytes": len(source), "lines": source.count(b"\n")}
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        return {**facts, "error": f"cannot be parsed: {error}"}
    functions = [each for each in ast.walk(tree) if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]
    classes = [each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)]
    documentable = [tree, *functions, *classes]
    imports = sorted(_imports(tree))
    facts |= {
        "functions": len(functions),
        "classes": len(classes),
        "imports": imports[:NAMED_IMPORTS_MAX],
        "import_count": len(imports),
        "documentable": len(documentable),
        "documented": sum(ast.get_docstring(each, clean=False) is not None for each in documentable),
    }
    if functions:
        longest = max(functions, key=lambda each: (_length(each), each.name))
        facts["longest_function"] = {"name": longest.name, "lines": _length(longest)}
    return facts


def no_totals() -> Facts:
    """Returns the totals of no files."""
    return dict.fromkeys(
        ("files", "bytes", "lines", "functions", "classes", "import_count", "documentable", "documented"), 0
    )


def add_to_totals(totals: Facts, facts: Facts) -> Facts:
    """Returns the totals with one more file."""
    return {name: value + (1 if name == "files" else facts.get(name, 0)) for name, value in totals.items()}


def no_findings() -> Facts:
    """Returns the findings of no files."""
    return {"longest_functions": [], "least_documented": []}


def add_to_findings(findings: Facts, facts: Facts) -> Facts:
    """Returns the findings with one more file: the longest functions, and large files with few docstrings."""
    longest, least = list(findings["longest_functions"]), list(findings["least_documented"])
    if "longest_function" in facts:
        longest.append({"file": facts["file"], **facts["longest_function"]})
    if facts.get("documentable", 0) > 20:
        share = round(100 * facts["documented"] / facts["documentable"])
        least.append({"file": facts["file"], "documented_percent": share})
    longest.sort(key=lambda each: (-each["lines"], each["file"]))
    least.sort(key=lambda each: (each["documented_percent"], each["file"]))
    return {"longest_functions": longest[:FINDINGS_KEPT], "least_documented": least[:FINDINGS_KEPT]}


def report(totals: Facts, findings: Facts) -> str:
    """Returns the agent's final report."""
    share = 100 * totals["documented"] / max(totals["documentable"], 1)
    text = (
        f"{totals['files']} files with {totals['lines']:,} lines hold {totals['functions']:,} functions and "
        f"{totals['classes']:,} classes; {share:.0f} % of them have a docstring."
    )
    if findings["longest_functions"]:
        longest = findings["longest_functions"][0]
        text += f" The longest function is {longest['name']} in {longest['file']} with {longest['lines']} lines."
    return text


def survey_all(names: list[str]) -> tuple[Facts, Facts]:
    """Returns the totals and findings of one uninterrupted survey."""
    totals, findings = no_totals(), no_findings()
    for name in names:
        facts = survey_file(name)
        totals, findings = add_to_totals(totals, facts), add_to_findings(findings, facts)
    return totals, findings


def _imports(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1
