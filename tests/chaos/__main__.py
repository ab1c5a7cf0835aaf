"""`python tests/chaos`: puts the package on the path and runs `full`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])
    from chaos.full import main

    sys.exit(main())
