//! Layer normalisation: two passes over the row compute mean and variance, the third one writes.

use crate::error::CodegenError;
use crate::schedule::Tensor;
use crate::target::TargetDescription;
use crate::warps;
use crate::writer::{Int, Writer, Written};
use atoll_kgraph::{DType, Expr};

/// Normalises over the axes from `axis` on; one warp per row.
pub(crate) fn layer_norm(
    target: &TargetDescription,
    axis: usize,
    epsilon: f32,
    inputs: &[Tensor],
    output: &Tensor,
) -> Result<Written, CodegenError> {
    let [x, scale, ..] = inputs else {
        return Err(CodegenError::inconsistent("a layer normalisation has fewer than two operands"));
    };
    if x.dtype == DType::F64 {
        return Err(CodegenError::unsupported("a layer normalisation of F64"));
    }
    let rows = Expr::product(&x.shape[..axis]);
    let length = Expr::product(&x.shape[axis..]);
    let mut w = Writer::new("layer_norm");
    let (from, to, scales) = (w.base(x), w.base(output), w.base(scale));
    let biases = inputs.get(2).map(|t| (w.base(t), t.dtype));
    let bytes = x.element_bytes();
    warps::per_item(w, target, &rows, length.as_const(), |w, row| {
        let count = w.size(&length);
        let start = w.mul(row, &count);
        let one = Int::Known(1);
        let (source, result) = (w.at(&from, &start, bytes), w.at(&to, &start, output.element_bytes()));
        let elements = w.int_to_f32(&count);

        let sum = w.f32_variable(0.0);
        let read = w.lane_cursor(&source, &one, bytes);
        w.along(&count, &[&read], |w| {
            let value = w.load_f32(x.dtype, &read.address, 0);
            w.emit("add.f32", [(&sum).into(), (&sum).into(), value]);
            Ok(())
        })?;
        let sum = w.combine_lanes(&sum.into(), |w, a, b| w.fadd(a, b));
        let mean = w.f32("div.rn.f32", [sum, elements.clone()]);

        let squares = w.f32_variable(0.0);
        let read = w.lane_cursor(&source, &one, bytes);
        w.along(&count, &[&read], |w| {
            let value = w.load_f32(x.dtype, &read.address, 0);
            let distance = w.fsub(&value, &mean);
            w.emit("fma.rn.f32", [(&squares).into(), distance.clone(), distance, (&squares).into()]);
            Ok(())
        })?;
        let squares = w.combine_lanes(&squares.into(), |w, a, b| w.fadd(a, b));
        let variance = w.f32("div.rn.f32", [squares, elements]);
        let variance = w.fadd(&variance, &epsilon.into());
        let deviation = w.f32("sqrt.rn.f32", [variance]);
        let factor = w.f32("rcp.rn.f32", [deviation]);

        let read = w.lane_cursor(&source, &one, bytes);
        let write = w.lane_cursor(&result, &one, output.element_bytes());
        let scale_at = w.lane_cursor(&scales, &one, scale.element_bytes());
        let bias_at = biases.as_ref().map(|(base, dtype)| (w.lane_cursor(base, &one, dtype.bytes() as u32), *dtype));
        let mut cursors = vec![&read, &write, &scale_at];
        cursors.extend(bias_at.iter().map(|(cursor, _)| cursor));
        w.along(&count, &cursors, |w| {
            let value = w.load_f32(x.dtype, &read.address, 0);
            let distance = w.fsub(&value, &mean);
            let normal = w.fmul(&distance, &factor);
            let scale = w.load_f32(scale.dtype, &scale_at.address, 0);
            let value = match &bias_at {
                Some((cursor, dtype)) => {
                    let bias = w.load_f32(*dtype, &cursor.address, 0);
                    w.fma(&normal, &scale, &bias)
                }
                None => w.fmul(&normal, &scale),
            };
            w.store_f32(output.dtype, &value, &write.address, 0);
            Ok(())
        })
    })
}
