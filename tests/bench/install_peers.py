"""Installs what the bench compares with from Debian's packages: `make bench-peers`.

Nothing is left running: packages may not start their services while they are installed, and what this run installed is
kept from starting with the machine. The bench starts its own instances.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.bench.servers import PeerAbsent, find_postgres

PACKAGES = {"PostgreSQL": "postgresql", "Redis": "redis-server", "etcd": "etcd-server"}
PACKAGES |= {"git": "git", "restic": "restic", "borg": "borgbackup"}
SERVICES = {"PostgreSQL": "postgresql", "Redis": "redis-server", "etcd": "etcd"}
POLICY = Path("/usr/sbin/policy-rc.d")


def main() -> None:
    """Installs those that are missing; says what it did."""
    missing = [name for name in PACKAGES if not is_installed(name)]
    for name in PACKAGES.keys() - missing:
        print(f"{name}: installed")
    if not missing:
        return
    if shutil.which("apt-get") is None:
        sys.exit(f"This needs apt-get. Install {', '.join(missing)} in another way: the bench looks on the PATH.")
    if os.geteuid() != 0:
        if shutil.which("sudo") is None:
            sys.exit(f"This needs root: apt-get install {' '.join(PACKAGES[name] for name in missing)}")
        # As root from here on, with the same Python; only the search path has to be told again.
        again = ["sudo", sys.executable, "-m", "tests.bench.install_peers"]
        sys.exit(subprocess.run(again, check=False).returncode)
    with services_kept_down():
        run("apt-get", "update", "-qq")
        failed = [name for name in missing if not install(PACKAGES[name])]
    for name in missing:
        if name not in failed and name in SERVICES and shutil.which("systemctl"):
            run("systemctl", "disable", "--quiet", SERVICES[name])
        print(f"{name}: {'no such package here, left out' if name in failed else 'installed, not started'}")
    sys.exit(len(failed) == len(missing))


def is_installed(name: str) -> bool:
    """Whether the bench will find it."""
    if name == "PostgreSQL":
        with suppress(PeerAbsent):
            return find_postgres().exists()
        return False
    return shutil.which({"Redis": "redis-server"}.get(name, name)) is not None


def install(package: str) -> bool:
    """Whether it worked. One by one: a distribution without one of them still gets the others."""
    return run("apt-get", "install", "--yes", "-qq", "--no-install-recommends", package)


@contextmanager
def services_kept_down() -> Iterator[None]:
    """Debian's packages ask this file whether they may start what they bring; 101 is no."""
    if POLICY.exists():  # somebody's own answer, in containers usually the same one
        yield
        return
    try:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
        yield
    finally:
        POLICY.unlink(missing_ok=True)


def run(*command: str) -> bool:
    """Runs a command and shows what it says only where it fails."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    answer = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if answer.returncode:
        print(f"{' '.join(command)}: {answer.stdout[-2000:]}", file=sys.stderr)
    return answer.returncode == 0


if __name__ == "__main__":
    main()
