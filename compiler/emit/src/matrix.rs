//! Matrix products of a warp: the supported ones, and the layout of their numbers in registers.
//!
//! *Layout.* A matrix is divided into tiles of 8 rows (for B: columns) and as many numbers along k
//! as four registers hold. Lane l holds register l mod 4 of row l div 4. A result has tiles of 8 ×
//! 8 numbers, of which each lane holds two neighbouring ones. Registers enumerate the tiles along
//! the rows of A first, then along k. This is the ISA's layout of `mma`. The layout of `wmma`
//! fragments is unspecified; they use the same one.

use atoll_lower::program::Inst;
use atoll_ptx::ScalarType;

/// Sizes of a product: m × k by k × n.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixShape {
    /// Rows of A and of the result.
    pub m: u32,
    /// Columns of B and of the result.
    pub n: u32,
    /// Columns of A and rows of B.
    pub k: u32,
}

impl MatrixShape {
    /// The shape in a modifier such as `m16n8k16`.
    pub fn of(inst: &Inst) -> Option<MatrixShape> {
        inst.form.modifiers.iter().find_map(|word| {
            let (m, rest) = word.strip_prefix('m')?.split_once('n')?;
            let (n, k) = rest.split_once('k')?;
            Some(MatrixShape { m: m.parse().ok()?, n: n.parse().ok()?, k: k.parse().ok()? })
        })
    }
}

/// The types of the matrices d = a · b + c.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixTypes {
    /// The result.
    pub d: ScalarType,
    /// The left factor.
    pub a: ScalarType,
    /// The right factor.
    pub b: ScalarType,
    /// The input accumulators.
    pub c: ScalarType,
}

impl MatrixTypes {
    /// The types of `mma` or `wmma.mma`; `None` if it does not name them.
    pub fn of(inst: &Inst) -> Option<MatrixTypes> {
        let types: Vec<ScalarType> = inst.form.modifiers.iter().filter_map(|m| ScalarType::from_name(m)).collect();
        match types[..] {
            [d, a, b, c] => Some(MatrixTypes { d, a, b, c }),
            // `wmma` of halves names the types of the accumulators only.
            [d, c] if inst.form.opcode == "wmma" => Some(MatrixTypes { d, a: ScalarType::F16, b: ScalarType::F16, c }),
            _ => None,
        }
    }

    /// Whether factors and accumulators of these types can be combined.
    fn agree(self) -> bool {
        use ScalarType::*;
        let MatrixTypes { d, a, b, c } = self;
        match a {
            F16 => b == a && [c, d].iter().all(|t| matches!(t, F16 | F32)),
            Bf16 | Tf32 => b == a && c == F32 && d == F32,
            F64 => b == a && c == F64 && d == F64,
            S8 | U8 => matches!(b, S8 | U8) && c == S32 && d == S32,
            _ => false,
        }
    }
}

/// Numbers of a factor in one register.
pub fn per_register(ty: ScalarType) -> u32 {
    match ty {
        ScalarType::F16 | ScalarType::Bf16 => 2,
        ScalarType::S8 | ScalarType::U8 => 4,
        _ => 1,
    }
}

/// Whether targets support a product of this shape and these types.
pub fn is_known(inst: &Inst, shape: MatrixShape, types: MatrixTypes) -> bool {
    let is_wmma = inst.form.opcode == "wmma";
    let is_in_order = is_wmma || inst.has("row") && inst.has("col");
    let MatrixShape { m, n, k } = shape;
    let wide = [(16, 16), (32, 8), (8, 32)].contains(&(m, n));
    let has_shape = match (types.a, is_wmma) {
        (ScalarType::F16 | ScalarType::Bf16 | ScalarType::S8 | ScalarType::U8, true) => wide && k == 16,
        (ScalarType::Tf32, true) => (m, n, k) == (16, 16, 8),
        (ScalarType::F64, true) => (m, n, k) == (8, 8, 4),
        (ScalarType::F16 | ScalarType::Bf16, false) => (m, n) == (16, 8) && (k == 8 || k == 16),
        (ScalarType::Tf32, false) => (m, n) == (16, 8) && (k == 4 || k == 8),
        (ScalarType::S8 | ScalarType::U8, false) => {
            (m, n, k) == (8, 8, 16) || (m, n) == (16, 8) && (k == 16 || k == 32)
        }
        (ScalarType::F64, false) => (m, n, k) == (8, 8, 4) || (m, n) == (16, 8) && [4, 8, 16].contains(&k),
        _ => false,
    };
    is_in_order && has_shape && types.agree()
}
