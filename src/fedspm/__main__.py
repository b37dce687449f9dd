"""`python -m fedspm`, for where no script is installed."""

from fedspm.cli import main

if __name__ == "__main__":  # processes of nodes import this file again
    main()
