//! The kernels: templates in PTX, and the variants that are made from them.

use crate::number::Types;
use atoll_cuda_library::{Kernels, Number, TARGET, Variables, fill_in};

const GEMM: &str = include_str!("../kernels/gemm.template");
const VECTOR: &str = include_str!("../kernels/vector.template");

/// Lanes of a warp.
const LANES: u32 = 32;

/// Columns of A and rows of B that a block stages in a round.
const DEPTH: u32 = 16;

/// Threads of a block of a vector's kernels.
pub(crate) const VECTOR_THREADS: u32 = 256;

/// A module of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Code {
    /// One kernel, `gemm`.
    Gemm(GemmCode),
    /// The kernels of vectors of this type, each under its name in BLAS.
    Vector(Number),
}

/// A kernel of a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GemmCode {
    pub(crate) types: Types,
    pub(crate) tile: Tile,
    /// Whether the kernel adds a bias and applies an activation.
    pub(crate) has_epilogue: bool,
}

/// How a block divides its part of D.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tile {
    /// 64 rows by 64 columns.
    Wide,
    /// 32 rows by 8 columns.
    Narrow,
    /// 32 rows of one column.
    Thin,
}

impl Tile {
    /// Rows of a lane, warps, and columns of a warp.
    fn shape(self) -> [u32; 3] {
        match self {
            Tile::Wide => [2, 8, 8],
            Tile::Narrow => [1, 4, 2],
            Tile::Thin => [1, 1, 1],
        }
    }

    /// Rows of a block; a power of two, as the columns are.
    pub(crate) fn rows(self) -> u32 {
        LANES * self.shape()[0]
    }

    /// Columns of a block.
    pub(crate) fn columns(self) -> u32 {
        let [_, warps, columns] = self.shape();
        warps * columns
    }

    /// Threads of a block.
    pub(crate) fn threads(self) -> u32 {
        LANES * self.shape()[1]
    }
}

impl Kernels for Code {
    const LIBRARY: &'static str = "cuBLAS";

    fn ptx(self) -> String {
        match self {
            Code::Gemm(code) => fill_in(GEMM, code.types.sum, gemm_variables(code)),
            Code::Vector(number) => fill_in(VECTOR, number, vector_variables(number)),
        }
    }
}

fn gemm_variables(GemmCode { types, tile, has_epilogue }: GemmCode) -> Variables {
    let [lane_rows, _, warp_columns] = tile.shape();
    let (rows, columns, threads) = (tile.rows(), tile.columns(), tile.threads());
    let bytes = types.sum.bytes() as u32;
    // Elements of each operand that a thread stages. A block with few columns stages one that is not
    // used.
    let a_slots = rows * DEPTH / threads;
    let b_slots = (columns * DEPTH / threads).max(1);
    // Lines of the staged tiles are one element longer, so that lanes along a line or across the
    // lines access different banks.
    let a_pitch = (rows + 1) * bytes;
    let b_pitch = (DEPTH + 1) * bytes;
    let numbers = [
        ("rows", rows),
        ("rows_mask", rows - 1),
        ("rows_log2", rows.ilog2()),
        ("columns", columns),
        ("columns_mask", columns - 1),
        ("columns_log2", columns.ilog2()),
        ("depth", DEPTH),
        ("depth_mask", DEPTH - 1),
        ("depth_log2", DEPTH.ilog2()),
        ("depth_steps", DEPTH / 4),
        ("lane_rows", lane_rows),
        ("warp_columns", warp_columns),
        ("threads", threads),
        ("bytes", bytes),
        ("a_slots", a_slots),
        ("b_slots", b_slots),
        ("a_pitch", a_pitch),
        ("b_pitch", b_pitch),
        ("a_bytes", DEPTH * a_pitch),
        ("b_bytes", (b_slots * threads).div_ceil(DEPTH) * b_pitch),
        ("out_bytes", types.output.bytes() as u32),
    ];
    let [fma, mul] = match types.sum {
        Number::F64 => ["fma.rn.f64", "mul.rn.f64"],
        Number::F32 => ["fma.rn.f32", "mul.rn.f32"],
        _ => ["mad.lo.s32", "mul.lo.s32"],
    };
    let names = [
        ("name", "gemm"),
        ("target", TARGET),
        ("acc", types.sum.name()),
        ("zero", types.sum.zero()),
        ("in", types.input.name()),
        ("out", types.output.name()),
        ("fma", fma),
        ("mul", mul),
        ("epilogue", if has_epilogue { "yes" } else { "no" }),
    ];
    let numbers = numbers.into_iter().map(|(name, value)| (name.to_owned(), value.to_string()));
    numbers.chain(texts(&names)).collect()
}

fn vector_variables(number: Number) -> Variables {
    let [one, infinity, minus_infinity] = match number {
        Number::F64 => ["0d3FF0000000000000", "0d7FF0000000000000", "0dFFF0000000000000"],
        _ => ["0f3F800000", "0f7F800000", "0fFF800000"],
    };
    let names = [
        ("target", TARGET),
        ("acc", number.name()),
        ("zero", number.zero()),
        ("one", one),
        ("infinity", infinity),
        ("minus_infinity", minus_infinity),
    ];
    let bytes = ("bytes".to_owned(), number.bytes().to_string());
    texts(&names).chain([bytes]).collect()
}

fn texts<'a>(names: &'a [(&'a str, &'a str)]) -> impl Iterator<Item = (String, String)> {
    names.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_checks::{can_be_fenced, is_valid};

    /// Types by `cublasComputeType_t` and `cudaDataType`.
    const COMBINATIONS: [(i32, [i32; 3]); 9] = [
        (64, [2, 2, 2]),
        (68, [0, 0, 0]),
        (68, [2, 2, 2]),
        (68, [2, 2, 0]),
        (68, [14, 14, 14]),
        (68, [14, 14, 0]),
        (68, [3, 3, 0]),
        (70, [1, 1, 1]),
        (72, [3, 3, 10]),
    ];

    fn all() -> Vec<Code> {
        let mut all = vec![Code::Vector(Number::F32), Code::Vector(Number::F64)];
        for (compute, types) in COMBINATIONS {
            let types = Types::of(compute, types).expect("it is supported");
            for tile in [Tile::Wide, Tile::Narrow, Tile::Thin] {
                all.push(Code::Gemm(GemmCode { types, tile, has_epilogue: false }));
                if types.sum == Number::F32 {
                    all.push(Code::Gemm(GemmCode { types, tile, has_epilogue: true }));
                }
            }
        }
        all
    }

    #[test]
    fn every_kernel_is_valid_ptx() {
        all().into_iter().for_each(|code| is_valid(&code, &code.ptx()));
    }

    #[test]
    fn every_kernel_can_be_fenced() {
        all().into_iter().for_each(|code| can_be_fenced(&code, &code.ptx()));
    }

    #[test]
    fn a_thread_stages_every_element_of_a_tile_once() {
        for tile in [Tile::Wide, Tile::Narrow, Tile::Thin] {
            assert_eq!(tile.rows() * DEPTH % tile.threads(), 0, "{tile:?}");
            assert!(
                (tile.columns() * DEPTH).is_multiple_of(tile.threads()) || tile.columns() * DEPTH < tile.threads(),
                "{tile:?}"
            );
        }
    }
}
