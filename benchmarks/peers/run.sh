#!/usr/bin/env bash
# Runs `mainstem bench any` against one engine after another, each alone on the machine, on the same tokens.
#
#     benchmarks/peers/run.sh OUT [ENGINE...]
#
# ENGINE is mainstem, vllm, openvino, llamacpp or sglang; all of them by default. docs/peers.md says how their
# environments and models are made, benchmarks/peers/engines.py how they are started. They are looked for in the folder that
# PEERS names (default: peers): $PEERS/vllm, $PEERS/openvino, $PEERS/sglang and $PEERS/llamacpp are virtual environments,
# $PEERS/smol and $PEERS/smol-ov the model, $PEERS/smol-f32.gguf the same for llama.cpp. ARGS are further arguments of
# `mainstem bench any`.
set -euo pipefail

out=${1:?say where the results go}
shift
engines=("$@")
[ ${#engines[@]} -gt 0 ] || engines=(mainstem vllm openvino llamacpp sglang)
port=8010
args=(--seed 0 --repeats 3 ${ARGS:-})

wait_for() { # the process, until it answers
    for _ in $(seq 300); do
        kill -0 "$1" 2>/dev/null || return 1
        python -c "import httpx; httpx.get('http://127.0.0.1:$port/v1/models', trust_env=False).raise_for_status()" \
            2>/dev/null && return 0
        sleep 1
    done
    return 1
}

stop() { # a process and its children
    kill -- "-$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}

set -m # every engine gets a process group of its own, which can be ended as a whole
for engine in "${engines[@]}"; do
    mkdir -p "$out/$engine"
    python -m benchmarks.peers.engines "$engine" --port $port >"$out/$engine/server.log" 2>&1 &
    server=$!
    trap 'stop $server' EXIT
    if wait_for $server; then
        echo "== $engine"
        mainstem bench any --base-url "http://127.0.0.1:$port/v1" --out "$out/$engine" "${args[@]}" \
            || echo "$engine: the benchmark failed" >&2
    else
        echo "$engine did not start; see $out/$engine/server.log" >&2
    fi
    stop $server
    trap - EXIT
done
python -m benchmarks.peers.compare "$out"
