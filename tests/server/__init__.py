"""Tests of the HTTP server, over real sockets, with real engines."""
