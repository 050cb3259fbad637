"""Checks the .proto files with buf: their style, and what would break those who generated code from them.

    python proto/check_contract.py     exits 0 when all is well, 77 when buf cannot be had here (and says why), else 1

buf comes from PATH, or from the npm package that ships its binary. A break counts once a version is released: against
the last release tag. Before the first one it is only shown, against what is on main.
"""

import shutil
import subprocess
import sys
from pathlib import Path

PROTO = Path(__file__).resolve().parent
BUF_VERSION = "1.75.0"
SKIPPED = 77
# Longest time to wait for npm to bring buf, and for a check, in seconds.
LIMIT_S = 90


def main() -> int:
    """Runs both checks; returns the exit code."""
    try:
        buf = find_buf()
    except LookupError as error:
        print(f"proto-lint: skipped: {error}")
        return SKIPPED
    return max(check_style(buf), check_breaks(buf))


def find_buf() -> list[str]:
    """Returns the command that runs buf; raises LookupError, with the reason, where there is none."""
    if path := shutil.which("buf"):
        return [path]
    npx = shutil.which("npx")
    if not npx:
        raise LookupError("neither buf nor npm is installed")
    command = [npx, "--yes", "--prefer-offline", f"@bufbuild/buf@{BUF_VERSION}"]
    try:
        answer = run([*command, "--version"])
    except subprocess.TimeoutExpired:
        raise LookupError(f"npm did not bring buf {BUF_VERSION} within {LIMIT_S} s") from None
    if answer.returncode:
        reasons = [line for line in answer.stderr.splitlines() if line.startswith("npm error")]
        raise LookupError(f"npm cannot bring buf {BUF_VERSION}: {(reasons or ['it gives no reason'])[0]}")
    return command


def check_style(buf: list[str]) -> int:
    """Prints every finding of the linter; returns 1 if there is one."""
    answer = run([*buf, "lint"])
    print((answer.stdout or answer.stderr).rstrip() if answer.returncode else "proto-lint: style is fine")
    return int(answer.returncode != 0)


def check_breaks(buf: list[str]) -> int:
    """Prints what breaks compatibility with what was published; returns 1 if that is a release."""
    tag = git("describe", "--tags", "--abbrev=0", "--match", "v*")
    base = tag or git("log", "-1", "--format=%H", "main", "--", ".")
    if not base:
        print("proto-lint: nothing to compare with: no release, and no contract on main yet")
        return 0
    answer = run([*buf, "breaking", "--against", f"../.git#ref={base},subdir=proto"])
    name = tag or f"main ({base[:12]}), not released yet"
    print(f"proto-lint: {'breaks' if answer.returncode else 'breaks nothing of'} {name}")
    if answer.returncode:
        print((answer.stdout or answer.stderr).rstrip())
    return int(bool(tag) and answer.returncode != 0)


def git(*arguments: str) -> str:
    """Returns what a git command prints; empty where it fails, or git or the history is missing."""
    return run(["git", *arguments]).stdout.strip() if shutil.which("git") else ""


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command in proto/ and captures what it prints."""
    return subprocess.run(command, cwd=PROTO, capture_output=True, text=True, timeout=LIMIT_S, check=False)


if __name__ == "__main__":
    sys.exit(main())
