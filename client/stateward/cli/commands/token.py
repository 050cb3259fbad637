"""`stateward token`: tokens in the daemon's file of principals (`stateward-sidecar --access`). Needs no daemon.

The file gets the digest of each token, and keeps its comments and order. It is written beside and renamed, so that the
daemon never reads a half of it.
"""

# ruff: noqa: PLC0415  tomlkit is loaded by these commands only

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateward.cli.files.files import sync_directory
from stateward.cli.options.catalog import CONTEXT
from stateward.cli.options.connect import JsonOption
from stateward.cli.show.output import CommandError, note, print_json, print_table

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

TOKEN_BYTES, SHOWN_DIGITS, MODE = 32, 12, 0o600
VERBS = ("read", "write", "signal", "delete", "admin")
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The file that --access names.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The principal.")]

token = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)


@token.callback(invoke_without_command=True)
def about(context: typer.Context) -> None:
    """Make, list and revoke tokens in the daemon's file of principals.

    \b
    Examples:
      stateward token new access.toml me --grant 'read,write */*' > me.token
      stateward token list access.toml
      stateward token revoke access.toml me
      stateward-sidecar --access access.toml
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if context.invoked_subcommand is None:
        print(context.get_help())


@token.command(short_help="Make a token for a principal, and print it.")
def new(
    file: FileArgument,
    name: NameArgument,
    grants: Annotated[
        list[str] | None,
        typer.Option("--grant", metavar="GRANT", help="What a new principal may do, such as 'read,write team/*'."),
    ] = None,
    socket: Annotated[
        str, typer.Option(metavar="URL", help="Give it a socket of its own, unix:///path, in place of a token.")
    ] = "",
) -> None:
    """Make a token for a principal, and print it. The file gets its digest; nobody can read the token out of it.

    A principal that is not in the file is added, with what --grant says. One that is there keeps its other tokens, so
    that a client can change from one to the next. The daemon takes the token about a second later.

    With --socket no token is made: the daemon opens the socket, and whoever comes through it is the principal. The
    socket is for the daemon's user and the group of its directory.

    \b
    Examples:
      stateward token new access.toml me --grant 'read,write */*' > me.token
      stateward token new access.toml me > me.token.next
      stateward token new access.toml agent --grant 'read,write team/*' --socket unix:///run/stateward/agent/s.sock
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    import tomlkit

    told = _read(file)
    principal = _find(told, name)
    if principal is None:
        if not grants:
            raise CommandError(f"{file} has no principal {name!r} yet; say with --grant what it may do")
        principal = tomlkit.table()
        principal.update({"name": name, "socket" if socket else "token_sha256": []})
        principal["grants"] = [_checked(each) for each in grants]
        told.setdefault("principal", tomlkit.aot()).append(principal)
    elif grants:
        raise CommandError(f"{name!r} is in {file} already; change its grants there, and leave --grant out")
    if socket:
        _add_socket(file, told, principal, socket)
        return
    made = secrets.token_hex(TOKEN_BYTES)
    principal["token_sha256"] = [*_digests(principal), hashlib.sha256(made.encode()).hexdigest()]
    _write(file, told)
    print(made)
    note(f"{file} has the digest of a new token of {name}; give the token to its client in a file, and keep no copy")


def _add_socket(file: Path, told: TOMLDocument, principal: Any, url: str) -> None:
    path = Path(url.removeprefix("unix://"))
    if not url.startswith("unix:///") or ".." in path.parts or not path.name:
        raise CommandError(f"{url!r} is no address of a socket; give unix:///path, without ..")
    for each in told["principal"]:
        if str(path) in [str(Path(other.removeprefix("unix://"))) for other in _sockets(each)]:
            raise CommandError(f"{url} is the socket of {each.get('name')} already; give another one")
    principal["socket"] = [*_sockets(principal), f"unix://{path}"]
    _write(file, told)
    note(f"whoever comes through unix://{path} is {principal['name']}; a running daemon opens it within two seconds")


