"""``python -m greentrain``: the command line."""

from greentrain.cli import main

main()
