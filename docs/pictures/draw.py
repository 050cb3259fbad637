"""Draws the pictures of the pages into this folder.

    python docs/pictures/draw.py           writes the files
    python docs/pictures/draw.py --check   names those that are stale, and exits 1 if there are any
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from canvas import Picture

FOLDER = Path(__file__).resolve().parent
DRAWN: dict[str, Callable[[], Picture]] = {}


def drawn(make: Callable[[], Picture]) -> Callable[[], Picture]:
    """Registers a drawing under the name of its function."""
    DRAWN[make.__name__] = make
    return make


@drawn
def architecture() -> Picture:
    told = "Agents call the sidecar of their machine, which keeps state in LMDB and ships it to object storage"
    picture = Picture(told, 330, 460)
    picture.text(20, 28, "machine A", kind="ink", size=13)
    picture.box(20, 40, 200, 46, "your agents", "any language or framework")
    picture.arrow((120, 88), (120, 122), both=True)
    picture.text(130, 110, "gRPC on a socket")
    picture.box(20, 126, 200, 46, "stateward-sidecar", "one daemon a machine", kind="ours")
    picture.arrow((120, 174), (120, 208), both=True)
    picture.text(130, 196, "synced first")
    picture.store(20, 210, 200, 52, "LMDB on this disk", "diffs, compressed, encrypted")
    picture.text(300, 28, "machine B", kind="ink", size=13)
    picture.box(300, 40, 140, 46, "your agents", "the same threads")
    picture.arrow((370, 88), (370, 122), both=True)
    picture.box(300, 126, 140, 46, "stateward-sidecar", "another one", kind="ours")
    picture.store(250, 258, 190, 54, "object storage", "S3, GCS, Azure, a directory")
    picture.arrow((220, 150), (270, 150), (270, 256))
    picture.text(276, 222, "in about 1 s")
    picture.arrow((390, 256), (390, 174), both=True)
    picture.text(20, 290, "machine A may be lost:")
    picture.text(20, 306, "B takes its threads over")
    return picture


@drawn
def thread() -> Picture:
    picture = Picture("A thread holds the state of one run: slots and logs", 148)
    picture.box(16, 50, 104, 48, "one run", "of an agent")
    picture.arrow((122, 74), (162, 74), both=True)
    picture.box(166, 16, 238, 116, kind="ours")
    picture.text(180, 36, "thread booking-42", kind="ink", size=13)
    picture.box(180, 48, 210, 32, "slot goal = Paris")
    picture.box(180, 88, 210, 32, "log messages: 1, 2, 3, …")
    return picture


@drawn
def version() -> Picture:
    picture = Picture("Each save makes a version; a tag names one; the newest is the head", 116)
    for place in range(4):
        picture.version(50 + 100 * place, 56, str(place + 1), kind="ours" if place == 3 else "box")
        if place:
            picture.arrow((65 + 100 * (place - 1), 56), (34 + 100 * place, 56))
    for place, label in enumerate(("save", "save", "save")):
        picture.text(100 + 100 * place, 46, label, anchor="middle")
    picture.text(350, 94, "head", kind="ink", anchor="middle")
    picture.text(150, 94, "tag “good”", kind="ink", anchor="middle")
    picture.text(50, 94, "readable", anchor="middle")
    picture.text(250, 94, "readable", anchor="middle")
    return picture


@drawn
def branch() -> Picture:
    picture = Picture("A branch begins at an old version and has a head of its own", 130)
    for place, number in enumerate(("1", "2", "3")):
        picture.version(50 + 90 * place, 40, number, kind="ours" if number == "3" else "box")
        if place:
            picture.arrow((65 + 90 * (place - 1), 40), (34 + 90 * place, 40))
    picture.version(230, 96, "4")
    picture.version(320, 96, "5", kind="ours")
    picture.arrow((150, 51), (214, 92))
    picture.arrow((245, 96), (304, 96))
    picture.text(254, 44, "branch “main”", kind="ink")
    picture.text(342, 100, "“cheap”", kind="ink")
    picture.text(40, 104, "what if, from version 2?")
    return picture


@drawn
def diff() -> Picture:
    picture = Picture("Of a large state only the change is sent and stored", 124)
    picture.box(16, 28, 172, 30, "state, 1 MB", kind="box")
    picture.box(190, 28, 26, 30, kind="ours")
    picture.text(16, 82, "the state after a step;")
    picture.text(16, 98, "the new part is 2 KB")
    picture.arrow((218, 43), (284, 43))
    picture.text(250, 34, "2 KB", kind="good", anchor="middle")
    picture.store(288, 20, 116, 50, "stored", "as an edit")
    picture.text(282, 90, "each version can be")
    picture.text(282, 106, "read as a whole")
    return picture


@drawn
def digest() -> Picture:
    picture = Picture("Of two writers that build on the same version, one wins, and the other is told", 150)
    picture.box(16, 16, 120, 46, "writer A", "knows 3 · a1b2")
    picture.box(16, 88, 120, 46, "writer B", "knows 3 · a1b2")
    picture.version(208, 75, "3")
    picture.text(208, 108, "a1b2", anchor="middle")
    picture.version(296, 75, "4", kind="ours")
    picture.text(334, 84, "77f0", anchor="middle")
    picture.arrow((223, 75), (280, 75))
    picture.arrow((138, 39), (296, 39), (296, 58))
    picture.text(304, 44, "first: saved", kind="good")
    picture.arrow((138, 124), (262, 124), (282, 94), dashed=True)
    picture.text(270, 132, "VersionMismatch", kind="bad")
    return picture


@drawn
def durability() -> Picture:
    picture = Picture("A save is answered when this disk has it, or when the bucket has it", 150)
    picture.box(16, 30, 84, 44, "agent", "saves")
    picture.arrow((102, 52), (146, 52))
    picture.store(150, 24, 104, 56, "this disk", "synced")
    picture.arrow((256, 52), (296, 52))
    picture.store(300, 24, 104, 56, "bucket", "archived")
    picture.text(202, 100, "“committed”", kind="ink", anchor="middle")
    picture.text(202, 118, "survives crashes", anchor="middle")
    picture.text(202, 134, "about 1 ms", anchor="middle")
    picture.text(352, 100, "“archived”", kind="ink", anchor="middle")
    picture.text(352, 118, "survives its loss", anchor="middle")
    picture.text(352, 134, "a bucket write", anchor="middle")
    return picture


@drawn
def effect() -> Picture:
    picture = Picture("A call is claimed, made and recorded; after a crash the next agent learns of the claim", 174)
    picture.box(16, 18, 92, 34, "claim", kind="ours")
    picture.arrow((110, 35), (142, 35))
    picture.box(146, 18, 104, 34, "call the tool")
    picture.arrow((252, 35), (284, 35))
    picture.box(288, 18, 116, 34, "record result", kind="ours")
    picture.arrow((198, 54), (198, 76))
    picture.cross(198, 88)
    picture.text(212, 92, "killed here", kind="bad")
    picture.arrow((198, 100), (198, 112))
    picture.box(16, 114, 388, 46, "the next agent learns: it may have happened", "it asks the tool, and pays once")
    return picture


@drawn
def question() -> Picture:
    picture = Picture("An agent asks and ends; a person answers; the agent starts again and finds the answer", 142)
    picture.box(16, 20, 96, 46, "agent asks", "and ends", kind="ours")
    picture.arrow((114, 43), (146, 43))
    picture.box(150, 20, 100, 46, "thread waits", "no process")
    picture.arrow((252, 43), (292, 43))
    picture.box(296, 20, 110, 46, "agent again", "has the answer", kind="ours")
    picture.box(150, 94, 100, 34, "a person")
    picture.arrow((200, 92), (200, 68))
    picture.text(208, 84, "approve")
    picture.text(260, 115, "days later, anywhere")
    return picture


@drawn
def lease() -> Picture:
    picture = Picture("A lease has a token that only grows, so the writer that was replaced is refused", 146)
    picture.box(16, 18, 142, 36, "A holds token 7", kind="ours")
    picture.box(158, 18, 110, 36, "A stands still", kind="gone")
    picture.arrow((222, 56), (222, 74))
    picture.box(222, 76, 182, 36, "B holds token 8", kind="ours")
    picture.arrow((268, 40), (330, 40), (330, 74), dashed=True)
    picture.cross(330, 62)
    picture.text(276, 30, "A saves late: LeaseHeld", kind="bad", size=11)
    picture.text(16, 134, "time →")
    return picture


@drawn
def archive() -> Picture:
    picture = Picture("Machine A is lost; machine B takes the thread over from the bucket, and A is fenced", 196)
    picture.box(16, 22, 112, 46, "machine A", "wrote 1 to 7", kind="gone")
    picture.cross(118, 28)
    picture.arrow((130, 45), (162, 45))
    picture.store(164, 18, 102, 56, "bucket", "has 1 to 6")
    picture.arrow((296, 45), (266, 45), both=True)
    picture.box(300, 22, 104, 46, "machine B", "takes over", kind="ours")
    for place, number in enumerate(("5", "6", "7", "8")):
        picture.version(34 + 60 * place, 112, number, kind="ours" if place > 1 else "box")
        if place:
            picture.arrow((49 + 60 * (place - 1), 112), (18 + 60 * place, 112))
    picture.text(236, 116, "B goes on from 6")
    picture.version(154, 160, "7", kind="gone")
    picture.arrow((104, 123), (140, 152), dashed=True)
    picture.text(180, 158, "A's own 7, if A comes back:")
    picture.text(180, 174, "kept apart, never lost")
    return picture


def main() -> int:
    """Writes the pictures, or compares them."""
    stale = []
    for name, make in DRAWN.items():
        path, text = FOLDER / f"{name}.svg", make().svg()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
            if "--check" not in sys.argv[1:]:
                path.write_text(text, encoding="utf-8")
    extra = [path.name for path in FOLDER.glob("*.svg") if path.stem not in DRAWN]
    for name in [*stale, *extra]:
        print(f"stale: docs/pictures/{name}" if "--check" in sys.argv[1:] else name)
    return 1 if "--check" in sys.argv[1:] and [*stale, *extra] else 0


if __name__ == "__main__":
    sys.exit(main())
