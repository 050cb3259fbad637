"""Looks for known weaknesses in the packages that the image is built from and installs.

    python deploy/audit.py

Exit codes: 0 nothing was found, or nobody could be asked, which one line says; 1 something was found; 2 the audit
itself failed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

IMAGE = Path(__file__).resolve().parent / "image"
LISTS = ("requirements.txt", "build-requirements.txt", "aws-requirements.txt", "vault-requirements.txt")
# The databases, in this order: the next one is asked if one cannot be reached or knows no package.
DATABASES = ("pypi", "osv")
UNREACHABLE = re.compile(
    r"^(requests\.exceptions|pip_audit\._service\.interface)\.|^ERROR:.*(connect|redirect)", re.MULTILINE
)
WAIT_S = 600.0


def ask(database: str) -> list[dict[str, Any]] | None:
    """Returns what a database knows of each package; None if it cannot be reached. Raises RuntimeError."""
    command = [sys.executable, "-m", "pip_audit", "--vulnerability-service", database, "--format", "json"]
    command += ["--disable-pip", "--require-hashes", "--progress-spinner", "off"]
    command += [word for name in LISTS for word in ("--requirement", str(IMAGE / name))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        # With nothing to tell, it prints no JSON.
        if done.returncode == 0:
            return []
        if UNREACHABLE.search(done.stderr):
            return None
        raise RuntimeError((done.stderr.strip().splitlines() or ["it said nothing"])[-1]) from None
    return found


def weaknesses(packages: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each weakness."""
    for each in packages:
        for weakness in each.get("vulns", ()):
            fixed = ", ".join(weakness["fix_versions"]) or "no version yet"
            yield f"{each['name']} {each['version']}: {weakness['id']}, fixed in {fixed}"


def main() -> int:
    """Asks, and prints what was found."""
    unknown = "no database can be reached"
    for database in DATABASES:
        try:
            packages = ask(database)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"audit: it failed: {error}", file=sys.stderr)
            return 2
        if packages is None:
            continue
        missing = [each["name"] for each in packages if "skip_reason" in each]
        if packages and len(missing) == len(packages):
            unknown = f"the database that can be reached ({database}) knows none of {len(packages)} packages"
            continue
        if found := list(weaknesses(packages)):
            print("\n".join(found), file=sys.stderr)
            return 1
        print("audit: fine" + (f", but it knows nothing of {', '.join(missing)}" if missing else ""))
        return 0
    print(f"audit: skipped, because {unknown}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
