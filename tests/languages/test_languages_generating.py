"""The danger: a command of proto/README.md that generates nothing, or code that does not compile."""

from __future__ import annotations

import hashlib
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
from tests.languages import script
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
    plugins = BUILT.parent / "plugins"  # of `make plugins`
    folders = [tmp_path / "tools", BUILT / "go/bin", plugins / "npm/node_modules/.bin", plugins / "cargo/bin"]
    return os.pathsep.join([*map(str, folders), os.environ["PATH"]])


@pytest.mark.parametrize("language", MADE)
def test_the_commands_generate_the_contract(language: str, tools: str, tmp_path: Path) -> None:
    """Messages and stubs are where the page says, and those of stored bytes are not among them."""
    said = commands(language)
    missing = [name for name in map("protoc-gen-{}".format, re.findall(r"--([a-z-]+)_out", said)) if lacks(name, tools)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; make plugins or make examples brings it")
    (tmp_path / "proto").symlink_to(REPOSITORY / "proto")
    (tmp_path / "gen").mkdir()
    run(["sh", "-eu", "-c", said], tmp_path, tools)
    made = files_below(tmp_path / "gen")
    assert MADE[language] <= made
    if language == "Go":
        assert '"example.com/agent/gen/stateward/v1"' in (tmp_path / "gen/stateward/agent/v1/agent.pb.go").read_text()
    if language == "Rust":
        assert "::tonic_types::pb::Status" in (tmp_path / "gen/stateward/v1/stateward.v1.rs").read_text()


def test_no_class_hides_one_of_java() -> None:
    """A program may import the messages, java.util and java.lang as a whole, as the page says."""
    jimage = shutil.which("jimage")
    if jimage is None:
        pytest.skip("a JDK is not installed")
    modules = Path(jimage).resolve().parents[1] / "lib/modules"
    chosen = "regex:/java.base/java/(lang|util)/[^/]*"
    listed = subprocess.check_output([jimage, "list", "--include", chosen, modules], text=True)
    own = set(re.findall(r"/(\w+)\.class$", listed, re.MULTILINE))
    assert {"Thread", "Record", "Map"} <= own
    contract = "".join(file.read_text() for file in (REPOSITORY / "proto/stateward/v1").glob("*.proto"))
    assert not own & set(re.findall(r"^(?:message|enum) (\w+)", contract, re.MULTILINE))


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


NEEDED = {
    "g++": "/usr/bin/g++",
    "protobuf-compiler": "/usr/bin/protoc",
    "protobuf-compiler-grpc": "/usr/bin/grpc_cpp_plugin",
    "libgrpc++-dev": "/usr/include/grpcpp/grpcpp.h",
}
"""Debian's packages for C++, and a file of each."""
CPP_LIBRARIES = ["-Wl,--copy-dt-needed-entries", "-lgrpc++", "-lgrpc", "-lgpr", "-lprotobuf"]


def needed_files(*names: str) -> list[str]:
    """Files of the contract and all that they import, each once. protobuf's own are in its library."""
    found: dict[str, None] = {}
    for name in names:
        text = (REPOSITORY / f"proto/{name}.proto").read_text()
        imported = re.findall(r'^import "((?!google/protobuf/).*)\.proto";', text, re.MULTILINE)
        found |= dict.fromkeys([*needed_files(*imported), name])
    return list(found)


CPP_FILES = needed_files("google/rpc/status", "google/rpc/error_details", "stateward/v1/checkpoint_service")


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_a_client_in_cpp(tmp_path: Path) -> None:
    """A client of the stubs for C++, as the page makes them, saves, reads the reason of a conflict, and hydrates."""
    if missing := [package for package, file in NEEDED.items() if not Path(file).exists()]:
        pytest.skip(f"Debian's packages are not installed: {', '.join(missing)}")
    # The generated files become one source, which compiles in a fraction of the time. Two names in them clash.
    source = "".join(
        f"#define schemas schemas{number}\n#define file_default_instances instances{number}\n"
        f'#include "{file}.pb.cc"\n#undef schemas\n#undef file_default_instances\n'
        for number, file in enumerate(CPP_FILES)
    )
    source += '#include "stateward/v1/checkpoint_service.grpc.pb.cc"\n'
    source += (REPOSITORY / "tests/languages/cpp_client.cc").read_text()
    (tmp_path / "proto").symlink_to(REPOSITORY / "proto")
    (tmp_path / "gen").mkdir()
    plugin = "--grpc_out=gen --plugin=protoc-gen-grpc=$(command -v grpc_cpp_plugin)"
    assert plugin in (REPOSITORY / "proto/README.md").read_text()
    said = commands("C++").replace("--cpp_out=gen", f"--cpp_out=gen {plugin}")
    run(["sh", "-eu", "-c", said], tmp_path, "/usr/bin:/bin")
    client = compiled(tmp_path / "gen", source)
    with script.run_daemon() as daemon:
        lines = subprocess.check_output([client, daemon.target], text=True, timeout=30).splitlines()
    assert lines == ["saved version 1", "refused VERSION_MISMATCH", "hydrated a room in Paris"]


def compiled(folder: Path, source: str) -> Path:
    """Compiles a source beside the generated files. What was compiled of the same bytes before is taken again."""
    command = ["g++", "-std=c++17", "-O0", "-I.", "client.cc", "-o", "client", *CPP_LIBRARIES]
    told = str(folder)  # which is another one each time
    if shutil.which("dpkg-query"):
        told = subprocess.check_output(["dpkg-query", "--show", *NEEDED], text=True)  # compiler and libraries
    (folder / "client.cc").write_text(source)
    digest = hashlib.sha256(f"{command}\n{told}".encode())
    for file in sorted(each for each in folder.rglob("*") if each.is_file()):
        digest.update(f"{file.relative_to(folder)} {file.stat().st_size}\n".encode() + file.read_bytes())
    client = BUILT / "cpp" / digest.hexdigest()[:16] / "client"
    if not client.exists():
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-6000:]
        shutil.rmtree(BUILT / "cpp", ignore_errors=True)
        client.parent.mkdir(parents=True)
        shutil.copy(folder / "client", client.with_name("unfinished"))
        client.with_name("unfinished").rename(client)
    return client
