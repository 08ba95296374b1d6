"""The functions of models/functions in NumPy: functions.py NAME FOLDER SIZE

Reads the function's constants from FOLDER, writes a random input (input.bin) and the expected output (output.bin).
"""

import pathlib
import sys

import numpy as np


def gemm_chain(constant, size, random):
    x = random.standard_normal((size, size), dtype=np.float32)
    y = x.astype(np.float64)
    for name in ("b0", "b1", "b2", "b3"):
        y = y @ constant(name).reshape(size, size)
    return x, y.astype(np.float32)


def complex_gemm(constant, size, random):
    def as_complex(values):
        return values.astype(np.float64).reshape(size, size, 2) @ (1, 1j)

    x = random.standard_normal((size, size, 2), dtype=np.float32)
    y = as_complex(x) @ as_complex(constant("b"))
    return x, np.stack([y.real, y.imag], axis=-1).astype(np.float32)


def jacobi(constant, size, random):
    """Not the iterations but what they must arrive at."""
    b = random.standard_normal(size)
    return b, np.linalg.solve(constant("a").reshape(size, size).astype(np.float64), b)


def main():
    name, folder, size = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
    given, expected = globals()[name](lambda file: np.fromfile(folder / f"{file}.bin", dtype="<f4"), size, np.random.default_rng(5))
    given.tofile(folder / "input.bin")
    expected.tofile(folder / "output.bin")


main()
