"""`python -m atoll`, and the command `atoll`: runs the program."""

import os
import sys

from ._errors import AtollError
from ._program import program


def main() -> None:
    """Replaces this process by the program, with the same arguments."""
    try:
        path = program()
        os.execv(path, ["atoll", *sys.argv[1:]])
    except (AtollError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
