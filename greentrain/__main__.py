"""``python -m greentrain``: the command line."""

from greentrain.cli.app import main

main()
