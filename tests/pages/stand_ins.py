"""Programs that a test cannot run: each looks at its arguments, and at the files that they name, and ends well or not.

python -m tests.pages.stand_ins docker build -t stateward .
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from stateward_sidecar.settings import make_parser

REPOSITORY = Path(__file__).resolve().parents[2]


class Wrong(Exception):
    """The real program would refuse this."""


def run(command: Sequence[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a program in the repository."""
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)


def make(arguments: Sequence[str]) -> None:
    """Every task is there, and so is what it depends on. Nothing is made."""
    # With --dry-run alone, make would run the lines that call make again.
    command = ["make", "--dry-run", "--no-print-directory", "SHELL=true", *arguments]
    path = os.environ["PATH"].partition(os.pathsep)[2]  # without this stand-in
    done = run(command, {**os.environ, "PATH": path})
    if done.returncode != 0 or "Nothing to be done" in done.stdout:
        raise Wrong(done.stdout + done.stderr)


def pip(arguments: Sequence[str]) -> None:
    """The requirements are Stateward with extras that it has, or tools of the release."""
    parser = Parser()
    parser.add_argument("command", choices=["install"])
    parser.add_argument("requirements", nargs="+")
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for text in parser.parse_args(arguments).requirements:
        if text.startswith("."):
            text = text.replace(".", "stateward", 1)
            if not Path("pyproject.toml").exists():
                raise Wrong("there is no package in this folder")
        wanted = Requirement(text)
        if wanted.name not in ("stateward", "build") or wanted.extras - set(extras):
            raise Wrong(f"{wanted}: not a package or an extra of it")


def python(arguments: Sequence[str]) -> None:
    """Modules of the tests run for hours: their options exist. pip and build are stood in for."""
    match arguments:
        case ["-m", "pip", *rest]:
            pip(rest)
        case ["-m", "build"]:
            if not tomllib.loads(Path("pyproject.toml").read_text())["build-system"]["requires"]:
                raise Wrong("nothing says how to build")
        case ["-m", module, *rest] if module.startswith("tests."):
            options = {word.partition("=")[0] for word in rest if word.startswith("-")}
            if (found := find_spec(module)) is None:
                raise Wrong(f"there is no {module}")
            file = found.origin if found.origin and found.submodule_search_locations is None else None
            main = Path(file) if file else REPOSITORY / Path(*module.split("."), "__main__.py")
            if missing := options - options_of(main.read_text()):
                raise Wrong(f"{module} has no {missing}")
        case _:
            raise Wrong("all else runs, and does not come here")


