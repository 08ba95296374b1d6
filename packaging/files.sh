# For scripts that pack the program (deb/build.sh, release.sh), which source it: the files that each of them packs. They
# are made in the folder $root.

# install_as MODE FILE PATH: copies a file.
install_as() { install -D -m "$1" "$2" "$root/$3"; }

# install_stripped MODE FILE PATH: copies a program or a library, without debug information.
install_stripped() { install_as "$@" && strip --strip-debug "$root/$3"; }

# install_program BUILT PREFIX: the program and the libraries of this folder of build outputs, with pages and completions.
install_program() {
    local built=$1 prefix=$2 library page
    # The libraries that `atoll run` gives to CUDA programs, and the driver that runs kernels on the CPU. The program
    # looks for them in its own folder after links are resolved.
    install_stripped 755 "$built/atoll" "$prefix/lib/atoll/atoll"
    mkdir -p "$root/$prefix/bin"
    ln -s ../lib/atoll/atoll "$root/$prefix/bin/atoll"
    for library in libatoll_interpose.so libatoll_cudart.so libatoll_cublas.so libatoll_cudnn.so libatoll_stand_in_cuda.so; do
        [ ! -f "$built/$library" ] || install_stripped 644 "$built/$library" "$prefix/lib/atoll/$library"
    done

    # Rings for programs in C.
    if [ -f "$built/libatoll_ring_c.so" ]; then
        install_stripped 644 "$built/libatoll_ring_c.so" "$prefix/lib/libatoll_ring_c.so"
        install_as 644 integrations/ring/include/atoll_ring.h "$prefix/include/atoll_ring.h"
    fi

    for page in README.md CHANGELOG.md SECURITY.md docs/reference/settings.md; do
        install_as 644 "$page" "$prefix/share/doc/atoll/$(basename "$page")"
    done
    install_as 644 LICENSE "$prefix/share/doc/atoll/copyright"
    mkdir -p "$root/$prefix/share/man/man1"
    "$root/$prefix/bin/atoll" man "$root/$prefix/share/man/man1"
    gzip -9n "$root/$prefix"/share/man/man1/*.1
    install_completion bash "$prefix/share/bash-completion/completions/atoll"
    install_completion zsh "$prefix/share/zsh/vendor-completions/_atoll"
    install_completion fish "$prefix/share/fish/vendor_completions.d/atoll.fish"
}

# install_completion SHELL PATH
install_completion() {
    mkdir -p "$root/$(dirname "$2")"
    "$root/$prefix/bin/atoll" completions "$1" >"$root/$2"
}
