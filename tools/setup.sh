# Sourced by the Makefile: installs missing packages and sets the environment. Prints each step; a second run does nothing.

set -eu
: "${ATOLL_CACHE:=$HOME/.cache/atoll}"
: "${ATOLL_VENV:=$ATOLL_CACHE/venv}"
: "${ATOLL_MODELS_DIR:=$ATOLL_CACHE/models}"
mkdir -p "$ATOLL_CACHE"

say() { printf 'setup: %s\n' "$*"; }

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

apt_install() {
    say "installing $*"
    as_root apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=300 "$@" >"$ATOLL_CACHE/apt.log" 2>&1 ||
        { as_root apt-get update -q >"$ATOLL_CACHE/apt.log" 2>&1 &&
            as_root apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=300 "$@" >>"$ATOLL_CACHE/apt.log" 2>&1; } ||
        { tail -5 "$ATOLL_CACHE/apt.log" >&2; return 1; }
}

# LLVM 22 from Debian's security updates, or 19 if the system has no 22.
if [ -x /usr/lib/llvm-22/bin/llvm-config ]; then
    atoll_llvm=22
elif [ -x /usr/lib/llvm-19/bin/llvm-config ]; then
    atoll_llvm=19
elif apt_install llvm-22-dev libzstd-dev zlib1g-dev libxml2-dev; then
    atoll_llvm=22
else
    say "LLVM 22 is not available, installing 19"
    apt_install llvm-19-dev libzstd-dev zlib1g-dev libxml2-dev
    atoll_llvm=19
fi
# LLVM's linker, for AMD code objects.
[ -x "/usr/lib/llvm-$atoll_llvm/bin/ld.lld" ] || apt_install "lld-$atoll_llvm"
export LLVM_SYS_221_PREFIX=/usr/lib/llvm-22 LLVM_SYS_191_PREFIX=/usr/lib/llvm-19
# Features that choose the LLVM, for cargo calls over the whole workspace, and over the program alone.
ATOLL_FEATURES= ATOLL_BIN_FEATURES=
if [ "$atoll_llvm" = 19 ]; then
    ATOLL_FEATURES="--no-default-features --features llvm19,compiler,cuda"
    ATOLL_BIN_FEATURES="--no-default-features --features atoll/llvm19,atoll/compiler,atoll/cuda"
fi
export ATOLL_FEATURES ATOLL_BIN_FEATURES

command -v curl >/dev/null || apt_install curl ca-certificates
command -v cc >/dev/null || apt_install build-essential
python3 -c 'import ensurepip, venv' 2>/dev/null || apt_install python3 python3-venv

if [ ! -f "$ATOLL_VENV/.requirements" ] || ! cmp -s tests/requirements.txt "$ATOLL_VENV/.requirements"; then
    say "making the Python environment $ATOLL_VENV (oracle, client, ptxas)"
    python3 -m venv "$ATOLL_VENV"
    "$ATOLL_VENV/bin/pip" install --quiet --disable-pip-version-check -r tests/requirements.txt
    cp tests/requirements.txt "$ATOLL_VENV/.requirements"
fi
"$ATOLL_VENV/bin/python" models/fetch.py "$ATOLL_MODELS_DIR"

export PATH="$ATOLL_CACHE/tools/bin:$PATH"
# The guide's page about TLS makes certificates.
if [ "${ATOLL_SETUP:-}" = test ] && ! command -v openssl >/dev/null; then apt_install openssl; fi

# NVIDIA's compiler (370 MB), which builds test programs; only for the full tests.
atoll_nvcc="$ATOLL_CACHE/nvcc"
if [ "${ATOLL_SETUP:-}" = test ] && [ "${ATOLL_TEST_FULL:-0}" = 1 ] && [ "$(uname -m)" = x86_64 ] &&
    ! { [ -f "$atoll_nvcc/.requirements" ] && cmp -s tests/requirements-nvcc.txt "$atoll_nvcc/.requirements"; }; then
    say "making the environment $atoll_nvcc (nvcc)"
    python3 -m venv "$atoll_nvcc"
    "$atoll_nvcc/bin/pip" install --quiet --disable-pip-version-check -r tests/requirements-nvcc.txt
    cp tests/requirements-nvcc.txt "$atoll_nvcc/.requirements"
fi
for atoll_file in "$atoll_nvcc"/lib/python3*/site-packages/nvidia/cu13/bin/nvcc; do
    if [ -x "$atoll_file" ]; then export ATOLL_NVCC="$atoll_file"; fi
