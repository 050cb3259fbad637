"""`python -m stateward.cli` is the command `stateward`."""

from stateward.cli import main

if __name__ == "__main__":
    main()
