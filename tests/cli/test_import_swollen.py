"""The danger: a small file takes all memory of the machine that imports it."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stateward.cli.files import recordings

MEMBER_BYTES = 16 << 20
# The command's own start takes about 100 MB.
RSS_BYTES_MAX = 900 << 20
RUN = """
import sys
from stateward.cli.files.recordings import examine
from stateward.cli.show.output import CommandError
from pathlib import Path
try:
    examine(Path(sys.argv[1]), None)
except CommandError as error:
    print(error)
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])  # rusage counts the parent, too
"""


@pytest.mark.parametrize("content", [b" ", b"[0,", b"\x00"], ids=["spaces", "numbers", "zeros"])
def test_a_line_has_a_bound(tmp_path: Path, content: bytes) -> None:
    """A line of 1.2 GB in a file of about a megabyte is refused by its number, after a quarter of a gigabyte."""
    path = tmp_path / "runs.jsonl.gz"
    member = gzip.compress(content * (MEMBER_BYTES // len(content)))
    path.write_bytes(gzip.compress(b'{"run_id":"r","messages":[]}\n') + member * ((1200 << 20) // MEMBER_BYTES))
    assert path.stat().st_size < 4 << 20
    command = [sys.executable, "-c", RUN, path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    said, rss_kib = done.stdout.splitlines()
    assert said == f"{path} line 2 is longer than 268,435,456 bytes; no run and no version needs as many"
    assert int(rss_kib) << 10 < RSS_BYTES_MAX


def test_the_command_says_which_line(
    stateward: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line of error, and nothing is imported."""
    monkeypatch.setattr(recordings, "LINE_BYTES_MAX", 1000)
    path = tmp_path / "runs.jsonl"
    path.write_text('{"run_id":"r","messages":[]}\n' + f'{{"run_id":"s","messages":["{"x" * 1000}"]}}\n')
    answer = stateward("import", path)
    assert answer.code == 1
    assert "line 2 is longer than 1,000 bytes" in answer.error
    assert stateward("threads", "--json").json == []
