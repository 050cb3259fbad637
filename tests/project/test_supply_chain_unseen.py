"""The danger: a part of the image that no list names, a known weakness that nobody tells, code that invites attacks."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

OLD = "this environment is older than pyproject.toml; `make` brings it up to date"
schema = pytest.importorskip("cyclonedx.schema", reason=OLD)
validation = pytest.importorskip("cyclonedx.validation.json", reason=OLD)
pytest.importorskip("bandit", reason=OLD)
pytest.importorskip("pip_audit", reason=OLD)
# What bandit does not look for, since ruff does: code that ruff must refuse.
BY_RUFF = {
    "B105": 'password = "secret"\n',
    "B106": 'print(password="secret")\n',
    "B107": 'def call(password="secret"):\n    print(password)\n',
    "B108": 'PLACE = "/tmp/place"\n',
    "B110": "try:\n    print()\nexcept Exception:\n    pass\n",
    "B311": "import random\n\nprint(random.random())\n",
    "B603": "import subprocess\n\nsubprocess.run([input()])\n",
    "B607": 'import subprocess\n\nsubprocess.run(["git"])\n',
    "B608": 'print("SELECT x FROM " + input())\n',
}
# The two that neither looks for: asserts, and the import of subprocess.
BY_NOBODY = {"B101", "B404"}
WEAK = {"id": "PYSEC-1", "fix_versions": ["51"], "aliases": [], "description": ""}
KNOWN = {"name": "cryptography", "version": "50.0.2", "vulns": []}
UNKNOWN = {"name": "grpcio", "skip_reason": "not found"}
# A tool that says what the test wants, for the database that it is asked about.
TOOL = """
import json, os, sys
told = json.loads(os.environ["TOLD"])
out, err, code = told.get(sys.argv[sys.argv.index("--vulnerability-service") + 1], ["", "", 0])
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""
AWAY = ["", "Traceback\n  raise\nrequests.exceptions.ConnectionError: no route\n", 1]


def answer(*packages: dict[str, object], code: int = 0) -> list[object]:
    """What pip-audit prints."""
    return [json.dumps({"dependencies": packages, "fixes": []}), "", code]


