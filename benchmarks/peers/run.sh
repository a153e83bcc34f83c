#!/usr/bin/env bash
# Runs `mainstem bench any` against one engine after another, each alone on the machine, on the same tokens.
#
#     benchmarks/peers/run.sh OUT [ENGINE...]
#
# ENGINE is mainstem, vllm, openvino, llamacpp or sglang; all of them by default. docs/peers.md says how their
# environments and models are made. They are looked for in the folder that PEERS names (default: peers):
# $PEERS/vllm, $PEERS/openvino, $PEERS/sglang and $PEERS/llamacpp are virtual environments, $PEERS/smol and $PEERS/smol-ov
# the model, $PEERS/smol-f32.gguf the same for llama.cpp. ARGS are further arguments of `mainstem bench any`.
set -euo pipefail

out=${1:?say where the results go}
shift
engines=("$@")
[ ${#engines[@]} -gt 0 ] || engines=(mainstem vllm openvino llamacpp sglang)
peers=${PEERS:-peers}
cores=$(nproc)
port=8010
args=(--seed 0 --repeats 3 ${ARGS:-})
export HF_HUB_OFFLINE=1
unset OMP_NUM_THREADS OMP_WAIT_POLICY # every engine uses the cores as it does by itself

start() {
    case $1 in
        mainstem)
            mainstem serve --model smollm2 --port $port ;;
        vllm) # 32 is the smallest block its CPU attention takes; by default it would be 128.
            VLLM_CPU_KVCACHE_SPACE=4 VLLM_CPU_OMP_THREADS_BIND=0-$((cores - 1)) \
                "$peers/vllm/bin/python" -m vllm.entrypoints.openai.api_server --model "$peers/smol" \
                --served-model-name smollm2 --host 127.0.0.1 --port $port --dtype float32 --max-model-len 8192 \
                --enforce-eager --enable-prefix-caching --enable-prompt-tokens-details --block-size 32 ;;
        openvino)
            "$peers/openvino/bin/python" benchmarks/peers/openvino_front.py --model "$peers/smol-ov" --port $port ;;
        llamacpp) # Slots do not share memory: sixteen of 8,192 tokens.
            "$peers/llamacpp/bin/llama-cpp-server" --model "$peers/smol-f32.gguf" --alias smollm2 --host 127.0.0.1 \
                --port $port --threads "$cores" --parallel 16 --ctx-size 131072 --flash-attn off \
                --cache-type-k f32 --cache-type-v f32 ;;
        sglang)
            PYTHONPATH=benchmarks/peers/sglang_cpu "$peers/sglang/bin/python" -m sglang.launch_server --model-path "$peers/smol" --served-model-name smollm2 \
                --host 127.0.0.1 --port $port --device cpu --dtype float32 --attention-backend torch_native \
                --page-size 1 --context-length 8192 --max-total-tokens 65536 --enable-cache-report \
                --disable-overlap-schedule --skip-server-warmup ;;
        *)
            echo "there is no engine '$1'; see the beginning of this script" >&2
            exit 2 ;;
    esac
}

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
    start "$engine" >"$out/$engine/server.log" 2>&1 &
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
