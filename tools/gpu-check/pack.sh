#!/usr/bin/env bash
# Packs the checks for a machine with an NVIDIA GPU, which needs only the driver:
#
#   tools/gpu-check/pack.sh [FOLDER]     makes FOLDER (default target/gpu-check) and FOLDER.tar.gz
#
# Inside: the check itself, the program without LLVM (it compiles for NVIDIA alone), the probe, the devices' conformance suite, the corpus of kernels, and small models as bundles, with weights from a seed. PROFILE=dev packs
# debug builds.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=${1:-target/gpu-check}
profile=${PROFILE:-release}
target=${CARGO_TARGET_DIR:-target}
built=$target/$([ "$profile" = dev ] && echo debug || echo "$profile")
bytes_max=$((64 << 20))

# The models of DISB's workloads, small enough for all of them to fit into the archive.
models="resnet152 densenet201 vgg19 inception_v3 distilbert"
width=0.125
image=64

rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/kernels" "$folder/models"

echo "bundles"
cargo build --quiet --profile "$profile" -p atoll -p atoll-models ${ATOLL_BIN_FEATURES:-}
onnx=$(mktemp -d)
trap 'rm -rf "$onnx"' EXIT
for model in $models; do
    size=$([ "$model" = inception_v3 ] && echo 107 || { [ "$model" = distilbert ] && echo 19 || echo "$image"; })
    "$built/atoll-models" "$model" --width "$width" --image "$size" --seed 7 -o "$onnx/$model.onnx"
    "$built/atoll" compile "$onnx/$model.onnx" --target nvidia:sm_75,host-x86-64-v3 -o "$folder/models/$model.kg" >/dev/null
done

# The functions of the attack, with constants that are easily found.
functions=$(mktemp -d)
trap 'rm -rf "$onnx" "$functions"' EXIT
mkdir "$folder/functions"
cp tests/functions/{affine,faulty,prowl,vault}.{toml,ptx} "$functions/"
head -c 65536 /dev/zero | tr '\0' S >"$functions/secret.bin"
head -c 4096 /dev/zero | tr '\0' O >"$functions/own.bin"
for function in affine faulty prowl vault; do
    "$built/atoll" pack "$functions/$function.toml" --target nvidia:sm_75 -o "$folder/functions/$function.kg" >/dev/null
done

echo "programs"
# After the bundles: this is another build of the same program.
cargo build --quiet --profile "$profile" -p atoll --no-default-features --features cuda,compiler
cargo build --quiet --profile "$profile" -p gpu-probe
suite=$(cargo test --quiet --profile "$profile" -p atoll-device-cuda --test cuda --no-run --message-format json | sed -n 's/.*"name":"cuda".*"executable":"\([^"]*\)".*/\1/p' | tail -1)
cp "$built/atoll" "$built/gpu-probe" "$folder/bin/"
cp "$suite" "$folder/bin/conformance"
# The program under its name is again the one that everybody else expects there.
cargo build --quiet --profile "$profile" -p atoll ${ATOLL_BIN_FEATURES:-}
[ "$profile" = dev ] || strip "$folder"/bin/*
cp tools/gpu-check/gpu-check tools/gpu-check/tenants "$folder/"
cp -r tests/kernels/cases.toml tests/kernels/ptx "$folder/kernels/"
# Checks of models, which need Python packages on that machine.
mkdir -p "$folder/check"
cp tools/gpu-check/models/model-check tools/gpu-check/models/*.py tests/python/oracle.py "$folder/check/"
cp -r tests/fixtures/architectures "$folder/check/"
# Newer packages of onnx come without their cases.
cases=$(echo "${ATOLL_VENV:-$HOME/.cache/atoll/venv}"/lib/python*/site-packages/onnx/backend/test/data/node)
[ ! -d "$cases" ] || cp -r "$cases" "$folder/check/"

for program in "$folder"/bin/*; do
    if ldd "$program" | grep -qiE 'llvm|libcuda'; then
        echo "$program links what the machine may not have:" >&2
        ldd "$program" >&2
        exit 1
    fi
done
tar -C "$(dirname "$folder")" -czf "$folder.tar.gz" "$(basename "$folder")"
bytes=$(stat -c %s "$folder.tar.gz")
if [ "$profile" != dev ] && [ "$bytes" -gt "$bytes_max" ]; then
    echo "$folder.tar.gz has $bytes bytes, $bytes_max is the limit" >&2
    exit 1
fi
echo "$folder.tar.gz: $bytes bytes, $(find "$folder" -type f | wc -l) files; carry it to the machine, unpack it and run gpu-check"
