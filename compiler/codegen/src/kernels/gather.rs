//! Gather: copies rows of the data that an index tensor selects.

use crate::error::CodegenError;
use crate::schedule::{FIRST_OWN, Tensor};
use crate::sweep::{self, Body};
use crate::target::TargetDescription;
use crate::writer::{Int, LANES, Writer, Written};
use atoll_kgraph::{DType, Expr};
use atoll_ptx::{Name, ScalarType};

/// `output[o, i, n] = data[o, indices[i], n]`. An index outside the axis violates the kernel's
/// check and is clamped, so that no address outside the data is read.
pub(crate) fn gather(
    target: &TargetDescription,
    axis: usize,
    data: &Tensor,
    indices: &Tensor,
    output: &Tensor,
) -> Result<Written, CodegenError> {
    let dims = [Expr::product(&data.shape[..axis]), indices.count(), Expr::product(&data.shape[axis + 1..])];
    let mut w = Writer::new("gather");
    let mut body = Gather {
        data: w.base(data),
        indices: w.base(indices),
        output: w.base(output),
        extent: data.shape[axis].clone(),
        dims: dims.clone(),
        dtype: data.dtype,
        index_dtype: indices.dtype,
    };
    sweep::sweep(w, target, &dims, target.elements_per_block, &mut body)
}

struct Gather {
    data: Name,
    indices: Name,
    output: Name,
    extent: Expr,
    dims: [Expr; 3],
    dtype: DType,
    index_dtype: DType,
}

struct Cursors {
    from: Name,
    to: Name,
}

impl Gather {
    /// The index as a position on the axis.
    fn position(&self, w: &mut Writer, at: &Int) -> Int {
        let address = w.at(&self.indices, at, self.index_dtype.bytes() as u32);
        let index = w.load(self.index_dtype, &address, 0);
        let index = w.cast(&index, DType::I64).operand;
        // Narrowed to 32 bits after it is known to be in range.
        let extent = w.size(&self.extent);
        let extent = w.make(ScalarType::S64, "cvt.s64.s32", [extent.operand()]);
        let negative = w.make(ScalarType::Pred, "setp.lt.s64", [index.clone(), 0.into()]);
        let moved = w.make(ScalarType::S64, "add.s64", [index.clone(), (&extent).into()]);
        let index = w.make(ScalarType::S64, "selp.s64", [moved.into(), index, negative.into()]);
        let outside = w.make(ScalarType::Pred, "setp.ge.u64", [(&index).into(), (&extent).into()]);
        w.violated(FIRST_OWN, &outside);
        let last = w.make(ScalarType::S64, "sub.s64", [extent.into(), 1.into()]);
        let index = w.make(ScalarType::S64, "min.s64", [index.into(), last.into()]);
        let index = w.make(ScalarType::S64, "max.s64", [index.into(), 0.into()]);
        Int::Reg(w.make(ScalarType::S32, "cvt.s32.s64", [index.into()]))
    }
}

impl Body for Gather {
    type Row = Cursors;

    fn row(&mut self, w: &mut Writer, outer: &[Int], first: &Int) -> Result<Cursors, CodegenError> {
        let bytes = self.dtype.bytes() as u32;
        let [_, count, inner] = self.dims.clone().map(|d| w.size(&d));
        let extent = w.size(&self.extent);
        let position = self.position(w, &outer[1]);
        let source = w.mad(&outer[0], &extent, &position);
        let source = w.mul(&source, &inner);
        let from = w.at(&self.data, &source, bytes);
        let from = w.at(&from, first, bytes);
        let line = w.mad(&outer[0], &count, &outer[1]);
        let line = w.mul(&line, &inner);
        let to = w.at(&self.output, &line, bytes);
        let to = w.at(&to, first, bytes);
        Ok(Cursors { from: w.cursor(&from), to: w.cursor(&to) })
    }

    fn element(&mut self, w: &mut Writer, row: &Cursors, _at: &Int) -> Result<(), CodegenError> {
        let value = w.load(self.dtype, &row.from, 0);
        w.store(&value, &row.to, 0);
        Ok(())
    }

    fn advance(&mut self, w: &mut Writer, row: &Cursors) {
        for cursor in [&row.from, &row.to] {
            w.advance(cursor, &LANES.into(), self.dtype.bytes() as u32);
        }
    }
}
