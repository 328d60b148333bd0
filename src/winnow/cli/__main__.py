"""python -m winnow.cli, for processes that start others of their own installation."""

from winnow.cli import main

main()
