"""Stands in for the one thing of vLLM that SGLang asks for on a CPU; see docs/peers.md."""
