#!/usr/bin/env bash
# `make bench`: the figures of BENCHMARKS.md, each beside its peer in the same run. Takes a few minutes; close other programs.
# Arguments go to every `atoll bench`: `make bench ARGS=--save` also saves all results in docs/benchmarks.
set -euo pipefail

built=${CARGO_TARGET_DIR:-target}/release
atoll=$built/atoll
folder=$(mktemp -d)
daemon=
cleanup() {
    if [ -n "$daemon" ]; then kill "$daemon" 2>/dev/null || true; wait "$daemon" 2>/dev/null || true; fi
    rm -rf "$folder"
}
trap cleanup EXIT

printf 'machine: %s, %s cores\ndate: %s\ncommit: %s\n' "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)" "$(nproc)" "$(date -I)" "$(git rev-parse --short HEAD)"

for model in null resnet50 squeezenet; do
    "$built/atoll-models" "$model" -o "$folder/$model.onnx"
done

printf '\n## Kernels: atoll bench kernel\n\n'
"$atoll" bench kernel "$@"

printf '\n## Cost of the preemption passes: atoll bench transform\n\n'
"$atoll" bench transform "$@"

printf '\n## Time that the engine adds to a kernel: atoll bench engine\n\n'
"$atoll" bench engine "$@"

printf '\n## Residency of constants: atoll bench residency\n\n'
"$atoll" bench residency "$@"

printf '\n## Many functions on one device: atoll bench functions\n\n'
"$atoll" bench functions "$@"

printf '\n## Cold starts: atoll bench coldstart\n\n'
"$atoll" bench coldstart "$@"

printf '\n## Compile time, and latency against ONNX Runtime: atoll bench models\n\n'
"$atoll" bench models "$@" --against onnxruntime

printf '\n## Real-time beside best-effort: atoll bench latency --rt squeezenet.kg --be resnet50.kg\n\n'
for model in squeezenet resnet50; do "$atoll" compile "$folder/$model.onnx" --target host >/dev/null; done
"$atoll" bench latency "$@" --rt "$folder/squeezenet.kg" --be "$folder/resnet50.kg" --rate 5 --duration 20

printf '\n## Round trip of a null model over HTTP: atoll bench overhead --model null\n\n'
mkdir "$folder/repository"
cp "$folder/null.onnx" "$folder/repository"
XDG_CACHE_HOME=$folder "$atoll" serve --model-repository "$folder/repository" --http-port 0 --no-grpc --metrics-port 0 --ready-file "$folder/ready" 2>"$folder/log" &
daemon=$!
until grep -q http "$folder/ready" 2>/dev/null; do kill -0 "$daemon" || { cat "$folder/log"; exit 1; }; sleep 0.1; done
"$atoll" bench overhead "$@" --model null --url "$(awk '$1 == "http" { print $2 }' "$folder/ready")" --count 3000
