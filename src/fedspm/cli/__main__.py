"""`python -m fedspm.cli`, for where no script is installed."""

from fedspm.cli import main

main()
