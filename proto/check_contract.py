"""Checks the .proto files with buf: their style, and changes that break code generated from older versions.

    python proto/check_contract.py     exits 0 on success, 77 if buf is not available (and prints the reason), else 1

The script uses the buf on PATH, or the npm package that ships its binary. It compares with the last release tag, and
fails on a breaking change. Before the first release it compares with main, and only prints breaking changes.
"""

import shutil
import subprocess
import sys
from pathlib import Path

PROTO = Path(__file__).resolve().parent
BUF_VERSION = "1.75.0"
SKIPPED = 77
# The timeout for the installation of buf by npm, and for each check, in seconds.
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
    """Returns the command that runs buf. Raises LookupError with the reason if buf is not available."""
    if path := shutil.which("buf"):
        return [path]
    npx = shutil.which("npx")
    if not npx:
        raise LookupError("neither buf nor npm is installed")
    # npx is asked for the program's path, once: each start of npx itself takes a second.
    command = [npx, "--yes", "--prefer-offline", f"--package=@bufbuild/buf@{BUF_VERSION}", "-c", "command -v buf"]
    try:
        answer = run(command)
    except subprocess.TimeoutExpired:
        raise LookupError(f"npm did not install buf {BUF_VERSION} within {LIMIT_S} s") from None
    if answer.returncode:
        reasons = [line for line in answer.stderr.splitlines() if line.startswith("npm error")]
        raise LookupError(f"npm cannot install buf {BUF_VERSION}: {(reasons or ['npm gives no reason'])[0]}")
    return [answer.stdout.strip()]


def check_style(buf: list[str]) -> int:
    """Prints the findings of the linter. Returns 1 if there are any, else 0."""
    answer = run([*buf, "lint"])
    print((answer.stdout or answer.stderr).rstrip() if answer.returncode else "proto-lint: style is fine")
    return int(answer.returncode != 0)


def check_breaks(buf: list[str]) -> int:
    """Prints the breaking changes. Returns 1 if there are any since the last release, else 0."""
    tag = git("describe", "--tags", "--abbrev=0", "--match", "v*")
    base = tag or git("log", "-1", "--format=%H", "main", "--", ".")
    if not base:
        print("proto-lint: there is no release and no contract on main to compare with")
        return 0
    answer = run([*buf, "breaking", "--against", f"../.git#ref={base},subdir=proto"])
    name = tag or f"main ({base[:12]}), not released yet"
    print(f"proto-lint: {'breaks' if answer.returncode else 'breaks nothing of'} {name}")
    if answer.returncode:
        print((answer.stdout or answer.stderr).rstrip())
    return int(bool(tag) and answer.returncode != 0)


def git(*arguments: str) -> str:
    """Returns the output of a git command; empty if the command fails or git is missing."""
    return run(["git", *arguments]).stdout.strip() if shutil.which("git") else ""


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command in proto/ and captures its output. Raises subprocess.TimeoutExpired after LIMIT_S."""
    return subprocess.run(command, cwd=PROTO, capture_output=True, text=True, timeout=LIMIT_S, check=False)


if __name__ == "__main__":
    sys.exit(main())