done
# Debian's HIP runtime (7 MB), unpacked into the cache and not installed, for tests of AMD's library without a GPU.
atoll_hip="$ATOLL_CACHE/hip"
if [ "${ATOLL_SETUP:-}" = test ] && [ "${ATOLL_TEST_FULL:-}" = 1 ] && [ "$(uname -m)" = x86_64 ] && [ ! -e "$atoll_hip/libamdhip64.so.5" ]; then
    (
        say "downloading the HIP runtime of the distribution"
        rm -rf "$atoll_hip" && mkdir -p "$atoll_hip" && cd "$atoll_hip"
        apt-get download -q libamdhip64-5 libhsa-runtime64-1 libhsakmt1 libdrm-amdgpu1 libdrm2 libnuma1 libelf1 >"$ATOLL_CACHE/apt.log" 2>&1
        for package in *.deb; do dpkg-deb -x "$package" files; done
        mv files/usr/lib/x86_64-linux-gnu/lib*.so* .
        rm -rf files ./*.deb
        [ -e libamdhip64.so.5 ]
    ) || say "no HIP runtime is available; its tests are skipped"
fi
if [ -e "$atoll_hip/libamdhip64.so.5" ]; then export ATOLL_HIP_LIBRARY="$atoll_hip/libamdhip64.so.5"; fi
# For the tests of `make test-full` in virtual machines that run out of memory: QEMU, a Debian kernel, and tools for their files.
if [ "${ATOLL_SETUP:-}" = test ] && [ "${ATOLL_TEST_FULL:-}" = 1 ] && [ "$(uname -m)" = x86_64 ] && [ ! -e "$ATOLL_CACHE/vm/vmlinuz" ]; then
    { command -v qemu-system-x86_64 && command -v busybox && command -v cpio; } >/dev/null ||
        apt_install qemu-system-x86 busybox-static cpio || say "no QEMU here; tests in virtual machines are skipped"
    (
        mkdir -p "$ATOLL_CACHE/vm" && cd "$ATOLL_CACHE/vm"
        say "downloading a kernel for virtual machines"
        # The metapackage depends on the current kernel, whose package name contains its version.
        package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p' | head -1)
        [ -n "$package" ] && apt-get download -q "$package" >"$ATOLL_CACHE/apt.log" 2>&1 &&
            dpkg-deb --fsys-tarfile "$package"_*.deb | tar -x --wildcards --strip-components=2 './boot/vmlinuz-*' &&
            mv vmlinuz-* vmlinuz
        rm -f linux-image-*.deb
        [ -e vmlinuz ]
    ) || say "no kernel is available; tests in virtual machines are skipped"
fi
# For the test of the installed service in a virtual machine: it makes a bare Debian 12.
if [ "${ATOLL_SETUP:-}" = test ] && [ "${ATOLL_TEST_FULL:-}" = 1 ] && [ "$(id -u)" = 0 ] && ! command -v debootstrap >/dev/null; then
    apt_install debootstrap || say "no debootstrap here; the test of the installed service is skipped"
fi
# For the test of the container images, without a daemon and without a registry.
if [ "${ATOLL_SETUP:-}" = test ] && [ "${ATOLL_TEST_FULL:-}" = 1 ] && [ "$(id -u)" = 0 ] && ! command -v buildah >/dev/null; then
    apt_install buildah crun || say "no buildah here; the test of the container images is skipped"
fi
# For the tests of the dashboard and of the alerts: a browser, and Prometheus' tool (unpacked, so that no service starts).
if [ "${ATOLL_SETUP:-}" = test ] && [ "${ATOLL_TEST_FULL:-}" = 1 ]; then
    command -v chromium >/dev/null || apt_install chromium || say "no Chromium here; the test of the dashboard is skipped"
    command -v promtool >/dev/null || (
        mkdir -p "$ATOLL_CACHE/tools/bin" && cd "$ATOLL_CACHE/tools/bin"
        apt-get download -q prometheus >"$ATOLL_CACHE/apt.log" 2>&1 &&
            dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x --strip-components=3 ./usr/bin/promtool
        rm -f prometheus_*.deb
        [ -x promtool ]
    ) || say "no promtool here; the alerts are not checked"
fi
# Load generators that know plain HTTP alone, for their test in `make test-full`.
if [ "${ATOLL_SETUP:-}" = test ] && [ "${ATOLL_TEST_FULL:-}" = 1 ] && ! { command -v hey && command -v wrk; } >/dev/null; then
    apt_install hey wrk || say "no hey and wrk here; their test is skipped"
fi
# Ray and Ray Serve (300 MB), only for their tests in `make test-full`.
ray_version=2.60.0
if [ "${ATOLL_TEST_FULL:-}" = 1 ] && ! "$ATOLL_CACHE/ray/bin/python" -c "import ray, ray.serve; assert ray.__version__ == '$ray_version'" 2>/dev/null; then
    say "making the Python environment $ATOLL_CACHE/ray (Ray $ray_version)"
    { python3 -m venv "$ATOLL_CACHE/ray" &&
        "$ATOLL_CACHE/ray/bin/pip" install --quiet --disable-pip-version-check "ray[serve]==$ray_version"; } ||
        say "no Ray or Ray Serve here; their tests are skipped"
fi
# Clients of other projects (300 MB), for their tests in `make test-full` alone.
if [ "${ATOLL_TEST_FULL:-}" = 1 ] && ! cmp -s tests/requirements-clients.txt "$ATOLL_CACHE/clients/.requirements"; then
    say "making the Python environment $ATOLL_CACHE/clients (KServe's SDK, grpc_requests, twine)"
    { python3 -m venv "$ATOLL_CACHE/clients" &&
        "$ATOLL_CACHE/clients/bin/pip" install --quiet --disable-pip-version-check -r tests/requirements-clients.txt &&
        cp tests/requirements-clients.txt "$ATOLL_CACHE/clients/.requirements"; } ||
        say "no clients of other projects here; their tests are skipped"
fi
# The examples of Triton's Python client, of one commit, for their test in `make test-full` alone.
triton_client=58a44caa0dce77303115302e6dbdf64626b2b093
atoll_examples="$ATOLL_CACHE/triton-client/$triton_client"
if [ "${ATOLL_SETUP:-}" = test ] && [ "${ATOLL_TEST_FULL:-}" = 1 ] && [ ! -d "$atoll_examples" ]; then
    (
        say "downloading the examples of Triton's client"
        mkdir -p "$ATOLL_CACHE/triton-client" && cd "$ATOLL_CACHE/triton-client" && git init -q sources && cd sources &&
            GIT_TERMINAL_PROMPT=0 timeout 60 git fetch -q --depth 1 https://github.com/triton-inference-server/client "$triton_client" &&
            mkdir -p "$atoll_examples.new" &&
            git archive FETCH_HEAD src/python/examples | tar -x --strip-components=3 -C "$atoll_examples.new" &&
            mv "$atoll_examples.new" "$atoll_examples"
    ) 2>/dev/null || say "no examples of Triton's client here; their test is skipped"
fi
if [ -d "$atoll_examples" ]; then export ATOLL_TRITON_EXAMPLES="$atoll_examples"; fi
# Schemas of Kubernetes and Helm's library, 300 MB, for the test of the manifests in `make test-full` alone.
kubernetes_schemas="kubernetes-validate==1.37.0 helm-python-sdk==0.2.2 cel-python==0.5.0 jsonschema==4.26.0 pyyaml==6.0.4"
if [ "${ATOLL_TEST_FULL:-}" = 1 ] && [ "$(cat "$ATOLL_CACHE/kubernetes/.requirements" 2>/dev/null)" != "$kubernetes_schemas" ]; then
    say "making the Python environment $ATOLL_CACHE/kubernetes (schemas of Kubernetes, Helm)"
    { python3 -m venv "$ATOLL_CACHE/kubernetes" &&
        "$ATOLL_CACHE/kubernetes/bin/pip" install --quiet --disable-pip-version-check $kubernetes_schemas &&
        printf '%s\n' "$kubernetes_schemas" >"$ATOLL_CACHE/kubernetes/.requirements"; } ||
        say "no schemas of Kubernetes and no Helm here; the test of its manifests goes without"
fi

mdbook_version=0.5.4
if [ "${ATOLL_SETUP:-}" = docs ] && [ "$(mdbook --version 2>/dev/null)" != "mdbook v$mdbook_version" ]; then
    say "building mdbook $mdbook_version (two minutes, once)"
    cargo install --quiet --debug --locked --root "$ATOLL_CACHE/tools" --no-default-features --features search \
        mdbook@$mdbook_version
fi

# Peers of the kernel benchmark, only for `make bench`; without them its columns stay empty.
if [ "${ATOLL_SETUP:-}" = bench ]; then
    [ -e /etc/OpenCL/vendors/pocl.icd ] || apt_install pocl-opencl-icd ocl-icd-libopencl1 || say "no pocl here; its column will be empty"
    "$ATOLL_VENV/bin/python" -c 'import pyopencl' 2>/dev/null ||
        "$ATOLL_VENV/bin/pip" install --quiet --disable-pip-version-check pyopencl==2026.1.4 || say "no pyopencl here; pocl's column will be empty"
fi
