"""Every exception mainstem raises on purpose.

    MainstemError
    ├── ClientError                 the caller can fix it (HTTP 4xx)
    │   ├── InvalidRequest          a field has a value that cannot be served (400)
    │   ├── BranchError             a branch was dropped, or is busy with another reply
    │   ├── PromptTooLong           the prompt leaves no room for a reply (400)
    │   └── ModelNotFound           the request names a model that is not served (404)
    ├── ServerError                 the caller cannot (HTTP 5xx)
    │   ├── EngineStopped           the engine is shutting down or has stopped (503)
    │   ├── EngineDied              the engine's thread has ended by an error (503)
    │   └── EngineFailed            a step failed; the request was given up (500)
    ├── ModelLoadError              the model cannot be fetched, read or run
    │   ├── NoSuchModel             what is named is no model on this machine
    │   ├── DownloadError           the embedded model could not be fetched or is damaged
    │   └── UnsupportedModel        an architecture whose attention we do not compute
    ├── TraceError                  a trace file cannot be read or understood
    ├── ConfigError                 a setting is wrong or does not fit this machine
    │   └── ConflictingSettings     two settings, each right by itself, do not go together
    └── OutOfSlots                  the KV pool has no room, even after eviction

It knows nothing of HTTP: the server maps these to status codes.
"""

from __future__ import annotations


class MainstemError(Exception):
    """Base of all errors raised by mainstem on purpose. `str(error)` is fit to show a user."""


class ClientError(MainstemError):
    """The caller's request is at fault; sending it again unchanged will fail again."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequest(ClientError):
    """A field of the request has a value that cannot be served; `param` names it."""


class BranchError(ClientError):
    """A branch cannot do what was asked: it was dropped, or a reply is being generated on it."""


class PromptTooLong(ClientError):
    """The prompt leaves no room for even one token of reply.

    Attributes:
        prompt_tokens: length of the refused prompt, in tokens.
        limit: longest prompt plus reply that is served, in tokens.
    """

    def __init__(self, prompt_tokens: int, limit: int, *, param: str | None = "messages") -> None:
        super().__init__(
            f"This model serves at most {limit} tokens (prompt and reply together), "
            f"but the prompt alone has {prompt_tokens} tokens. Shorten the prompt.",
            param=param,
        )
        self.prompt_tokens = prompt_tokens
        self.limit = limit


class ModelNotFound(ClientError):
    """The request names a model that this server does not serve."""


class ServerError(MainstemError):
    """Something on our side failed; the request may be sent again."""


class EngineStopped(ServerError):
    """The engine is shutting down, or has stopped: no new request is taken."""


class EngineDied(EngineStopped):
    """The engine's thread has ended by an error: nothing is computed until the program starts again."""

    def __init__(self) -> None:
        super().__init__("The engine has died: nothing is computed until this program starts again. Its log says why.")


class EngineFailed(ServerError):
    """A step of the engine raised; its requests were given up and their memory released."""


class ModelLoadError(MainstemError):
    """A model could not be fetched, read or run; the message says what to do."""


class NoSuchModel(ModelLoadError):
    """What a setting or a caller names is no model on this machine: nothing is there, or something else."""


class DownloadError(ModelLoadError):
    """The embedded model could not be fetched, or what arrived is not what was expected."""


class UnsupportedModel(ModelLoadError):
    """The model needs attention that mainstem does not compute; the message says which."""


class TraceError(MainstemError):
    """A trace file cannot be read or understood; the message says where."""


class ConfigError(MainstemError):
    """A setting has a wrong value, or one that does not fit this machine.

    Attributes:
        setting: the field at fault, where one is known and the message does not say yet how the user set it.
    """

    def __init__(self, message: str, *, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting


class ConflictingSettings(ConfigError):
    """Two settings, each right by itself, do not go together; the message names both."""


class OutOfSlots(MainstemError):
    """The KV pool cannot hold the tokens asked for, even if everything evictable went.

    Attributes:
        needed: slots that were asked for.
        available: slots that are free or evictable.
        held: slots that live branches keep from eviction.
    """

    def __init__(self, needed: int, available: int, *, held: int = 0) -> None:
        kept = f"; live branches hold {held}: drop some, or make the KV pool larger" if held else ""
        super().__init__(f"{needed} token slots needed, {available} free or evictable{kept}")
        self.needed = needed
        self.available = available
        self.held = held
