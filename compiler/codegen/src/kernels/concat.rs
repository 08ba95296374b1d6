//! Concatenation: one kernel copies the rows of several operands to the output. Each block selects
//! its operand.

use crate::error::CodegenError;
use crate::schedule::Tensor;
use crate::sweep::{self, Body};
use crate::target::TargetDescription;
use crate::writer::{Int, LANES, Writer, Written};
use atoll_kgraph::{DType, Expr};
use atoll_ptx::{Name, ScalarType};

/// Concatenates `inputs` along the axis, beginning at index `first`. Block row `i` (`%ctaid.y`)
/// copies operand `i`.
pub(crate) fn concat(
    target: &TargetDescription,
    axis: usize,
    first: &Expr,
    inputs: &[Tensor],
    output: &Tensor,
) -> Result<Written, CodegenError> {
    let outer = Expr::product(&output.shape[..axis]);
    let inner = Expr::product(&output.shape[axis + 1..]);
    let row = |t: &Tensor| t.shape[axis].clone() * inner.clone();
    let bytes = i64::from(output.element_bytes());
    let target_row = output.within.as_deref().unwrap_or(&output.shape)[axis].clone() * inner.clone();
    let start = first.clone() * inner.clone();
    let destination = Tensor { offset: output.offset.clone() + start * bytes, ..output.clone() };

    let mut w = Writer::new("concat");
    let to = w.base(&destination);
    let part = w.special("%ctaid.y");
    let mut chosen = Chosen { from: w.base(&inputs[0]), length: w.size(&row(&inputs[0])), place: Int::Known(0) };
    let mut place = row(&inputs[0]);
    let mut longest = place.clone();
    for (index, input) in inputs.iter().enumerate().skip(1) {
        let is_this = w.compare("eq.u32", &part, &Int::Known(index as i64));
        let from = w.base(input);
        let choose = |w: &mut Writer, this: &Int, other: &Int| match this == other {
            true => this.clone(),
            false => {
                Int::Reg(w.make(ScalarType::U32, "selp.u32", [this.operand(), other.operand(), (&is_this).into()]))
            }
        };
        let (length, at) = (w.size(&row(input)), w.size(&place));
        chosen.length = choose(&mut w, &length, &chosen.length);
        chosen.place = choose(&mut w, &at, &chosen.place);
        chosen.from = w.make(ScalarType::U64, "selp.u64", [from.into(), (&chosen.from).into(), (&is_this).into()]);
        place = place + row(input);
        longest = longest.max(row(input));
    }
    let mut body = Copy { chosen, to, target_row, dtype: output.dtype };
    let dims = [outer, longest];
    let mut written = sweep::sweep(w, target, &dims, target.elements_per_block, &mut body)?;
    written.grid[1] = Expr::Const(inputs.len() as i64);
    Ok(written)
}

/// The operand that this block copies.
struct Chosen {
    from: Name,
    /// Number of elements of one of its rows.
    length: Int,
    /// Offset of its rows within a row of the output.
    place: Int,
}

struct Copy {
    chosen: Chosen,
    to: Name,
    target_row: Expr,
    dtype: DType,
}

struct Cursors {
    from: Name,
    to: Name,
}

impl Body for Copy {
    type Row = Cursors;

    fn row(&mut self, w: &mut Writer, outer: &[Int], first: &Int) -> Result<Cursors, CodegenError> {
        let bytes = self.dtype.bytes() as u32;
        let line = outer.first().cloned().unwrap_or(Int::Known(0));
        let source = w.mul(&line, &self.chosen.length);
        let from = w.at(&self.chosen.from, &source, bytes);
        let from = w.at(&from, first, bytes);
        let target_row = w.size(&self.target_row);
        let destination = w.mad(&line, &target_row, &self.chosen.place);
        let to = w.at(&self.to, &destination, bytes);
        let to = w.at(&to, first, bytes);
        Ok(Cursors { from: w.cursor(&from), to: w.cursor(&to) })
    }

    fn element(&mut self, w: &mut Writer, row: &Cursors, at: &Int) -> Result<(), CodegenError> {
        let mine = w.compare("lt.u32", at, &self.chosen.length);
        w.when(Some(&mine), |w| {
            let value = w.load(self.dtype, &row.from, 0);
            w.store(&value, &row.to, 0);
        });
        Ok(())
    }

    fn advance(&mut self, w: &mut Writer, row: &Cursors) {
        for cursor in [&row.from, &row.to] {
            w.advance(cursor, &LANES.into(), self.dtype.bytes() as u32);
        }
    }
}
