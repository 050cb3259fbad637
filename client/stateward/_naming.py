"""Names for what frameworks name as they like: a text of any length and any characters becomes a name of Stateward.

A name of Stateward has 1 to 1,024 bytes of UTF-8 without control characters. A text that is such a name stays as it
is. Any other text becomes `~%` and the text, in which `%XX` is a byte of a character that a name cannot have. If that
is too long, it becomes `~#`, the SHA-256 of the text, and the beginning of the text for human readers. A text that
begins with `~%` or `~#` never stays as it is, so different texts have different names. Nor does a text that ends in
`@@` and a number, which is the name of an orphan.
"""

from __future__ import annotations

import re
from hashlib import sha256
from urllib.parse import unquote_to_bytes

NAME_BYTES_MAX = 1024
ORPHANS_NAME = re.compile(r".+@@[0-9]+(\.[0-9]+)?", re.DOTALL)
ESCAPED, HASHED = "~%", "~#"
# The beginning of the text in a name of the second kind, in characters; each has 12 bytes at most.
BEGIN_MAX = 32
_FORBIDDEN = "%\x00-\x1f\x7f-\x9f\ud800-\udfff"
_UNNAMED = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]|^~[%#]|^-?\Z|@@[0-9.]+\Z")


def name_for(text: str, bytes_max: int = NAME_BYTES_MAX) -> str:
    """Returns the name for a text, of at most `bytes_max` bytes, from 512 on. Different texts have different names."""
    if not _UNNAMED.search(text) and len(text.encode()) <= bytes_max:
        return text
    name = ESCAPED + escape(text, "@")
    if len(name.encode()) <= bytes_max:
        return name
    digest = sha256(text.encode(errors="surrogatepass")).hexdigest()
    begin = escape(text[:BEGIN_MAX], "@")
    return f"{HASHED}{digest} {begin}"


def is_orphans(name: str) -> bool:
    """Returns whether a name is that of an orphan. No adapter makes such a thread, and its lists leave it out."""
    return ORPHANS_NAME.fullmatch(name) is not None


def text_of(name: str) -> str | None:
    """Returns the text that a name stands for; None = the name has its digest only."""
    if name.startswith(HASHED):
        return None
    return unescape(name.removeprefix(ESCAPED)) if name.startswith(ESCAPED) else name


def escape(text: str, also: str = "") -> str:
    """Returns the text without the characters that a name cannot have, without `%`, and without those of `also`."""
    return re.sub(f"[{_FORBIDDEN}{re.escape(also)}]", _escape_one, text)


def unescape(text: str) -> str:
    """The reverse of `escape`."""
    return unquote_to_bytes(text.encode(errors="surrogatepass")).decode(errors="surrogatepass")


def _escape_one(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode(errors="surrogatepass"))
