"""``python -m spiritlevel``."""

import sys

from spiritlevel.cli import main

sys.exit(main())
