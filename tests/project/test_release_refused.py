"""The danger: a release that names a repository or a contact which nobody has decided."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

READ = ("client/stateward/_version.py", "docs/install.md", "pyproject.toml", "CHANGELOG.md", "SECURITY.md")
PLACES = {"pyproject.toml", "SECURITY.md"}
"""The one place of each placeholder."""


@pytest.fixture(scope="module")
def release(repository: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", repository / "docs/release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(repository: Path, tmp_path: Path) -> Path:
    """What a release reads, in a clone in which everything is decided and committed."""
    for name in READ:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(repository / name, tmp_path / name)
    change(tmp_path / "pyproject.toml", "repository.invalid/stateward", "host.example/team/stateward")
    change(tmp_path / "SECURITY.md", "contact.invalid", "host.example")
    change(tmp_path / "client/stateward/_version.py", "IN_REGISTRY = False", "IN_REGISTRY = True")
    change(tmp_path / "docs/install.md", "No package registry has Stateward yet.", "")
    change(tmp_path / "CHANGELOG.md", "not released yet", "2027-01-31")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "--quiet", "-m", "all is decided")
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True)


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text or path.name != "pyproject.toml"
    path.write_text(text.replace(old, new))


def test_this_tree_is_refused_while_something_is_open(repository: Path, release: ModuleType) -> None:
    """The command ends with 1 and a line for each placeholder that stands."""
    done = subprocess.run(
        [sys.executable, str(repository / "docs/release.py")], capture_output=True, text=True, check=False
    )
    stands = {name for name in PLACES if release.PLACEHOLDER.search((repository / name).read_text())}
    assert stands <= {re.findall(r"no release: ([\w./]+)", line)[0] for line in done.stderr.splitlines()}
    assert done.returncode == 1 or not stands


def test_a_decided_tree_is_released(tree: Path, release: ModuleType) -> None:
    """Nothing is asked for that nobody can give."""
    assert list(release.open_points(tree)) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("pyproject.toml", "host.example", "repository.invalid", "the repository"),
        ("SECURITY.md", "host.example", "contact.invalid", "the security contact"),
        ("SECURITY.md", "security@host.example", "us", "the security contact"),
        ("client/stateward/_version.py", "IN_REGISTRY = True", "IN_REGISTRY = False", "IN_REGISTRY"),
        ("docs/install.md", "# Install", "# Install\n\nNo package registry has it.", "docs/install.md"),
        ("CHANGELOG.md", "2027-01-31", "soon", "has no date"),
    ],
)  # fmt: skip
def test_each_open_point_refuses(tree: Path, release: ModuleType, name: str, old: str, new: str, said: str) -> None:
    """Each alone, and a change that is not committed."""
    path = tree / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    points = list(release.open_points(tree))
    assert [point for point in points if said in point], points
    assert any("not committed" in point for point in points)


def test_a_placeholder_has_one_place(repository: Path) -> None:
    """No other file repeats it, so that whoever decides changes one line."""
    found = {
        name: count for name in tracked(repository)
        if not name.startswith("tests/")
        and (count := len(re.findall(r"(?:repository|contact)\.invalid", read(repository / name))))
    }  # fmt: skip
    assert found == dict.fromkeys(PLACES, 1) or found.keys() < PLACES


def tracked(repository: Path) -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [name for name in done.stdout.splitlines() if (repository / name).is_file()]


def read(path: Path) -> str:
    return path.read_text(errors="replace")


def test_make_release_asks_before_it_builds(repository: Path) -> None:
    """The task runs the check first, and builds only if it ends well."""
    makefile = (repository / "Makefile").read_text()
    recipe = makefile.partition("\nrelease:")[2].partition("\n\n")[0]
    assert re.search(r"docs/release\.py && .*hatchling build", recipe)


def test_the_support_page_has_the_versions_of_the_package(repository: Path) -> None:
    """Each framework has the requirements that its extra installs, and the Pythons are those of the tests."""
    import json
    import tomllib

    from tests.project.test_package_bare_pythons import MINORS

    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    page = (repository / "docs/support.md").read_text()
    extras = {"(none)": project["dependencies"], **project["optional-dependencies"]}
    rows = [row.split("|") for row in page.partition("| framework |")[2].partition("\n\n")[0].splitlines()[2:]]
    for row in rows:
        extra, told = row[2].strip(" `"), re.findall(r"`([^`]+)`", row[3])
        if extra == "npm package":
            package = json.loads((repository / "packages/langgraph-js/package.json").read_text())
            name, _, versions = told[0].partition(" ")
            assert package["peerDependencies"][name] == versions
            assert package["engines"]["node"] == told[1]
            continue
        wanted = {each.name: each.specifier for each in map(Requirement, extras[extra])}
        for requirement in map(Requirement, told):
            assert wanted[requirement.name] == requirement.specifier, requirement
    assert "CPython " + ", ".join(f"3.{minor}" for minor in MINORS) in page
    assert project["requires-python"] == f">=3.{MINORS[0]}"
