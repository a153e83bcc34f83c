"""Programs on top of mainstem, each to be run by itself: `python examples/tree_of_thoughts.py --help`."""
