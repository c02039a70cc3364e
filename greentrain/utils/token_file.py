"""A token in a file that its owner alone can read."""

import os
import secrets
from pathlib import Path
from typing import Final

from greentrain.errors import ConfigError

SHORTEST: Final = 16
"""Characters of a token."""


def token_of(file: Path) -> str:
    """Return the token that a file holds; make the file, for its owner alone to read, where it is missing.

    Raises:
        ConfigError: It cannot be read or made, can be read by others, or holds no token.
    """
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as made:
            token = secrets.token_urlsafe(32)
            made.write(f"{token}\n")
            return token
    except FileExistsError:
        return kept_token(file)
    except OSError as error:
        raise ConfigError(f"the token file {file} cannot be made: {error.strerror}") from error


def kept_token(file: Path) -> str:
    """Return the token that a file holds.

    Raises:
        ConfigError: It cannot be read, can be read by others, or holds no token.
    """
    try:
        found = file.read_text(encoding="ascii").strip()
        shared = file.stat().st_mode & 0o077
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file {file} cannot be read as ASCII: {error}") from error
    if shared and os.name == "posix":  # elsewhere the mode says nothing
        raise ConfigError(f"the token file {file} can be read by others: chmod 600 {file}")
    check_token(found)
    return found


def check_token(token: str) -> None:
    """Check that a token is long enough and can stand in a header.

    Raises:
        ConfigError: It is not.
    """
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable():
        raise ConfigError(f"the token has {len(token)} characters: give at least {SHORTEST} printable ones of ASCII")
