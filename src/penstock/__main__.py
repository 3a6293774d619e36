"""`python -m penstock` is the same as `penstock`."""

from penstock.cli.main import main

main()