@pytest.fixture(scope="module")
def sbom(repository: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("sbom", repository / "deploy/sbom.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_list_of_parts_is_up_to_date(sbom: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A change of the pinned requirements, or of the version, changes it; an old list is refused."""
    monkeypatch.setattr(sys, "argv", ["sbom.py", "--check"])
    assert sbom.main() == 0
    monkeypatch.setattr(sbom, "IMAGE", tmp_path)
    monkeypatch.setattr(sbom, "make", lambda _: "new")
    for old in sbom.LISTS.values():
        for name in sbom.LISTS.values():
            (tmp_path / name).write_text("old" if name == old else "new")
        assert sbom.main() == 1
    (tmp_path / old).write_text("new")
    assert sbom.main() == 0


LISTS = {"requirements": "stateward", "aws-requirements": "aws", "vault-requirements": "vault"}


@pytest.mark.parametrize("requirements", LISTS)
def test_the_list_names_what_is_installed(repository: Path, requirements: str) -> None:
    """Each package that Linux needs, in its version, with all hashes; and it is valid CycloneDX."""
    text = (repository / f"deploy/image/{LISTS[requirements]}.cdx.json").read_text()
    assert validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str(text) is None
    listed = {
        f"{part['name']}=={part['version']}": {each["content"] for each in part["externalReferences"][0]["hashes"]}
        for part in json.loads(text)["components"]
    }
    pinned = (repository / f"deploy/image/{requirements}.txt").read_text()
    wanted = {
        entry.split()[0]: set(re.findall(r"sha256:([0-9a-f]{64})", entry))
        for entry in re.split(r"^(?=[\w.-]+==)", pinned, flags=re.MULTILINE)[1:]
        if "win32" not in entry.partition("\\")[0]
    }
    assert listed == wanted
    assert len(listed) > (10 if requirements == "requirements" else 4)
    assert all(listed.values())


def test_the_image_and_a_release_have_the_list(repository: Path) -> None:
    """The final stage copies it. A release refuses an old one."""
    text = (repository / "Dockerfile").read_text()
    assert "COPY deploy/image/stateward.cdx.json /opt/stateward/share/" in text[text.rindex("\nFROM ") :]
    recipe = (repository / "Makefile").read_text().partition("\nrelease:")[2].partition("\n\n")[0]
    assert re.search(r"deploy/sbom\.py --check && .*hatchling build.*\n.*cp deploy/image/\S+\.json dist/", recipe)


@pytest.mark.parametrize(
    ("told", "code", "said"),
    [
        ({"pypi": answer(KNOWN)}, 0, r"audit: fine\n"),
        ({"pypi": ["", "No known vulnerabilities found", 0]}, 0, r"audit: fine\n"),
        ({"pypi": answer(KNOWN, UNKNOWN)}, 0, r"audit: fine, but it knows nothing of grpcio\n"),
        ({"pypi": answer({**KNOWN, "vulns": [WEAK]}, code=1)}, 1, r"cryptography 50.0.2: PYSEC-1, fixed in 51\n"),
        ({"pypi": answer(UNKNOWN), "osv": answer({**KNOWN, "vulns": [WEAK]}, code=1)}, 1, r"cryptography .*\n"),
        ({"pypi": AWAY, "osv": answer(KNOWN)}, 0, r"audit: fine\n"),
        ({"pypi": answer(UNKNOWN), "osv": AWAY}, 0, r"audit: skipped, because .*\(pypi\) knows none of 1 packages\n"),
        ({"pypi": AWAY, "osv": AWAY}, 0, r"audit: skipped, because no database can be reached\n"),
        ({"pypi": ["", "ERROR:pip_audit._cli:invalid input: x", 1]}, 2, r"audit: it failed: .* input: x\n"),
    ],
)
def test_a_weakness_is_told(repository: Path, tmp_path: Path, told: dict[str, object], code: int, said: str) -> None:
    """It fails the audit. Without a database, or one that knows the packages, one line says that it was skipped."""
    (tmp_path / "pip_audit").mkdir()
    (tmp_path / "pip_audit/__init__.py").touch()
    (tmp_path / "pip_audit/__main__.py").write_text(TOOL)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "TOLD": json.dumps(told)}
    command = [sys.executable, str(repository / "deploy/audit.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert re.fullmatch(said, done.stdout + done.stderr), done
    assert done.returncode == code


def test_the_real_tool_without_a_network_skips(repository: Path) -> None:
    """It reads the lists of the image, and reaches nobody."""
    environment = {**os.environ, "HTTPS_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    command = [sys.executable, str(repository / "deploy/audit.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "audit: skipped, because no database can be reached\n"), done.stderr


def bandit(repository: Path, place: Path) -> str:
    """What bandit says of a folder, with the settings of this repository; empty = nothing."""
    flags = ["--quiet", "--configfile", str(repository / "pyproject.toml"), "--recursive", str(place)]
    done = subprocess.run([sys.executable, "-m", "bandit", *flags], capture_output=True, text=True, check=False)
    assert (done.returncode == 1) == bool(done.stdout.strip()), done
    return done.stdout


def test_code_that_invites_attacks_is_refused(repository: Path, tmp_path: Path) -> None:
    """Bandit finds with our settings what a review might miss, and `make lint` asks it."""
    (tmp_path / "fine.py").write_text("print()\n")
    assert bandit(repository, tmp_path) == ""
    (tmp_path / "weak.py").write_text("import pickle\nimport sys\n\npickle.load(sys.stdin.buffer)\n")
    assert "B301" in bandit(repository, tmp_path)
    recipe = (repository / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    assert re.search(r"bandit .*--configfile pyproject.toml --recursive \$\(SHIPPED\) && echo", recipe)


def test_what_bandit_leaves_out_ruff_refuses(repository: Path) -> None:
    """Each of these checks has a twin in ruff, whose reasons stand at each place."""
    skips = set(tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["bandit"]["skips"])
    assert skips == BY_RUFF.keys() | BY_NOBODY
    for name, code in BY_RUFF.items():
        command = [sys.executable, "-m", "ruff", "check", "--output-format", "concise", "--no-cache", "-"]
        done = subprocess.run(
            [*command, "--stdin-filename", "sidecar/stateward_sidecar/app.py"], cwd=repository, input=code,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert f" S{name[1:]} " in done.stdout, done
