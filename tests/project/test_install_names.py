"""The danger: a page or a message that tells people to install a name which no registry has, or somebody else has."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from stateward import _version

# A command of a package manager with a name of ours: not a path, and not a direct reference (`name @ git+URL`).
BY_NAME = re.compile(
    r"""(?x)
    (?:pip|pipx|uv)\s[^\n`]*?(?:install|add)\s[^\n`]*?(?<![\w./-])stateward[\w-]*(?:\[[^\]\n]*\])?(?!\s@|[\w./\[-])
    | (?:npm|pnpm|yarn)\s(?:i|install|add)\s[^\n`]*?@?stateward
    | (?:docker|podman)\spull\s[^\n`]*?stateward
    | helm\s(?:install|upgrade)\s\S+\s(?:stateward/|oci:)
    | (?:brew|apt|apt-get|cargo|go)\s(?:install|get)\s[^\n`]*?stateward
    """
)
WRONG = [
    "pip install stateward", "pip install 'stateward[cli]'", "run: pip install --upgrade stateward-sidecar",
    "uv add stateward", "pipx install stateward", "uv pip install 'stateward[langgraph]' langgraph",
    "npm install @stateward/langgraph", "docker pull stateward:1", "cargo install stateward",
]  # fmt: skip
RIGHT = [
    "pip install '.[sidecar,cli]'", 'pip install "stateward[cli] @ git+$REPOSITORY"', "docker build -t stateward .",
    "pip install ./stateward", "npm install ./stateward-langgraph.tgz".replace("stateward-", ""), "import stateward",
]  # fmt: skip
# The one place of the name, for the time when a registry has it; and this test.
HOLD_IT = {"client/stateward/_version.py", "tests/project/test_install_names.py"}


def told_by_name(text: str) -> list[str]:
    """The commands of a text that install by name."""
    return [found[0] for found in BY_NAME.finditer(text)]


def texts(repository: Path) -> dict[str, str]:
    """Everything that is tracked, or would be, but not what tests say."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    names = [name for name in done.stdout.splitlines() if not name.startswith("tests/pages/") and name not in HOLD_IT]
    paths = {name: repository / name for name in names}
    return {name: path.read_text(errors="replace") for name, path in paths.items() if path.is_file()}


def test_no_file_tells_a_name_that_no_registry_has(repository: Path) -> None:
    """Until a registry has the package, each page, message and docstring installs from the clone or a git URL."""
    if _version.IN_REGISTRY:
        pytest.skip("a registry has it")
    told = {name: found for name, text in texts(repository).items() if (found := told_by_name(text))}
    assert told == {}


@pytest.mark.parametrize("text", WRONG)
def test_a_name_is_seen(text: str) -> None:
    """Each form of such a command."""
    assert told_by_name(text)


@pytest.mark.parametrize("text", RIGHT)
def test_a_path_or_a_url_is_no_name(text: str) -> None:
    """Nor is the tag of an image that somebody builds."""
    assert told_by_name(text) == []


def test_a_message_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a clone now, and of the name once a registry has it."""
    assert _version.install_command("cli") == "pip install '.[cli]' in a clone of Stateward's repository"
    monkeypatch.setattr(_version, "IN_REGISTRY", True)
    assert told_by_name(_version.install_command("cli")) == ["pip install 'stateward[cli]"]


def test_each_extra_of_a_framework_brings_it(repository: Path) -> None:
    """Whoever installs the extra of an adapter can run the programs of its page."""
    extras = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    frameworks = {
        "adk": "google-adk", "agent-framework": "agent-framework-core", "langgraph": "langgraph",
        "openai-agents": "openai-agents", "pydantic-ai": "pydantic-ai-slim", "strands": "strands-agents",
    }  # fmt: skip
    for extra, framework in frameworks.items():
        assert framework in {Requirement(text).name for text in extras[extra]}, extra


def test_every_extra_is_on_the_page(repository: Path) -> None:
    """The page on installing names each extra for users, and no other."""
    extras = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = (repository / "docs/install.md").read_text().partition("| extra |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines() for name in re.findall(r"`([\w-]+)`", row.split("|")[1])}
    assert named == set(extras) - {"bench", "dev", "docs"}
