//! `Unique`: compares every element, or slice of an axis, with those before it.

use super::super::call::{Call, axis_of};
use super::super::error::LowerResult;
use super::super::lowering::Lowering;
use crate::nest::{Nest, NestArg, NestBuilder};
use crate::size::elements;
use crate::tensor::is_float;
use crate::tensor_graph::{Op, PointOp, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// The slices that are compared.
struct Slices {
    dtype: DType,
    outer: Expr,
    count: Expr,
    inner: Expr,
    sorted: bool,
}

pub(super) fn unique(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let (x, axis) = if call.has("axis") {
        (x, axis_of(call.int("axis", 0)?, lowering.rank(x))?)
    } else {
        let all = elements(lowering.shape(x));
        (lowering.reshape(&format!("{}/flat", call.name), x, vec![all])?, 0)
    };
    let shape = lowering.shape(x).to_vec();
    let slices = Slices {
        dtype: lowering.dtype(x),
        outer: elements(&shape[..axis]),
        count: shape[axis].clone(),
        inner: elements(&shape[axis + 1..]),
        sorted: call.flag("sorted", true)?,
    };
    let name = |part: &str| format!("{}/{part}", call.name);
    let line = || (DType::I32, vec![slices.count.clone()]);
    let first = lowering.emit(&name("first"), Op::Nest(slices.first()), &[x], vec![line()])?[0];
    let rank = lowering.emit(&name("rank"), Op::Nest(slices.rank()), &[x, first], vec![line()])?[0];
    let number = lowering.emit_one(&name("number"), Op::Nest(slices.number()), &[first], DType::I32, Vec::new())?;
    let count = lowering.run_time_size(&name("count"), number, slices.count.clone())?;
    let outputs =
        vec![(DType::I32, vec![count.clone()]), (DType::I64, vec![count.clone()]), (DType::I64, vec![count.clone()])];
    let found = lowering.emit(&name("indices"), Op::Nest(slices.indices(&count)), &[first, rank], outputs)?;
    let mut result = shape;
    result[axis] = count;
    let y = lowering.emit_one(&call.name, Op::Gather { axis }, &[x, found[0]], slices.dtype, result)?;
    let outputs = vec![(DType::I64, vec![slices.count.clone()])];
    let inverse = lowering.emit(&name("inverse"), Op::Nest(slices.inverse()), &[first, rank], outputs)?[0];
    Ok(vec![y, found[1], inverse, found[2]])
}

impl Slices {
    /// For each slice, the index of the first equal slice.
    fn first(&self) -> Nest {
        let mut nest = NestBuilder::new("unique_first", vec![self.count.clone()]);
        let at = nest.point()[0].clone();
        let first = nest.variable(DType::I32, &at);
        let searching = nest.variable(DType::Bool, &NestArg::Const(1.0));
        nest.count_while(&0.into(), &at, &searching, |nest, other| {
            let order = self.order(nest, other, &at);
            let is_equal = nest.compare(PointOp::Equal, DType::I32, &order, &0.into());
            nest.when(&is_equal, |nest| {
                nest.set(&first, other);
                nest.set(&searching, &NestArg::Const(0.0));
            });
        });
        nest.store(0, &at, &first);
        nest.finish()
    }

    /// The rank of each first slice among all first slices: by value, or by position. The ranks of
    /// other slices are not used.
    fn rank(&self) -> Nest {
        let mut nest = NestBuilder::new("unique_rank", vec![self.count.clone()]);
        let at = nest.point()[0].clone();
        let rank = nest.variable(DType::I32, &0.into());
        let to = if self.sorted { NestArg::from(&self.count) } else { at.clone() };
        nest.count(&0.into(), &to, |nest, other| {
            let first = nest.load(1, DType::I32, other);
            let is_first = nest.compare(PointOp::Equal, DType::I32, &first, other);
            nest.when(&is_first, |nest| {
                if !self.sorted {
                    return nest.accumulate(&rank, PointOp::Add, &1.into());
                }
                let order = self.order(nest, other, &at);
                let is_less = nest.compare(PointOp::Less, DType::I32, &order, &0.into());
                nest.when(&is_less, |nest| nest.accumulate(&rank, PointOp::Add, &1.into()));
            });
        });
        nest.store(0, &at, &rank);
        nest.finish()
    }

    /// The number of first slices.
    fn number(&self) -> Nest {
        let mut nest = NestBuilder::new("unique_number", Vec::new());
        let number = nest.variable(DType::I32, &0.into());
        nest.count(&0.into(), &NestArg::from(&self.count), |nest, i| {
            let first = nest.load(0, DType::I32, i);
            let is_first = nest.compare(PointOp::Equal, DType::I32, &first, i);
            nest.when(&is_first, |nest| nest.accumulate(&number, PointOp::Add, &1.into()));
        });
        nest.store(0, &0.into(), &number);
        nest.finish()
    }

    /// Per rank: the index of its first slice (twice), and the number of equal slices.
    fn indices(&self, count: &Expr) -> Nest {
        let mut nest = NestBuilder::new("unique_indices", vec![count.clone()]);
        let at = nest.point()[0].clone();
        let (index, number) = (nest.variable(DType::I32, &0.into()), nest.variable(DType::I32, &0.into()));
        nest.count(&0.into(), &NestArg::from(&self.count), |nest, i| {
            let first = nest.load(0, DType::I32, i);
            let rank = nest.load(1, DType::I32, &first);
            let is_this = nest.compare(PointOp::Equal, DType::I32, &rank, &at);
            nest.when(&is_this, |nest| {
                nest.set(&index, &first);
                nest.accumulate(&number, PointOp::Add, &1.into());
            });
        });
        nest.store(0, &at, &index);
        for (result, value) in [(1, index), (2, number)] {
            let value = nest.cast(&value, DType::I64);
            nest.store(result, &at, &value);
        }
        nest.finish()
    }

    /// The rank of each slice.
    fn inverse(&self) -> Nest {
        let mut nest = NestBuilder::new("unique_inverse", vec![self.count.clone()]);
        let at = nest.point()[0].clone();
        let first = nest.load(0, DType::I32, &at);
        let rank = nest.load(1, DType::I32, &first);
        let rank = nest.cast(&rank, DType::I64);
        nest.store(0, &at, &rank);
        nest.finish()
    }

    /// -1, 0 or 1: whether a slice is before, equal to, or after another, compared element by
    /// element. A NaN equals a NaN and comes after all numbers.
    fn order(&self, nest: &mut NestBuilder, a: &NestArg, b: &NestArg) -> NestArg {
        let order = nest.variable(DType::I32, &0.into());
        let is_equal = nest.variable(DType::Bool, &NestArg::Const(1.0));
        let shape = [self.outer.clone(), self.count.clone(), self.inner.clone()];
        let length = self.outer.clone() * self.inner.clone();
        nest.count_while(&0.into(), &NestArg::from(&length), &is_equal, |nest, i| {
            let place = nest.unravel(i, &[self.outer.clone(), self.inner.clone()]);
            let [a, b] = [a, b].map(|slice| {
                let at = nest.offset(&shape, &[place[0].clone(), slice.clone(), place[1].clone()]);
                nest.load(0, self.dtype, &at)
            });
            for (sign, first, second) in [(-1, &a, &b), (1, &b, &a)] {
                let comes_first = self.less(nest, first, second);
                nest.when(&comes_first, |nest| {
                    nest.set(&order, &NestArg::from(sign));
                    nest.set(&is_equal, &NestArg::Const(0.0));
                });
            }
        });
        order
    }

    fn less(&self, nest: &mut NestBuilder, a: &NestArg, b: &NestArg) -> NestArg {
        let (ty, a, b) = match self.dtype {
            DType::Bool => (DType::I32, nest.cast(a, DType::I32), nest.cast(b, DType::I32)),
            ty => (ty, a.clone(), b.clone()),
        };
        let less = nest.compare(PointOp::Less, ty, &a, &b);
        if !is_float(ty) {
            return less;
        }
        let a_is_number = nest.compare(PointOp::Equal, ty, &a, &a);
        let b_is_number = nest.compare(PointOp::Equal, ty, &b, &b);
        let b_is_nan = nest.step(PointOp::Not, DType::Bool, &[b_is_number]);
        let nan_after = nest.both(&a_is_number, &b_is_nan);
        nest.step(PointOp::Or, DType::Bool, &[less, nan_after])
    }
}
