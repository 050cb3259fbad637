"""Generates the blocking client, `stateward/_sync`, from the asyncio client, `stateward/_async`.

    python client/generate.py           writes it, and removes what no longer belongs there
    python client/generate.py --check   says which files are stale, missing or extra, and exits 1 if any is

The two differ in how they wait, and in nothing else. What they wait with has a pair of modules with equal names in
`stateward/_io/aio` and `stateward/_io/blocking`.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent / "stateward"
SOURCE, TARGET = PACKAGE / "_async", PACKAGE / "_sync"
RULES = (
    (r"    @overload  # asyncio\n(?:.*\n)*?.*\.\.\.\n", ""),  # a coroutine function is no tool of the blocking client
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"  # noqa: ASYNC.*$", ""),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\banext\(", "next("),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\bstateward\._async\b", "stateward._sync"),
    (r"\bstateward\._io\.aio\b", "stateward._io.blocking"),
    (r"\basyncio client\b", "blocking client"),
)
HEADER = "# Generated from {source} by client/generate.py. Do not edit.\n"


def main() -> int:
    """Runs the command; returns its exit code."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--check", action="store_true", help="compare with what is there and write nothing")
    check = arguments.parse_args().check
    wanted = {path.name: generate(path) for path in sorted(SOURCE.glob("*.py"))}
    present = {path.name: path.read_text() for path in TARGET.glob("*.py")}
    if check:
        return report_differences(wanted, present)
    TARGET.mkdir(exist_ok=True)
    for name in present.keys() - wanted.keys():
        (TARGET / name).unlink()
    for name, text in wanted.items():
        (TARGET / name).write_text(text)
    return 0


def generate(path: Path) -> str:
    """The blocking form of a file, in the style of the project."""
    if path.name == "__init__.py":
        return '"""The blocking client: generated from `_async` by `client/generate.py`, never edited."""\n'
    text = path.read_text()
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    target = TARGET / path.name
    for command in (["check", "--fix-only", "--select", "I,F401", "--quiet"], ["format", "--quiet"]):
        tool = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(target), "-"]
        text = subprocess.run(tool, input=text, capture_output=True, check=True, text=True).stdout
    return HEADER.format(source=path.relative_to(PACKAGE.parent)) + text


def report_differences(wanted: dict[str, str], present: dict[str, str]) -> int:
    """Says which files are not as they would be written; 1 if there are any."""
    stale = sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))
    for name in stale:
        what = "missing" if name not in present else "extra" if name not in wanted else "stale"
        print(f"client: stateward/_sync/{name} is {what}; run: make generate")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
