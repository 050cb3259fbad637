"""Generates the Python stubs in client/ from the .proto files beside this script.

    python proto/generate.py           writes the stubs, and removes files that no longer have a source
    python proto/generate.py --check   names the files that are stale, missing or extra, and exits 1 if there are any

The stubs are committed. They are made with one pinned tool, the oldest that the project supports: its stubs run on
every newer runtime, but stubs of the newest tool run on the newest runtime only.
"""

import argparse
import importlib.metadata
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROTO = Path(__file__).resolve().parent
CLIENT = PROTO.parent / "client"
TOOL_VERSION = "1.76.0"

# Every folder that holds generated files and nothing else, with the docstring of its package.
PACKAGES = {
    "stateward/v1": "Generated messages and stubs of the contract, `proto/stateward/v1`.",
    "stateward/agent/v1": "Generated messages of what an agent knows, `proto/stateward/agent/v1`.",
    "stateward/conformance/v1": "Generated messages of the golden exchanges, `proto/stateward/conformance/v1`.",
    "stateward/storage": "Messages at rest: for the daemon only, and no part of the client's interface.",
    "stateward/storage/v1": "Generated messages at rest, `proto/stateward/storage/v1`. For the daemon only.",
}


def main() -> int:
    """Runs the command. Returns its exit code."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--check", action="store_true", help="compare with the files on disk and write nothing")
    check = arguments.parse_args().check
    found = importlib.metadata.version("grpcio-tools")
    if found != TOOL_VERSION:
        print(f"proto: grpcio-tools is {found}, but the stubs need {TOOL_VERSION}; install it (see proto/README.md)")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        generate_stubs(Path(folder))
        wanted = read_stubs(Path(folder))
    present = read_stubs(CLIENT)
    if check:
        return report_differences(wanted, present)
    write_stubs(wanted, present)
    return 0


def generate_stubs(target: Path) -> None:
    """Runs protoc on every .proto file and writes the `__init__.py` files, all below `target`."""
    files = sorted(PROTO.glob("stateward/**/*.proto"))
    if strays := {str(file.parent.relative_to(PROTO)) for file in files} - PACKAGES.keys():
        sys.exit(f"proto: {', '.join(sorted(strays))}: not in PACKAGES of proto/generate.py")
    services = [file for file in files if re.search(r"^service \w+", file.read_text(), re.MULTILINE)]
    run_protoc(files, f"--python_out={target}", f"--pyi_out={target}")
    run_protoc(services, f"--grpc_python_out={target}")
    for package, docstring in PACKAGES.items():
        (target / package).mkdir(parents=True, exist_ok=True)
        (target / package / "__init__.py").write_text(f'"""{docstring}"""\n')


def run_protoc(files: list[Path], *outputs: str) -> None:
    """Runs the pinned protoc with the output options. Exits with protoc's exit code if it fails."""
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", *outputs, *map(str, files)]
    if code := subprocess.run(command, check=False).returncode:
        sys.exit(code)


def read_stubs(root: Path) -> dict[Path, bytes]:
    """Reads the files of the generated packages below `root`: path relative to `root` → content."""
    files = (file for package in PACKAGES for file in (root / package).glob("*") if file.is_file())
    return {file.relative_to(root): file.read_bytes() for file in files}


def report_differences(wanted: dict[Path, bytes], present: dict[Path, bytes]) -> int:
    """Prints one line for each file that differs from the generated one. Returns 1 if there are any, else 0."""
    differences = {
        **dict.fromkeys(wanted.keys() - present.keys(), "missing"),
        **dict.fromkeys(present.keys() - wanted.keys(), "extra"),
        **{file: "stale" for file in wanted.keys() & present.keys() if wanted[file] != present[file]},
    }
    for file, difference in sorted(differences.items()):
        print(f"proto: {difference}: client/{file}")
    if differences:
        print("proto: run `make proto`")
        return 1
    print("proto: fresh")
    return 0


def write_stubs(wanted: dict[Path, bytes], present: dict[Path, bytes]) -> None:
    """Writes the stubs that differ to client/, and removes files that no longer have a source."""
    for file in present.keys() - wanted.keys():
        (CLIENT / file).unlink()
    changed = [file for file in wanted if wanted[file] != present.get(file)]
    for file in changed:
        (CLIENT / file).parent.mkdir(parents=True, exist_ok=True)
        (CLIENT / file).write_bytes(wanted[file])
    print(f"proto: {len(wanted)} files, {len(changed)} of them written")


if __name__ == "__main__":
    sys.exit(main())
