"""``python -m spiritlevel``."""

import os
import sys

from spiritlevel.cli import main
from spiritlevel.core.launched import launched

code = main()
if launched() > 1:  # a thread of gloo that still runs when the interpreter is taken down would abort the process
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
sys.exit(code)
