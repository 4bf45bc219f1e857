"""``python -m baukit_sync``: the command ``baukit-sync``."""

from baukit_sync.cli import main

main()
