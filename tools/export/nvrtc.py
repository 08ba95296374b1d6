"""CUDA C to PTX with NVIDIA's run-time compiler, from the wheels nvidia-cuda-nvrtc-cu12, nvidia-cuda-runtime-cu12 and nvidia-cuda-cccl-cu12. Needs no GPU."""

import ctypes
import importlib.metadata
import importlib.util
import pathlib


def _parts():
    """Folders below `nvidia` in site-packages."""
    spec = importlib.util.find_spec("nvidia")
    return [pathlib.Path(place) for place in spec.submodule_search_locations] if spec else []


def _library():
    for place in _parts():
        for path in sorted(place.glob("cuda_nvrtc/lib/libnvrtc.so.*")):
            # The compiler opens its builtins by name.
            for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(path))
    raise SystemExit("there is no NVRTC: pip install nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12 nvidia-cuda-cccl-cu12")


def version():
    """The compiler's package and its version, for manifests."""
    return "NVRTC " + importlib.metadata.version("nvidia-cuda-nvrtc-cu12")


def ptx(source, arch=80, options=(), headers=()):
    """Compiles a text for `sm_<arch>`; `headers` are pairs of a name and a text."""
    library = _library()
    program = ctypes.c_void_p()
    names = (ctypes.c_char_p * len(headers))(*[name.encode() for name, _ in headers])
    texts = (ctypes.c_char_p * len(headers))(*[text.encode() for _, text in headers])
    _check(library, library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", len(headers), texts, names))
    include = [f"--include-path={folder}" for place in _parts() for folder in sorted(place.glob("cuda_*/include"))]
    words = [f"--gpu-architecture=compute_{arch}", "--std=c++17", *include, *options]
    arguments = (ctypes.c_char_p * len(words))(*[word.encode() for word in words])
    if library.nvrtcCompileProgram(program, len(words), arguments) != 0:
        raise SystemExit("NVRTC does not take the source:\n" + _text(library, program, "ProgramLog")[:4000])
    text = _text(library, program, "PTX")
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return text


def _text(library, program, what):
    size = ctypes.c_size_t()
    _check(library, getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    _check(library, getattr(library, f"nvrtcGet{what}")(program, text))
    return text.value.decode()


def _check(library, result):
    if result != 0:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise SystemExit(f"NVRTC: {library.nvrtcGetErrorString(result).decode()}")
