#!/usr/bin/env bash
# `make demo`: a trained model becomes preemptible kernels and answers real requests, beside a best-effort model.
set -euo pipefail

built=${CARGO_TARGET_DIR:-target}/release
atoll=$built/atoll
repository=$ATOLL_CACHE/demo
daemon=
cleanup() { if [ -n "$daemon" ]; then kill "$daemon" 2>/dev/null || true; wait "$daemon" 2>/dev/null || true; fi; }
trap cleanup EXIT

mkdir -p "$repository"
[ -f "$ATOLL_MODELS_DIR/resnet50.onnx" ] || "$built/atoll-models" resnet50 -o "$ATOLL_MODELS_DIR/resnet50.onnx"
for model in magika resnet50; do
    if [ ! -f "$repository/$model.kg" ] || [ "$atoll" -nt "$repository/$model.kg" ]; then
        "$atoll" compile "$ATOLL_MODELS_DIR/$model.onnx" -o "$repository/$model.kg"
    fi
done

log=$ATOLL_CACHE/demo.log
rm -f "$log.ready"
"$atoll" serve --model-repository "$repository" --http-port 0 --no-grpc --metrics-port 0 --ready-file "$log.ready" >"$log" 2>&1 &
daemon=$!
for _ in $(seq 300); do
    [ -s "$log.ready" ] && break
    kill -0 "$daemon" 2>/dev/null || { cat "$log" >&2; exit 1; }
    sleep 0.1
done
# The daemon writes the addresses it listens on: "http ADDRESS" and "metrics ADDRESS".
http=$(awk '$1 == "http" { print $2 }' "$log.ready")
metrics=$(awk '$1 == "metrics" { print $2 }' "$log.ready")
"$ATOLL_VENV/bin/python" tools/demo.py "$http" "http://$metrics/metrics" "$ATOLL_MODELS_DIR" \
    README.md Cargo.toml Makefile LICENSE tools/demo.py tools/demo.sh compiler/ptx/src/ast.rs deny.toml \
    "$ATOLL_MODELS_DIR/magika.onnx" "$ATOLL_MODELS_DIR/magika_config.json" "$atoll"
