"""Checks of shared-memory regions through tritonclient, for system and CUDA memory."""

from tritonclient.utils import InferenceServerException


def count(status):
    """The number of regions; a list over HTTP, a message over gRPC."""
    return len(status) if isinstance(status, list) else len(status.regions)


def refused(words, call):
    try:
        call()
    except InferenceServerException as error:
        for word in words:
            assert word.lower() in error.message().lower(), f"{error.message()!r} does not say {word!r}"
        return
    raise AssertionError("nothing was refused")
