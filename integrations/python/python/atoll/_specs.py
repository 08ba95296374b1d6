"""Descriptions of models, and of their inputs and outputs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy

from ._tensors import dtype_of


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model."""

    name: str
    datatype: str
    """Type of its elements as in KServe: FP32, INT64, ..."""
    shape: tuple[int, ...]
    """Its sizes; -1 where they are open."""

    @property
    def dtype(self) -> numpy.dtype[Any]:
        """Type of its arrays."""
        return dtype_of(self.datatype)


@dataclass(frozen=True)
class Metadata:
    """The inputs and outputs of a model, in order."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class Model:
    """A model, or a function, that a daemon has."""

    name: str
    version: str
    state: str
    """READY, or another state of Triton's."""
    reason: str
    """Why it is not ready."""


def specs(tensors: Iterable[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
    """Inputs or outputs of a description."""
    return tuple(TensorSpec(each["name"], each["datatype"], tuple(each["shape"])) for each in tensors)