@token.command("list", short_help="List the principals, their tokens and grants.")
def list_(file: FileArgument, as_json: JsonOption = False) -> None:
    """List the principals, what they are known by (of tokens the beginnings of digests), and what they may do.

    \b
    Examples:
      stateward token list access.toml
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if not file.exists():
        raise CommandError(f"cannot read {file}: no such file")
    found = _read(file).unwrap().get("principal", [])
    if as_json:
        print_json(found)
        return
    rows = [
        [
            str(each.get("name", "")),
            ", ".join([digest[:SHOWN_DIGITS] for digest in _digests(each)] + _users(each)),
            "; ".join(each.get("grants", [])),
        ]
        for each in found
    ]
    if rows:
        print_table(["PRINCIPAL", "KNOWN BY", "GRANTS"], rows, below=["GRANTS"])
    else:
        note(f"{file} has no principals: a daemon with it admits nobody")


@token.command(short_help="Take tokens of a principal away.")
def revoke(
    file: FileArgument,
    name: NameArgument,
    digest: Annotated[
        str, typer.Option(metavar="DIGEST", help="Only the token whose digest begins so, as list shows it.")
    ] = "",
) -> None:
    """Take the tokens of a principal away, or one of them. Streams that it has open end within two seconds.

    A principal without any identity left goes out of the file.

    \b
    Examples:
      stateward token revoke access.toml booking
      stateward token revoke access.toml booking --digest 2bb80d537b1d
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    told = _read(file)
    principal = _find(told, name)
    if principal is None:
        raise CommandError(f"{file} has no principal {name!r}")
    before = _digests(principal)
    kept = [each for each in before if digest and not each.startswith(digest)]
    if len(kept) == len(before):
        what = f" with a digest that begins with {digest}" if digest else ""
        others = "" if digest else ", ".join(_users(principal))
        other = f"; it is known by {others}: take that out of the file to end it" if others else ""
        raise CommandError(f"{name!r} has no token{what} in {file}{other}")
    if kept:
        principal["token_sha256"] = kept
    elif _users(principal):
        del principal["token_sha256"]
    else:
        told["principal"].remove(principal)
        if not told["principal"]:
            del told["principal"]
    _write(file, told)
    note(f"{len(before) - len(kept)} of {len(before)} tokens of {name} are revoked")
    if users := _users(principal):
        note(f"{name} may still call without a token, known by: {', '.join(users)}. Take that out of {file} to end it")


def _read(file: Path) -> TOMLDocument:
    try:
        import tomlkit
        from tomlkit.exceptions import ParseError
    except ImportError:
        raise CommandError("the package tomlkit is not installed; it comes with the extra cli") from None
    try:
        return tomlkit.parse(file.read_text())
    except FileNotFoundError:
        return tomlkit.document()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {file}: {error}") from None
    except ParseError as error:
        raise CommandError(f"{file} is not TOML: {error}") from None


def _find(told: TOMLDocument, name: str) -> Any:
    found: Any = told.get("principal", [])
    return next((each for each in found if each.get("name") == name), None)


def _digests(principal: Any) -> list[str]:
    given = principal.get("token_sha256", [])
    return [str(given)] if isinstance(given, str) else [str(each) for each in given]


def _users(principal: Any) -> list[str]:
    found = [f"{key} {principal[key]}" for key in ("uid", "gid") if key in principal]
    return found + _sockets(principal) + [key for key in ("jwt", "tls") if key in principal]


def _sockets(principal: Any) -> list[str]:
    given = principal.get("socket", [])
    return [str(given)] if isinstance(given, str) else [str(each) for each in given]


def _checked(grant: str) -> str:
    verbs, _, pattern = grant.strip().partition(" ")
    if set(verbs.split(",")) - set(VERBS) or "/" not in pattern.strip():
        raise CommandError(
            f"{grant!r} is no grant; give verbs ({', '.join(VERBS)}) and a pattern: 'read,write default/booking-*'"
        )
    return grant.strip()


def _write(file: Path, told: TOMLDocument) -> None:
    """Replaces the file, also behind a link, and keeps its owner and mode: the daemon must be able to read it. Durable
    when it returns: a power cut brings no revoked token back."""
    import tomlkit

    file = Path(os.path.realpath(file))
    part = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        before = file.stat() if file.exists() else None
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
        with os.fdopen(descriptor, "w") as opened:
            opened.write(tomlkit.dumps(told))
            opened.flush()
            if before is not None and (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(descriptor, before.st_uid, before.st_gid)
            os.fchmod(descriptor, MODE if before is None else before.st_mode & 0o777)
            os.fsync(descriptor)
        part.replace(file)
        sync_directory(file.parent)
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
