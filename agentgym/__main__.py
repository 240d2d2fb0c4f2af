"""`python -m agentgym`, the same as the `agentgym` command."""

import sys

from agentgym.cli import main

if __name__ == "__main__":
    sys.exit(main())
