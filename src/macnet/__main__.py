"""`python -m macnet`, for launchers that take a module; otherwise the command `macnet`."""

import sys

from macnet.cli import main

sys.exit(main())
