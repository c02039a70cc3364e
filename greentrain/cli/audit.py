"""``greentrain audit``: hashes and totals of runs as a document, and the check of such a document.

Exit codes: 0 written or as audited, 1 something differs or cannot be read, 2 wrong usage or input.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from greentrain.cli import completion as complete
from greentrain.cli.console import progress
from greentrain.cli.exit_codes import input_checked
from greentrain.errors import ConfigError


def audit(
    root: Annotated[
        Path | None,
        typer.Argument(
            help="A run folder, or a folder of run folders.", show_default=False, autocompletion=complete.run_folders
        ),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Write audit.json into the folder, in place of printing.")] = (
        False
    ),
    check: Annotated[
        Path | None, typer.Option("--verify", help="Check this document against the files beside it, or in the folder.")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option(help="Secret of at least 16 bytes: sign by HMAC-SHA256, or check the signature.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --verify: print the findings as JSON.")] = False,
) -> None:
    """Hash the raw files of runs and derive their totals, as in: greentrain audit runs --write."""
    if check is None and root is None:
        raise typer.BadParameter("give a run folder or a folder of them, or --verify with an audit document")
    if (check is not None and write) or (check is None and as_json):
        raise typer.BadParameter("--write is for a new document and --json for --verify: leave one out")
    with input_checked(ConfigError):
        from greentrain.report.fleet.audit import read_key

        key = None if key_file is None else read_key(key_file)
        if check is not None:
            _verify(check, root or check.parent, key, as_json=as_json)
        elif root is not None:
            _audit(root, key, write=write)


def _audit(root: Path, key: bytes | None, *, write: bool) -> None:
    from greentrain.report.fleet.audit import AUDIT, audit, sign
    from greentrain.utils.files import write_atomic
    from greentrain.utils.quantities import energy

    path = root / AUDIT
    if write and path.exists():
        raise ConfigError(f"{path} exists; an audit is kept: check it with --verify {path}, or move it elsewhere first")
    with progress("reading runs", quiet=not write) as told:
        document = audit(root, told)
    if key is not None:
        document = sign(document, key)
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    if not write:
        typer.echo(text, nl=False)
        return
    write_atomic(path, text)
    files = sum(len(run["files"]) for run in document["runs"])
    signed = "signed" if key is not None else "not signed"
    counted = _counted(len(document["runs"]), files)
    typer.echo(f"{path}: {counted}, {energy(document['totals']['energy_j'])}, {signed}")


def _verify(path: Path, root: Path, key: bytes | None, *, as_json: bool) -> None:
    from greentrain.report.fleet.audit import read_document, verify
    from greentrain.report.fleet.report import shown

    document = read_document(path)
    with progress("checking runs", quiet=as_json) as told:
        verdict = verify(document, root, key=key, progress=told)
    word = "as audited" if verdict.ok else "differs"
    if as_json:
        findings = [{"kind": str(f.kind), "place": f.place, "text": f.text} for f in verdict.findings]
        answer: dict[str, Any] = {"ok": verdict.ok, "runs": verdict.runs, "files": verdict.files, "findings": findings}
        typer.echo(json.dumps(answer, indent=1, ensure_ascii=False))
    else:
        for finding in verdict.findings:
            typer.echo(f"{finding.kind}: {shown(finding.place)}: {shown(finding.text)}")
        signed = "" if key is None or not verdict.ok else ", signature valid"
        when = shown(str(document.get("created_utc")))
        typer.echo(f"{word}: {_counted(verdict.runs, verdict.files)}, audited {when}{signed}")
    if not verdict.ok:
        raise typer.Exit(1)


def _counted(runs: int, files: int) -> str:
    return f"{runs} run{'s' * (runs != 1)}, {files} file{'s' * (files != 1)}"
