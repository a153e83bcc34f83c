"""The page a browser gets at `/`: what this is, what it serves, and a command to try."""

from __future__ import annotations

from html import escape
from string import Template
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainstem.server.service import Service

ENDPOINTS = (
    ("POST", "/v1/chat/completions", "OpenAI's chat completions"),
    ("POST", "/v1/chat/completions/render", "the prompt that a chat request would have"),
    ("POST", "/v1/responses", "OpenAI's responses"),
    ("POST", "/v1/messages", "Anthropic's messages"),
    ("POST", "/v1/messages/count_tokens", "how many tokens a messages request has"),
    ("POST", "/v1/completions", "OpenAI's plain completions, of texts or token ids"),
    ("GET", "/v1/models", "the model served here"),
    ("POST", "/tokenize", "text or messages to token ids"),
    ("POST", "/detokenize", "token ids to text"),
    ("GET", "/cache/explain/{request_id}", "why tokens of a request's prompt were not cached; of the last one: last"),
    ("POST", "/cache/reset", "forget every cached token that no running request needs"),
    ("GET", "/health", "200 while requests are taken"),
    ("GET", "/metrics", "Prometheus metrics"),
    ("GET", "/openapi.json", "all of these as an OpenAPI document"),
)

_PAGE = Template(
    """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>mainstem: $model</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 3rem auto; padding: 0 1rem; color: #1a202c }
  pre { background: #f3f4f6; padding: 1rem; overflow-x: auto } code, pre { font-size: 14px }
  td { padding: .1rem 1rem .1rem 0 }
  @media (prefers-color-scheme: dark) { body { background: #14171c; color: #dde1e7 } pre { background: #20252d } }
</style>
<h1>mainstem</h1>
<p>A prefix-caching inference engine. This server speaks OpenAI's and Anthropic's APIs for the model
   <b>$model</b> (up to $max_model_len tokens). Point any OpenAI client at <code>$url/v1</code>, Anthropic's at
   <code>$url</code>.</p>
<pre>curl $url/v1/chat/completions -H 'content-type: application/json' \\
  -d '{"model": "$model", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 32}'</pre>
<p>Send it twice: <code>usage.prompt_tokens_details.cached_tokens</code> says how much of the prompt was not
   computed again.</p>
<table>
$rows
</table>
</html>
"""
)


def index_page(service: Service, url: str) -> str:
    """The page; `url` is the server's base URL as the browser sees it, without a trailing slash."""
    rows = (f"<tr><td>{method}<td><code>{path}</code><td>{escape(meaning)}" for method, path, meaning in ENDPOINTS)
    return _PAGE.substitute(
        model=escape(service.model_name),
        max_model_len=service.engine.max_model_len,
        url=escape(url),
        rows="\n".join(rows),
    )
