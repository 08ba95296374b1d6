//! Conversions between element types.

use super::pointwise::Scalar;
use crate::tensor::{Data, Tensor, is_float, round_float, wrap_int};
use atoll_kgraph::DType;

/// The result of [`PointOp::Cast`](crate::tensor_graph::PointOp::Cast) for a value of type `from`.
pub(super) fn cast(from: DType, to: DType, value: Scalar) -> Scalar {
    match (value, to) {
        (Scalar::Float(value), to) if is_float(to) => Scalar::Float(round_float(to, value)),
        (Scalar::Float(value), DType::Bool) => Scalar::Int(i64::from(value != 0.0)),
        (Scalar::Float(value), to) => Scalar::Int(wrap_int(to, truncated(to, value))),
        (Scalar::Int(value), to) if is_float(to) => Scalar::Float(int_to_float(from, to, value)),
        (Scalar::Int(value), to) => Scalar::Int(wrap_int(to, value)),
    }
}

/// A float truncated to an integer of at least the type's width; a U64 as the `i64` with the same
/// bits.
fn truncated(to: DType, value: f64) -> i64 {
    let narrow =
        |value: f64| if value > -2_147_483_649.0 && value < 2_147_483_648.0 { value as i64 } else { i32::MIN.into() };
    let wide = |value: f64| if (-TWO_63..TWO_63).contains(&value) { value as i64 } else { i64::MIN };
    match to {
        DType::U64 if value >= TWO_63 => wide(value - TWO_63) ^ i64::MIN,
        DType::I64 | DType::U64 | DType::U32 => wide(value),
        _ => narrow(value),
    }
}

/// 2^63
const TWO_63: f64 = 9_223_372_036_854_775_808.0;

/// Rounds once: a 64-bit integer may not be exact in `f64`.
fn int_to_float(from: DType, to: DType, value: i64) -> f64 {
    match (from, to) {
        (DType::U64, DType::F64) => value as u64 as f64,
        (DType::U64, to) => round_float(to, f64::from(value as u64 as f32)),
        (_, DType::F64) => value as f64,
        (_, to) => round_float(to, f64::from(value as f32)),
    }
}

/// The same bits as another type of the same width.
pub(super) fn bit_cast(from: DType, to: DType, value: Scalar) -> Scalar {
    let data = match value {
        Scalar::Float(value) => Data::Float(vec![value]),
        Scalar::Int(value) => Data::Int(vec![value]),
    };
    let bytes = Tensor { dtype: from, shape: vec![], data }.to_bytes();
    match Tensor::from_bytes(to, &[], &bytes).map(|t| t.data) {
        Some(Data::Float(values)) => Scalar::Float(values[0]),
        Some(Data::Int(values)) => Scalar::Int(values[0]),
        // The verifier has checked that the widths are equal.
        None => value,
    }
}
