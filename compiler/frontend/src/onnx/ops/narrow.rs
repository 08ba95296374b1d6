//! Narrow types: the operators that accept them, and conversion to narrow floats.
//!
//! Kernels store numbers in these types and move them, but compute in other types. An operator that
//! is not in the table is refused if an operand has a narrow type.

use super::super::call::Call;
use super::super::error::{LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use super::super::options::is_default_domain;
use crate::narrow::{NarrowFloat, Special};
use crate::program::ProgramBuilder;
use crate::tensor_graph::{PointArg, PointOp};
use atoll_kgraph::DType;

/// Operators of the default domain that move elements, convert them, or read only their shape;
/// sorted.
const ACCEPTING: [&str; 39] = [
    "BitCast",
    "Cast",
    "CastLike",
    "Concat",
    "ConcatFromSequence",
    "DepthToSpace",
    "DequantizeLinear",
    "Expand",
    "Flatten",
    "Gather",
    "Identity",
    "If",
    "IsNaN",
    "Loop",
    "Optional",
    "OptionalGetElement",
    "OptionalHasElement",
    "Pad",
    "QuantizeLinear",
    "Reshape",
    "Scan",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "SequenceMap",
    "Shape",
    "Size",
    "Slice",
    "SpaceToDepth",
    "Split",
    "SplitToSequence",
    "Squeeze",
    "TensorScatter",
    "Tile",
    "Transpose",
    "Unsqueeze",
    "Where",
];

/// Returns an error if an operand has a narrow type that the operator does not accept.
pub(in super::super) fn check_operands(lowering: &Lowering, call: &Call<'_>) -> LowerResult<()> {
    let narrow = call.inputs.iter().flatten().map(|id| lowering.dtype(*id)).find(|dtype| dtype.is_narrow());
    let accepts = || is_default_domain(&call.node.domain) && ACCEPTING.binary_search(&&*call.node.op_type).is_ok();
    match narrow {
        Some(dtype) if !accepts() => unsupported(format!(
            "an operand of type {dtype}, in which no kernel computes; \
             convert it in the model, for example with Cast or DequantizeLinear"
        )),
        _ => Ok(()),
    }
}

/// How numbers are converted to a narrow float.
#[derive(Clone, Copy)]
pub(super) struct Rounding {
    /// Whether a number beyond the largest becomes the largest instead of infinity or NaN.
    saturate: bool,
    /// How [`DType::F8e8m0`] rounds to a power of two; every other type takes the nearest number.
    power: PowerRounding,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PowerRounding {
    Up,
    Down,
    Nearest,
}

/// Bit patterns of f32, as numbers: infinity, and one more than the largest mantissa.
const INFINITY: f64 = 2_139_095_040.0;
const MANTISSA: f64 = 8_388_608.0;

impl Rounding {
    /// The attributes of `Cast`, `CastLike` and `QuantizeLinear`.
    pub(super) fn of(call: &Call<'_>) -> LowerResult<Rounding> {
        let power = match call.string("round_mode", "up")?.as_str() {
            "up" => PowerRounding::Up,
            "down" => PowerRounding::Down,
            "nearest" => PowerRounding::Nearest,
            other => return invalid(format!("its attribute round_mode is {other:?}, which ONNX does not define")),
        };
        Ok(Rounding { saturate: call.flag("saturate", true)?, power })
    }

    /// Converts a number of type `from`, which is not `to`, to the narrow float `to`.
    pub(super) fn convert(self, p: &mut ProgramBuilder, from: DType, to: DType, x: PointArg) -> PointArg {
        let ty = DType::F32;
        let mut value = if from == ty { x } else { p.step(PointOp::Cast, ty, &[x]) };
        match NarrowFloat::of(to) {
            None if self.power != PowerRounding::Down => value = self.power_of_two(p, value),
            Some(format) if self.saturate && format.special != Special::None => {
                let largest = f64::from(format.largest());
                value = p.step(PointOp::Clip, ty, &[value, PointArg::Const(-largest), PointArg::Const(largest)]);
            }
            _ => {}
        }
        p.step(PointOp::Cast, to, &[value])
    }

    /// Rounds the magnitude to a power of two, up or to the nearest. Returns infinity if the result
    /// is too large and does not saturate. As in ONNX's reference, a number below the smallest
    /// normal f32 is rounded by its bits as a fraction of that number.
    fn power_of_two(self, p: &mut ProgramBuilder, value: PointArg) -> PointArg {
        let (ty, number) = (DType::U32, PointArg::Const);
        let bits = p.step(PointOp::BitCast, ty, &[value]);
        let bits = p.step(PointOp::BitAnd, ty, &[bits, number(INFINITY + MANTISSA - 1.0)]);
        let added = if self.power == PowerRounding::Up {
            number(MANTISSA - 1.0)
        } else {
            // The middle is rounded up, except below the smallest normal number.
            let is_normal = p.step(PointOp::GreaterOrEqual, ty, &[bits, number(MANTISSA)]);
            p.step(PointOp::Where, ty, &[is_normal, number(MANTISSA / 2.0), number(MANTISSA / 2.0 - 1.0)])
        };
        let sum = p.step(PointOp::Add, ty, &[bits, added]);
        let mut power = p.step(PointOp::BitAnd, ty, &[sum, number(INFINITY)]);
        if self.saturate {
            power = p.step(PointOp::Min, ty, &[power, number(INFINITY - MANTISSA)]);
        }
        let is_nan = p.step(PointOp::Greater, ty, &[bits, number(INFINITY)]);
        let bits = p.step(PointOp::Where, ty, &[is_nan, bits, power]);
        p.step(PointOp::BitCast, DType::F32, &[bits])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_its_operators_exist() {
        assert!(ACCEPTING.is_sorted_by(|a, b| a < b));
        assert!(ACCEPTING.iter().all(|operator| super::super::find("", operator).is_some()));
    }
}
