"""`python -m macnet`, for launchers that take a module; otherwise the command `macnet`."""

import sys

from macnet.cli import main

if __name__ == "__main__":
    sys.exit(main())
