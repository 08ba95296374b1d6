"""What a `with` statement closes."""

from abc import ABC, abstractmethod
from typing import Self


class Scope(ABC):
    """An object that a `with` statement closes at its end."""

    @abstractmethod
    def _leave(self) -> None:
        """Closes the object."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
