"""Connections and rings of the Rust client."""

import os
from collections.abc import Sequence

from typing_extensions import Buffer

_Given = tuple[str, str, list[int], Buffer]
_Output = tuple[str, str, list[int], Elements]

class Elements(Buffer):
    def __len__(self) -> int: ...

class Connection:
    def __init__(self, socket: str | os.PathLike[str] | None = None, tenant: str | None = None) -> None: ...
    def tenant(self) -> str: ...
    def close(self) -> None: ...
    def invoke(
        self,
        function: str,
        inputs: Sequence[_Given],
        outputs: Sequence[str] | None = None,
        real_time: bool | None = None,
        deadline_us: int | None = None,
        instance: str | None = None,
    ) -> list[_Output]: ...
    def deploy(
        self,
        bundle: str | os.PathLike[str],
        name: str | None = None,
        real_time: bool | None = None,
        private: bool = False,
        device: str | None = None,
    ) -> str: ...
    def functions(self) -> str: ...
    def describe(self, function: str) -> str: ...
    def remove(self, function: str) -> None: ...

class Ring:
    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        tenant: str | None = None,
        slots: int = 0,
        arena_bytes: int = 0,
        spin_us: int = 50,
        daemon_spin_us: int = 50,
    ) -> None: ...
    def tenant(self) -> str: ...
    def request_bytes(self) -> int: ...
    def send(
        self,
        model: str,
        inputs: Sequence[_Given],
        outputs: Sequence[str],
        version: str = "",
        id: str = "",
        parameters: str | None = None,
    ) -> int: ...
    def receive(self, slot: int) -> list[_Output]: ...
    def ping(self) -> None: ...
    def close(self) -> None: ...
