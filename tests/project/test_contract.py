"""The danger: a change of the contract that breaks programs already generated from it."""

import keyword
import re
import subprocess
import sys
from pathlib import Path

import pytest

SKIPPED = 77
OPTIONS = ("csharp_namespace", "go_package", "java_multiple_files", "java_outer_classname", "java_package")


@pytest.mark.timeout(240)
def test_contract_passes_buf(repository: Path) -> None:
    """The .proto files keep the style, and break nothing that was released."""
    command = [sys.executable, "proto/check_contract.py"]
    check = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    if check.returncode == SKIPPED:
        pytest.skip(check.stdout.strip())
    assert check.returncode == 0, check.stdout + check.stderr


def test_every_file_names_its_package_in_each_language(repository: Path) -> None:
    """Each file that users generate from has the options of Go, Java and C#. A later option would move every name."""
    root = repository / "proto/stateward"
    files = [*root.glob("v1/*.proto"), *root.glob("agent/v1/*.proto")]
    assert len(files) > 15
    texts = {file.name: file.read_text() for file in files}
    missing = {(name, option) for name in texts for option in OPTIONS if f"\noption {option} = " not in texts[name]}
    assert missing == set()


def test_java_gives_no_name_twice(repository: Path) -> None:
    """The class that Java makes for a file has a name that no message, enum, service or other file has."""
    texts = [file.read_text() for file in (repository / "proto/stateward").rglob("*.proto")]
    types = [name for text in texts for name in re.findall(r"^(?:message|enum|service) (\w+)", text, re.MULTILINE)]
    outer = [
        name for text in texts for name in re.findall(r'^option java_outer_classname = "(\w+)"', text, re.MULTILINE)
    ]
    assert len(outer) == len(set(outer))
    assert set(outer) & set(types) == set()


def test_no_field_is_a_keyword_of_python(repository: Path) -> None:
    """Python reads and sets such a field only with `getattr`."""
    texts = [file.read_text() for file in (repository / "proto/stateward").rglob("*.proto")]
    fields = {name for text in texts for name in re.findall(r"^ +[\w.<>, ]+ (\w+) = \d+", text, re.MULTILINE)}
    assert len(fields) > 300
    assert {name for name in fields if keyword.iskeyword(name)} == set()


def test_every_write_can_name_the_creation_and_the_digest(repository: Path) -> None:
    """A write has `expected_uid`, by itself or in its options; a version that is expected has its digest."""
    text = "\n".join(file.read_text() for file in (repository / "proto/stateward/v1").glob("*.proto"))
    messages = dict(re.findall(r"^message (\w+) \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL))
    common = (" WriteOptions options = ", " claim_token = ", " lease_token = ")
    writes = {name for name, body in messages.items() if any(field in body for field in common)}
    writes = {name for name in writes if name.endswith(("Request", "Begin")) or name.startswith("Open")}
    assert len(writes) > 15
    assert " expected_uid = " in messages["WriteOptions"]
    by_itself = {name for name in writes if common[0] not in messages[name]}
    assert {name for name in by_itself if " expected_uid = " not in messages[name]} == set()
    for version in ("expected_version", "expected_tagged_version"):
        digest = version.replace("version", "digest")
        having = {name for name, body in messages.items() if f" {version} = " in body}
        assert having
        assert {name for name in having if f" {digest} = " not in messages[name]} == set()
