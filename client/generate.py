"""Generates the blocking client from the asyncio client.

    python client/generate.py           writes the files, and removes generated files that no longer have a source
    python client/generate.py --check   names the files that are stale, missing or extra, and exits 1 if there are any

All of `stateward/_sync` is generated from `stateward/_async`. The two clients differ only in how they wait. The code
that waits is in pairs of modules with equal names in `stateward/_io/aio` and `stateward/_io/blocking`. Most of these
are written by hand; those in IO_SHARED are generated, too.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent / "stateward"
SOURCE, TARGET = PACKAGE / "_async", PACKAGE / "_sync"
IO_SOURCE, IO_TARGET = PACKAGE / "_io/aio", PACKAGE / "_io/blocking"
IO_SHARED = ("driving.py", "session.py")
RULES = (
    (r"    @overload  # asyncio\n(?:.*\n)*?.*\.\.\.\n", ""),  # the blocking client takes no coroutine functions
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
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\ban asyncio client\b", "a blocking client"),
    (r"\basyncio client\b", "blocking client"),
)
HEADER = "# Generated from {source} by client/generate.py. Do not edit.\n"


def main() -> int:
    """Runs the command. Returns its exit code."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--check", action="store_true", help="compare with the files on disk and write nothing")
    check = arguments.parse_args().check
    sources = {TARGET / path.name: path for path in SOURCE.glob("*.py")}
    sources |= {IO_TARGET / name: IO_SOURCE / name for name in IO_SHARED}
    wanted = {target: generate(source, target) for target, source in sorted(sources.items())}
    present = {path: path.read_text() for path in {*TARGET.glob("*.py"), *sources} if path.exists()}
    if check:
        return report_differences(wanted, present)
    TARGET.mkdir(exist_ok=True)
    for path in present.keys() - wanted.keys():
        path.unlink()
    for path, text in wanted.items():
        path.write_text(text)
    return 0


def generate(source: Path, target: Path) -> str:
    """Returns the blocking form of a source file, formatted like the rest of the project."""
    if source.name == "__init__.py":
        return '"""The blocking client: generated from `_async` by `client/generate.py`, never edited."""\n'
    text = source.read_text()
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    for command in (["check", "--fix-only", "--select", "I,F401", "--quiet"], ["format", "--quiet"]):
        tool = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(target), "-"]
        text = subprocess.run(tool, input=text, capture_output=True, check=True, text=True).stdout
    return HEADER.format(source=source.relative_to(PACKAGE.parent)) + text


def report_differences(wanted: dict[Path, str], present: dict[Path, str]) -> int:
    """Prints the files that differ from the generated ones. Returns 1 if there are any, else 0."""
    stale = sorted(path for path in wanted.keys() | present.keys() if wanted.get(path) != present.get(path))
    for path in stale:
        what = "missing" if path not in present else "extra" if path not in wanted else "stale"
        print(f"client: {path.relative_to(PACKAGE.parent)} is {what}; run: make generate")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
