//! Resampling of the two innermost axes.

use crate::error::CodegenError;
use crate::schedule::Tensor;
use crate::sweep::{self, Body};
use crate::target::TargetDescription;
use crate::writer::{Int, Writer, Written};
use atoll_frontend::tensor_graph::{CoordinateMode, Resize, ResizeMode};
use atoll_kgraph::{DType, Expr};
use atoll_ptx::{Name, Operand, ScalarType};

/// Input `[N, C, H, W]`, output `[N, C, OH, OW]`.
pub(crate) fn resize(
    target: &TargetDescription,
    resize: &Resize,
    input: &Tensor,
    output: &Tensor,
) -> Result<Written, CodegenError> {
    let [n, c, oh, ow] = &output.shape[..] else {
        return Err(CodegenError::unsupported("resizing of tensors that do not have 4 dimensions"));
    };
    if input.dtype == DType::F64 {
        return Err(CodegenError::unsupported("resizing of F64 by the f32 kernel"));
    }
    let mut w = Writer::new("resize");
    let (from, to) = (w.base(input), w.base(output));
    let dims = [n.clone() * c.clone(), oh.clone(), ow.clone()];
    let extents = [input.shape[2].clone(), input.shape[3].clone()];
    let mut body = Resample { resize, extents, output: [oh.clone(), ow.clone()], from, to, dtype: input.dtype };
    sweep::sweep(w, target, &dims, target.elements_per_block / 4, &mut body)
}

struct Resample<'a> {
    resize: &'a Resize,
    extents: [Expr; 2],
    output: [Expr; 2],
    from: Name,
    to: Name,
    dtype: DType,
}

/// The input position of an output position on an axis.
struct Position {
    low: Int,
    /// The next input position and its weight; `None` if only one is read.
    high: Option<(Int, Operand)>,
}

struct Row {
    plane: Name,
    position: Position,
    to: Name,
}

impl Resample<'_> {
    /// ONNX's coordinate transformation, in f32 as in ONNX Runtime.
    fn coordinate(&self, w: &mut Writer, axis: usize, at: &Int) -> Operand {
        let x = w.int_to_f32(at);
        let x = w.in_register(&x, ScalarType::F32);
        let scale: Operand = self.resize.scales[axis].into();
        let is_single = self.output[axis] == Expr::Const(1);
        match self.resize.coordinates {
            CoordinateMode::Asymmetric => w.f32("div.rn.f32", [x, scale]),
            CoordinateMode::AlignCorners | CoordinateMode::PytorchHalfPixel if is_single => {
                w.f32("mov.f32", [0.0f32.into()])
            }
            CoordinateMode::HalfPixel | CoordinateMode::PytorchHalfPixel => {
                let centre = w.fadd(&x, &0.5.into());
                let scaled = w.f32("div.rn.f32", [centre, scale]);
                w.fadd(&scaled, &(-0.5).into())
            }
            CoordinateMode::AlignCorners => {
                let [extent, output] = [&self.extents[axis], &self.output[axis]].map(|size| {
                    let size = w.size(size);
                    let last = w.sub(&size, &Int::Known(1));
                    // A symbolic extent may be 1; then 0 is divided by 1.
                    let last = w.max(&last, &Int::Known(0));
                    w.int_to_f32(&last)
                });
                let divisor = w.f32("max.f32", [output, 1.0.into()]);
                let scaled = w.fmul(&x, &extent);
                w.f32("div.rn.f32", [scaled, divisor])
            }
        }
    }

    fn position(&self, w: &mut Writer, axis: usize, at: &Int) -> Position {
        let coordinate = self.coordinate(w, axis, at);
        let extent = w.size(&self.extents[axis]);
        let last = w.sub(&extent, &Int::Known(1));
        let whole = |w: &mut Writer, dotted: &str, x: Operand| Int::Reg(w.make(ScalarType::S32, dotted, [x]));
        let nearest = match self.resize.mode {
            ResizeMode::NearestFloor => whole(w, "cvt.rmi.s32.f32", coordinate),
            ResizeMode::NearestCeil => whole(w, "cvt.rpi.s32.f32", coordinate),
            ResizeMode::NearestRoundPreferFloor => {
                let moved = w.fadd(&coordinate, &(-0.5).into());
                whole(w, "cvt.rpi.s32.f32", moved)
            }
            ResizeMode::NearestRoundPreferCeil => {
                let moved = w.fadd(&coordinate, &0.5.into());
                whole(w, "cvt.rmi.s32.f32", moved)
            }
            ResizeMode::Linear => return self.between(w, &coordinate, &last),
        };
        let low = w.max(&nearest, &Int::Known(0));
        Position { low: w.min(&low, &last), high: None }
    }

    fn between(&self, w: &mut Writer, coordinate: &Operand, last: &Int) -> Position {
        let end = w.int_to_f32(last);
        let bounded = w.fmax(coordinate, &0.0.into());
        let bounded = w.f32("min.f32", [bounded, end]);
        let floor = w.f32("cvt.rmi.f32.f32", [bounded.clone()]);
        let low = Int::Reg(w.make(ScalarType::S32, "cvt.rzi.s32.f32", [floor.clone()]));
        let part = w.fsub(&bounded, &floor);
        let next = w.add(&low, &Int::Known(1));
        let next = w.min(&next, last);
        Position { low, high: Some((next, part)) }
    }

    /// The value of one input row at a column position.
    fn line(&self, w: &mut Writer, plane: &Name, row: &Int, column: &Position) -> Operand {
        let bytes = self.dtype.bytes() as u32;
        let width = w.size(&self.extents[1]);
        let line = w.mul(row, &width);
        let line = w.at(plane, &line, bytes);
        let low = w.at(&line, &column.low, bytes);
        let low = w.load_f32(self.dtype, &low, 0);
        let Some((next, part)) = &column.high else { return low };
        let high = w.at(&line, next, bytes);
        let high = w.load_f32(self.dtype, &high, 0);
        mix(w, &low, &high, part)
    }
}

/// `low * (1 - part) + high * part`
fn mix(w: &mut Writer, low: &Operand, high: &Operand, part: &Operand) -> Operand {
    let rest = w.fsub(&1.0.into(), part);
    let first = w.fmul(low, &rest);
    w.fma(high, part, &first)
}

impl Body for Resample<'_> {
    type Row = Row;

    fn row(&mut self, w: &mut Writer, outer: &[Int], _first: &Int) -> Result<Row, CodegenError> {
        let bytes = self.dtype.bytes() as u32;
        let [height, width] = [&self.extents[0], &self.extents[1]].map(|e| w.size(e));
        let [out_height, out_width] = [&self.output[0], &self.output[1]].map(|e| w.size(e));
        let size = w.mul(&height, &width);
        let plane = w.mul(&outer[0], &size);
        let plane = w.at(&self.from, &plane, bytes);
        let line = w.mad(&outer[0], &out_height, &outer[1]);
        let line = w.mul(&line, &out_width);
        let to = w.at(&self.to, &line, bytes);
        Ok(Row { plane, position: self.position(w, 0, &outer[1]), to })
    }

    fn element(&mut self, w: &mut Writer, row: &Row, at: &Int) -> Result<(), CodegenError> {
        let column = self.position(w, 1, at);
        let low = self.line(w, &row.plane, &row.position.low, &column);
        let value = match &row.position.high {
            Some((next, part)) => {
                let high = self.line(w, &row.plane, next, &column);
                mix(w, &low, &high, part)
            }
            None => low,
        };
        let to = w.at(&row.to, at, self.dtype.bytes() as u32);
        w.store_f32(self.dtype, &value, &to, 0);
        Ok(())
    }
}
