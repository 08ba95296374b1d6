#!/bin/sh
# Becomes the daemon.
export HOME=/tmp/home XDG_RUNTIME_DIR=/tmp/home XDG_CACHE_HOME=/tmp/home XDG_STATE_HOME=/tmp/home
cd /tmp/home
echo $$ >pid
exec atoll serve --model-repository models --config /guest/atoll.toml --compute-units 4 --memory-limit 128M \
    --time-limit 120 --no-grpc --ready-file ready 2>daemon.log