def options_of(source: str) -> set[str]:
    """The options that a program adds to its parser: to run it for its help would import all that it needs."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    words = (word.value for call in calls for word in call.args if isinstance(word, ast.Constant))
    return {word for word in words if isinstance(word, str) and word.startswith("-")}


class Parser(argparse.ArgumentParser):
    """A parser that raises Wrong."""

    def __init__(self, **options: object) -> None:
        super().__init__(add_help=False, allow_abbrev=False, **options)  # type: ignore[arg-type]

    def error(self, message: str) -> None:  # type: ignore[override]
        raise Wrong(message)


def docker(arguments: Sequence[str]) -> None:
    """Contexts have a Dockerfile, volumes are those of the image, and images those that the page builds."""
    parser = Parser()
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    further = commands.add_parser("buildx").add_subparsers(required=True, parser_class=Parser)
    for each in (commands.add_parser("build"), further.add_parser("build")):
        each.add_argument("-t")
        each.add_argument("--build-arg")
        each.add_argument("--platform", choices=["linux/amd64", "linux/arm64"])
        each.add_argument("context")
    run = commands.add_parser("run")
    run.add_argument("-d", action="store_true")
    run.add_argument("--read-only", action="store_true")
    run.add_argument("--name")
    run.add_argument("-v", action="append", default=[])
    run.add_argument("image", choices=["stateward"])
    run.add_argument("flags", nargs="*")
    commands.add_parser("push").add_argument("image")
    commands.add_parser("image").add_argument("words", nargs=2)
    commands.add_parser("inspect").add_argument("-f")
    commands.choices["inspect"].add_argument("container")
    commands.add_parser("scout").add_argument("words", nargs=2)
    project = commands.add_parser("compose")
    project.add_argument("-f", type=Path)
    project.add_argument("words", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    if given.command == "compose" and not given.f.exists():
        raise Wrong(f"there is no {given.f}")
    text = (REPOSITORY / "Dockerfile").read_text()
    if "context" in given and not (Path(given.context) / "Dockerfile").exists():
        raise Wrong(f"{given.context} has no Dockerfile")
    volumes = set(re.findall(r'"(/[\w/]+)"', text.partition("\nVOLUME ")[2].partition("\n")[0]))
    for mounted in getattr(given, "v", ()):
        if mounted.partition(":")[2] not in volumes:
            raise Wrong(f"{mounted} is no volume of the image: {volumes}")


SECRETS = ("sidecar/sidecar.yaml", "token/token.yaml")
# Folders that a page has its reader make; tests/deploy/test_page_of_deploy.py renders the page's files.
OWN_FOLDERS = ("deploy/kubernetes/mine", "deploy/kubernetes/cluster")


def kubectl(arguments: Sequence[str]) -> None:
    """A Secret is made of a key, under the name that the manifests use; a folder renders; the sidecar is asked."""
    if arguments[:1] == ["-n"]:
        arguments = arguments[2:]
    match arguments:
        case ["create", "namespace", _] | ["rollout", "status", _]:
            pass
        case ["create", "secret", "generic", name, source] if source.startswith("--from-file="):
            secret_of_a_file(name, Path(source.partition("=")[2]))
        case ["create", "secret", "generic", name, *literals]:
            used = (REPOSITORY / "deploy/kubernetes/archive/archive.yaml").read_text()
            if f"secretRef: {{ name: {name}," not in used:
                raise Wrong("no Secret that the manifests use")
            if not all(re.fullmatch(r"--from-literal=[A-Z_]+=\S+", literal) for literal in literals):
                raise Wrong("not variables")
        case ["exec", _, "-c", "stateward", "--", "stateward-sidecar", *flags]:
            try:
                make_parser().parse_args(flags)
            except SystemExit as error:
                raise Wrong("the daemon has no such flag") from error
        case ["apply", "-k", folder] | ["kustomize", folder]:
            if folder not in OWN_FOLDERS:
                render(folder)
        case _:
            raise Wrong("not a command that the pages may have")


def secret_of_a_file(name: str, key: Path) -> None:
    files = [(REPOSITORY / "deploy/kubernetes" / file).read_text() for file in SECRETS]
    mounted = next((text for text in files if f"secretName: {name}\n" in text), "")
    if not re.fullmatch("[0-9a-f]{64}\n", key.read_text()) or not mounted:
        raise Wrong("no key, or no Secret that the manifests use")
    if not re.search(rf"_FILE, value: /[\w/]+/{key.name} }}", mounted):
        raise Wrong("the manifests look for the secret under another name")


def render(folder: str) -> None:
    if not (Path(folder) / "kustomization.yaml").exists():
        raise Wrong(f"{folder} has no kustomization.yaml")
    path = os.environ["PATH"].partition(os.pathsep)[2]
    if program := shutil.which("kubectl", path=path):
        subprocess.run([program, "kustomize", folder], check=True, stdout=subprocess.DEVNULL)


def helm(arguments: Sequence[str]) -> None:
    """The chart exists, and its values have each name that is set. tests/deploy/test_chart.py renders it."""
    parser = Parser()
    parser.add_argument("command", choices=["install"])
    parser.add_argument("release")
    parser.add_argument("chart")
    parser.add_argument("-n")
    parser.add_argument("--create-namespace", action="store_true")
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args(arguments)
    values = (Path(given.chart) / "values.yaml").read_text()
    for value in given.set:
        if not re.search(rf"^{value.partition('=')[0].partition('.')[0]}:", values, re.MULTILINE):
            raise Wrong(f"the chart has no value {value}")


def sudo(arguments: Sequence[str]) -> None:
    """What root does for the unit: user and programs are those that the unit names, and files are there."""
    unit = (REPOSITORY / "deploy/systemd/stateward.service").read_text()
    user, program = (re.findall(rf"^{name}=(\S+)$", unit, re.MULTILINE)[0] for name in ("User", "ExecStart"))
    folder = str(Path(program).parents[1])
    match arguments:
        case ["useradd", "--system", "--shell", "/usr/sbin/nologin", name] if name == user:
            pass
        case ["usermod", "-aG", name, _] if name == user:
            pass
        case ["python3", "-m", "venv", place] if place == folder:
            pass
        case [tool, *rest] if tool == f"{folder}/bin/pip":
            pip(rest)
        case ["install", *_, source, _] | ["chown", "65532", source] if Path(source).is_file():
            pass
        case ["systemctl", "daemon-reload"] | ["systemctl", "enable", "--now", "stateward"]:
            pass
        case ["systemctl", "status" | "restart", "stateward"] | ["journalctl", "-u", "stateward", "-n", _]:
            pass
        case [tool, *flags] if tool == program:
            make_parser().parse_args(flags)
        case ["-u", "agent", owner, tool, "--target", target, "status"] if tool == f"{folder}/bin/stateward":
            if owner != f"STATEWARD_SOCKET_OWNER={user}" or f"STATEWARD_LISTEN={target}\n" not in unit:
                raise Wrong("not the socket or the user of the unit")
        case _:
            raise Wrong("not what root does for the unit")


STAND_INS: dict[str, Callable[[Sequence[str]], None]] = {
    "docker": docker, "helm": helm, "kubectl": kubectl, "make": make, "pip": pip, "python": python, "python3": python,
    "sudo": sudo, "sleep": lambda arguments: None,
}  # fmt: skip


def install(folder: Path) -> None:
    """Puts the stand-ins into a folder of the PATH."""
    for name in STAND_INS:
        command = f'PYTHONPATH="{REPOSITORY}" exec "{sys.executable}" -m {__name__} {name} "$@"'
        if name.startswith("python"):  # most of what it is told runs
            command = f'case "$1 $2" in "-m pip" | "-m build" | "-m tests."*) {command} ;; esac\n'
            command += f'exec "{sys.executable}" "$@"'
        if name == "sleep":
            command = "exit 0"
        (folder / name).write_text(f"#!/bin/sh\n{command}\n")
        (folder / name).chmod(0o755)


if __name__ == "__main__":
    try:
        STAND_INS[sys.argv[1]](sys.argv[2:])
    except Wrong as error:
        sys.exit(f"{' '.join(sys.argv[1:])}: {error}")
