"""The danger: a command of proto/README.md that generates nothing, or code that does not compile."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import grpc_tools.protoc
import pytest
import yaml
from tests.languages.building import BUILT, REPOSITORY

MADE = {
    "Go": {"stateward/v1/writer_service_grpc.pb.go", "stateward/agent/v1/agent.pb.go"},
    "Java": {"com/stateward/v1/SaveRequest.java", "com/stateward/v1/WriterServiceGrpc.java"},
    "TypeScript": {"stateward/v1/writer_service_pb.ts", "google/rpc/error_details_pb.ts"},
    "Rust": {"stateward/v1/stateward.v1.rs", "stateward/v1/stateward.v1.tonic.rs"},
    "C#": {"V1/WriterService.cs"},
    "C++": {"stateward/v1/writer_service.pb.h", "google/rpc/error_details.pb.cc"},
}
BUILT_IN = {"java", "csharp", "cpp"}
"""What protoc generates without a plugin. The protoc of grpcio-tools leaves these languages out."""


def commands(language: str) -> str:
    """The indented commands below the heading of a language."""
    page = (REPOSITORY / "proto/README.md").read_text()
    section = re.split(r"^##+ ", page.partition(f"\n### {language}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    blocks = re.findall(r"(?:^    .*\n)+", section, re.MULTILINE)
    assert blocks, language
    return "".join(map(textwrap.dedent, blocks))


def make_tools(folder: Path) -> None:
    """Puts protoc and a plugin into the folder: those that Maven has loaded, else a protoc without all languages."""
    folder.mkdir()
    loaded = Path.home() / ".m2/repository"
    for program in loaded.glob("io/grpc/protoc-gen-grpc-java/*/protoc-gen-grpc-java-*.exe"):
        copy_program(program, folder / "protoc-gen-grpc-java")
    for program in loaded.glob("com/google/protobuf/protoc/*/protoc-*.exe"):
        copy_program(program, folder / "complete-protoc")
    if (folder / "complete-protoc").exists():  # the files of google/protobuf are not in Maven's artifact
        include = Path(grpc_tools.protoc.__file__).with_name("_proto")
        write_program(folder / "protoc", f'"{folder}/complete-protoc" "$@" "-I{include}"')
    else:
        write_program(folder / "protoc", f'"{sys.executable}" -m grpc_tools.protoc "$@"')


def copy_program(source: Path, target: Path) -> None:
    """Copies a file that Maven has loaded, and makes it a program."""
    shutil.copy(source, target)
    target.chmod(0o755)


def write_program(path: Path, command: str) -> None:
    """Writes a program that becomes another one."""
    path.write_text(f"#!/bin/sh\nexec {command}\n")
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path) -> str:
    """A PATH with protoc, and with the plugins that this machine has."""
    make_tools(tmp_path / "tools")
    return os.pathsep.join([str(tmp_path / "tools"), str(BUILT / "go/bin"), os.environ["PATH"]])


@pytest.mark.parametrize("language", MADE)
def test_the_commands_generate_the_contract(language: str, tools: str, tmp_path: Path) -> None:
    """Messages and stubs are where the page says, and those of stored bytes are not among them."""
    said = commands(language)
    missing = [name for name in map("protoc-gen-{}".format, re.findall(r"--([a-z-]+)_out", said)) if lacks(name, tools)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    (tmp_path / "proto").symlink_to(REPOSITORY / "proto")
    (tmp_path / "gen").mkdir()
    run(["sh", "-eu", "-c", said], tmp_path, tools)
    made = files_below(tmp_path / "gen")
    assert MADE[language] <= made
    if language == "Go":
        assert '"example.com/agent/gen/stateward/v1"' in (tmp_path / "gen/stateward/agent/v1/agent.pb.go").read_text()


@pytest.mark.timeout(240)
def test_buf_generates_the_same(tools: str, tmp_path: Path) -> None:
    """`buf generate` makes the code of each language whose plugins are installed."""
    sys.path.insert(0, str(REPOSITORY / "proto"))
    try:
        from check_contract import find_buf

        buf = find_buf()
    except LookupError as reason:
        pytest.skip(str(reason))
    finally:
        sys.path.remove(str(REPOSITORY / "proto"))
    template = yaml.safe_load((REPOSITORY / "proto/buf.gen.yaml").read_text())
    plugins = {each.get("local") or f"protoc-gen-{each['protoc_builtin']}": each for each in template["plugins"]}
    template["plugins"] = [each for name, each in plugins.items() if not lacks(name, tools)]
    if len(template["plugins"]) < 2:
        pytest.skip("too few plugins are installed: make examples brings those of Go and Java")
    shutil.copytree(REPOSITORY / "proto", tmp_path / "proto")
    run([*buf, "generate", "--template", json.dumps(template)], tmp_path / "proto", tools)
    for folder in (tmp_path / "build/gen").iterdir():
        assert any("stateward" in name.lower() for name in files_below(folder)), folder
    assert not list((tmp_path / "build/gen").glob("go/google*"))


def lacks(plugin: str, tools: str) -> bool:
    """Whether a plugin is missing. Some languages need none, but a protoc that has them."""
    if plugin.removeprefix("protoc-gen-") in BUILT_IN:
        return shutil.which("complete-protoc", path=tools) is None
    return shutil.which(plugin, path=tools) is None


def run(command: list[str], folder: Path, tools: str) -> None:
    """Runs a command with these tools."""
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": tools}, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def files_below(folder: Path) -> set[str]:
    """The names of the generated files. None is of the packages that no user needs."""
    names = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert not [name for name in names if "storage" in name.lower() or "conformance" in name.lower()]
    return names


@pytest.mark.slow
def test_messages_compile_in_cpp(tmp_path: Path) -> None:
    """The messages of the contract and of errors are C++ that a compiler takes, with the headers of its protoc."""
    protoc, compiler = shutil.which("protoc"), shutil.which("g++")
    if protoc is None or compiler is None or not Path("/usr/include/google/protobuf/message.h").exists():
        pytest.skip("not installed: g++, protobuf-compiler and libprotobuf-dev")
    files = ["stateward/v1/checkpoint_service", "stateward/v1/writer_service", "google/rpc/error_details"]
    sources = [str(each.relative_to(REPOSITORY / "proto")) for each in (REPOSITORY / "proto").rglob("*.proto")]
    subprocess.run([protoc, f"-I{REPOSITORY / 'proto'}", f"--cpp_out={tmp_path}", *sources], check=True, timeout=60)
    for file in files:
        command = [compiler, "-std=c++17", "-fsyntax-only", f"-I{tmp_path}", str(tmp_path / f"{file}.pb.cc")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
