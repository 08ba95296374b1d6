"""``python -m atoll_ray`` is the command ``atoll-ray``."""

import sys

from .node import main

sys.exit(main())
