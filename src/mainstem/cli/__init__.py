"""The `mainstem` command: `serve`, `demo`, `chat`, `generate`, `lint`, `bench`.

The top layer: it may use every other one, and nothing uses it. Modules of this package import torch and rich only when
a command runs, so that help and complaints come at once.
"""
