//! Determinants.

use super::super::call::Call;
use super::super::error::{LowerResult, invalid};
use super::super::lowering::Lowering;
use crate::nest::{NestArg, NestBuilder};
use crate::tensor::is_float;
use crate::tensor_graph::{Op, PointOp, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// `Det`: Gaussian elimination with partial pivoting, one thread per matrix. The second result is
/// the working copy of the matrix.
pub(super) fn det(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let shape = lowering.shape(x).to_vec();
    let [batch @ .., rows, columns] = &shape[..] else {
        return invalid(format!("its operand has {} dimensions; it needs at least 2", shape.len()));
    };
    let order = lowering.equal_dims(rows.clone(), columns.clone())?;
    let dtype = lowering.dtype(x);
    if !is_float(dtype) {
        return invalid(format!(
            "its operand has shape {} and type {dtype:?}; it needs matrices of floats",
            lowering.shape_text(&shape)
        ));
    }
    let ty = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let mut nest = NestBuilder::new("det", batch.to_vec());
    let matrix = Matrix { ty, shape: shape.clone(), place: nest.point(), order: NestArg::from(&order) };
    matrix.load(&mut nest, dtype);
    let result = nest.variable(ty, &NestArg::Const(1.0));
    nest.count(&0.into(), &matrix.order, |nest, column| {
        matrix.pivot(nest, column, &result);
        let pivot = matrix.get(nest, column, column);
        nest.accumulate(&result, PointOp::Mul, &pivot);
        let is_zero = nest.compare(PointOp::Equal, ty, &pivot, &NestArg::Const(0.0));
        let is_regular = nest.step(PointOp::Not, DType::Bool, &[is_zero]);
        nest.when(&is_regular, |nest| matrix.eliminate(nest, column, &pivot));
    });
    let result = if ty == dtype { result } else { nest.cast(&result, dtype) };
    let at = nest.offset(batch, &matrix.place);
    nest.store(0, &at, &result);
    let outputs = vec![(dtype, batch.to_vec()), (ty, shape.clone())];
    Ok(vec![lowering.emit(&call.name, Op::Nest(nest.finish()), &[x], outputs)?[0]])
}

/// The matrix that a thread works on.
struct Matrix {
    ty: DType,
    shape: Vec<Expr>,
    /// Coordinates of the matrix in the batch.
    place: Vec<NestArg>,
    order: NestArg,
}

impl Matrix {
    fn at(&self, nest: &mut NestBuilder, row: &NestArg, column: &NestArg) -> NestArg {
        let place = [&self.place[..], &[row.clone(), column.clone()]].concat();
        nest.offset(&self.shape, &place)
    }

    fn get(&self, nest: &mut NestBuilder, row: &NestArg, column: &NestArg) -> NestArg {
        let at = self.at(nest, row, column);
        nest.load_result(1, self.ty, &at)
    }

    fn set(&self, nest: &mut NestBuilder, row: &NestArg, column: &NestArg, value: &NestArg) {
        let at = self.at(nest, row, column);
        nest.store(1, &at, value);
    }

    /// Copies the operand into the working copy.
    fn load(&self, nest: &mut NestBuilder, dtype: DType) {
        nest.count(&0.into(), &self.order, |nest, row| {
            nest.count(&0.into(), &self.order, |nest, column| {
                let at = self.at(nest, row, column);
                let value = nest.load(0, dtype, &at);
                let value = if self.ty == dtype { value } else { nest.cast(&value, self.ty) };
                nest.store(1, &at, &value);
            });
        });
    }

    /// Swaps the row with the largest element of a column into place; a swap negates the result.
    fn pivot(&self, nest: &mut NestBuilder, column: &NestArg, result: &NestArg) {
        let chosen = nest.variable(DType::I32, column);
        let largest = nest.variable(self.ty, &NestArg::Const(-1.0));
        nest.count(column, &self.order, |nest, row| {
            let value = self.get(nest, row, column);
            let value = nest.step(PointOp::Abs, self.ty, &[value]);
            let is_larger = nest.compare(PointOp::Greater, self.ty, &value, &largest);
            nest.when(&is_larger, |nest| {
                nest.set(&largest, &value);
                nest.set(&chosen, row);
            });
        });
        let is_other = nest.compare(PointOp::Greater, DType::I32, &chosen, column);
        nest.when(&is_other, |nest| {
            nest.accumulate(result, PointOp::Mul, &NestArg::Const(-1.0));
            nest.count(column, &self.order, |nest, i| {
                let (upper, lower) = (self.get(nest, column, i), self.get(nest, &chosen, i));
                self.set(nest, column, i, &lower);
                self.set(nest, &chosen, i, &upper);
            });
        });
    }

    /// Eliminates the column from the rows below.
    fn eliminate(&self, nest: &mut NestBuilder, column: &NestArg, pivot: &NestArg) {
        let below = nest.add(column, &1.into());
        nest.count(&below, &self.order, |nest, row| {
            let value = self.get(nest, row, column);
            let factor = nest.step(PointOp::Div, self.ty, &[value, pivot.clone()]);
            nest.count(&below, &self.order, |nest, i| {
                let (above, here) = (self.get(nest, column, i), self.get(nest, row, i));
                let taken = nest.step(PointOp::Mul, self.ty, &[factor.clone(), above]);
                let left = nest.step(PointOp::Sub, self.ty, &[here, taken]);
                self.set(nest, row, i, &left);
            });
        });
    }
}
