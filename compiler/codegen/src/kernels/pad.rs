//! Padding: an index map per axis, and a range check if the padding is a constant.

use crate::error::CodegenError;
use crate::schedule::Tensor;
use crate::sweep::{self, Body};
use crate::target::TargetDescription;
use crate::writer::{Int, Writer, Written};
use atoll_frontend::tensor_graph::PadMode;
use atoll_kgraph::Expr;
use atoll_ptx::{Name, ScalarType};

/// Pads `before` elements at the beginning of each axis; the output's shape determines the padding
/// at the end.
pub(crate) fn pad(
    target: &TargetDescription,
    before: &[Expr],
    mode: PadMode,
    input: &Tensor,
    output: &Tensor,
) -> Result<Written, CodegenError> {
    let mut w = Writer::new("pad");
    let mut body = Pad { from: w.base(input), to: w.base(output), before, mode, input, output };
    sweep::sweep(w, target, &output.shape, target.elements_per_block, &mut body)
}

struct Pad<'a> {
    from: Name,
    to: Name,
    before: &'a [Expr],
    mode: PadMode,
    input: &'a Tensor,
    output: &'a Tensor,
}

struct Row {
    /// Index of the input row's first element, in elements.
    source: Int,
    /// Address of the output row.
    to: Name,
    /// Whether the row is inside the input; `None` means always.
    inside: Option<Name>,
}

impl Pad<'_> {
    /// The input position for an output index on an axis, and whether it exists.
    fn position(&self, w: &mut Writer, axis: usize, at: &Int) -> (Int, Option<Name>) {
        let extent = w.size(&self.input.shape[axis]);
        let unmoved = self.before[axis] == Expr::Const(0) && self.input.shape[axis] == self.output.shape[axis];
        if unmoved {
            return (at.clone(), None);
        }
        let before = w.size(&self.before[axis]);
        let moved = w.sub(at, &before);
        let last = w.sub(&extent, &Int::Known(1));
        match self.mode {
            PadMode::Constant(_) => {
                let inside = w.inside(&moved, &extent);
                (moved, inside)
            }
            PadMode::Edge => {
                let low = w.max(&moved, &Int::Known(0));
                (w.min(&low, &last), None)
            }
            PadMode::Reflect => (reflect(w, &moved, &last), None),
            PadMode::Wrap => (wrap(w, &moved, &extent), None),
        }
    }
}

/// The non-negative remainder.
fn wrap(w: &mut Writer, at: &Int, extent: &Int) -> Int {
    let (at, extent) = (w.variable(at), w.in_register(&extent.operand(), ScalarType::S32));
    let rest = w.make(ScalarType::S32, "rem.s32", [at.into(), extent.clone()]);
    let is_negative = w.compare("lt.s32", &Int::Reg(rest.clone()), &Int::Known(0));
    let turned = w.make(ScalarType::S32, "add.s32", [(&rest).into(), extent]);
    Int::Reg(w.make(ScalarType::S32, "selp.s32", [turned.into(), rest.into(), is_negative.into()]))
}

/// Mirrors an index at 0 and at `last`, as often as needed.
fn reflect(w: &mut Writer, at: &Int, last: &Int) -> Int {
    let period = w.mul(last, &Int::Known(2));
    let period = w.max(&period, &Int::Known(1));
    // |at| first: mirroring at 0 makes every index non-negative.
    let at = w.variable(at);
    let distance = Int::Reg(w.make(ScalarType::S32, "abs.s32", [at.into()]));
    let (_, within) = w.div_rem(&distance, &period);
    let back = w.sub(&period, &within);
    w.min(&within, &back)
}

impl Body for Pad<'_> {
    type Row = Row;

    fn row(&mut self, w: &mut Writer, outer: &[Int], _first: &Int) -> Result<Row, CodegenError> {
        let (own, theirs) = (self.output.strides(), self.input.strides());
        let line = sweep::offset(w, outer, &own);
        let to = w.at(&self.to, &line, self.output.element_bytes());
        let mut inside: Option<Name> = None;
        let mut indices = Vec::with_capacity(outer.len());
        for (axis, index) in outer.iter().enumerate() {
            let (position, is_inside) = self.position(w, axis, index);
            inside = w.both(inside.as_ref(), is_inside.as_ref());
            indices.push(position);
        }
        Ok(Row { source: sweep::offset(w, &indices, &theirs), to, inside })
    }

    fn element(&mut self, w: &mut Writer, row: &Row, at: &Int) -> Result<(), CodegenError> {
        let bytes = self.output.element_bytes();
        let rank = self.output.shape.len();
        let (position, is_inside) = if rank == 0 { (Int::Known(0), None) } else { self.position(w, rank - 1, at) };
        let inside = w.both(row.inside.as_ref(), is_inside.as_ref());
        let to = w.at(&row.to, at, bytes);
        if let (Some(_), PadMode::Constant(value)) = (&inside, self.mode) {
            let filling = w.constant(self.output.dtype, value);
            w.store(&filling, &to, 0);
        }
        w.when(inside.as_ref(), |w| {
            let source = w.add(&row.source, &position);
            let from = w.at(&self.from, &source, bytes);
            let value = w.load(self.input.dtype, &from, 0);
            w.store(&value, &to, 0);
        });
        Ok(())
    }
}
