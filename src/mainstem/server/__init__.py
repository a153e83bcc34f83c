"""The HTTP server, in the APIs of OpenAI and Anthropic.

Knows HTTP, the shapes of these APIs, keys and signals. It reaches the model only through `AsyncEngine`, and knows
nothing of the tree, the pages or tensors.
"""

from mainstem.server.app import create_app
from mainstem.server.background import BackgroundServer
from mainstem.server.heap import share_one_heap
from mainstem.server.keys import read_keys
from mainstem.server.run import serve, serve_async
from mainstem.server.shared_prefix import read_shared_prefixes
from mainstem.server.sockets import listen

__all__ = [
    "BackgroundServer",
    "create_app",
    "listen",
    "read_keys",
    "read_shared_prefixes",
    "serve",
    "serve_async",
    "share_one_heap",
]
