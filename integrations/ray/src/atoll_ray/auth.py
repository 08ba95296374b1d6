"""The token of a Ray cluster, without which Ray takes commands from every program that can connect to it.

Ray reads the token from ``RAY_AUTH_TOKEN``, from the file that ``RAY_AUTH_TOKEN_PATH`` names, or from
``~/.ray/auth_token``, and uses it if ``RAY_AUTH_MODE`` is ``token``. Here the mode is ``token`` unless the user selects
another one.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

MODE_VARIABLE = "RAY_AUTH_MODE"
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"
PATH_VARIABLE = "RAY_AUTH_TOKEN_PATH"

#: Bytes of a new token, before they are written as hexadecimal digits.
TOKEN_BYTES = 32


def prepare(environment: Mapping[str, str], is_head: bool) -> tuple[dict[str, str], str | None]:
    """The variables that select authentication for ``ray start``, and a message for the user.

    A head without a token gets a new one. Raises ``ValueError`` if another node has none, or if other users of this
    machine may read the file of the token.
    """
    # Ray ignores the case, too.
    mode = (environment.get(MODE_VARIABLE) or "token").lower()
    if mode != "token":
        return {MODE_VARIABLE: mode}, None
    if environment.get(TOKEN_VARIABLE):
        return {MODE_VARIABLE: mode}, None
    path = Path(environment.get(PATH_VARIABLE) or Path.home() / ".ray" / "auth_token")
    message = None
    if not path.exists():
        if not is_head:
            raise ValueError(
                f"there is no token of the cluster: copy {path} from its head, or set {TOKEN_VARIABLE}; "
                f"{MODE_VARIABLE}=disabled joins a cluster that needs none"
            )
        _write(path)
        message = f"a new token of the cluster is in {path}: copy it to the other machines, and to those of clients"
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ValueError(f"other users may read the token of the cluster: run `chmod 600 {path}`")
    if not path.read_text().strip():
        raise ValueError(f"the token of the cluster is empty: {path}")
    return {MODE_VARIABLE: mode}, message


def _write(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Only this user can read it from its first byte on.
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(secrets.token_hex(TOKEN_BYTES))
