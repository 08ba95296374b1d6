//! `MaxPool` with indices, and `MaxUnpool`.

use super::super::call::Call;
use super::super::error::{LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use super::pad::{self, Margins};
use super::taps::Taps;
use super::window::Window;
use crate::nest::{NestArg, NestBuilder};
use crate::size::{canonical, elements, same_shape};
use crate::tensor::is_float;
use crate::tensor_graph::{Op, PadMode, PointOp, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// The maximum of every window and its index in the whole input; among equal elements, the first.
/// With `by_column`, spatial dimensions are counted in column-major order.
pub(super) fn max_with_indices(
    lowering: &mut Lowering,
    call: &Call<'_>,
    x: ValueId,
    window: &Window,
    by_column: bool,
) -> Results {
    let (dtype, shape) = (lowering.dtype(x), lowering.shape(x).to_vec());
    if window.pads_before() {
        return unsupported(
            "the indices of a maximum, with auto_pad and a stride on a symbolic dimension; export with explicit pads, \
             or fix the dimension with `--fix NAME=SIZE`",
        );
    }
    let result: Vec<Expr> = shape[..2].iter().cloned().chain(window.output(lowering, &shape[2..])?).collect();
    let mut nest = NestBuilder::new("max_with_indices", result.clone());
    let point = nest.point();
    let lowest = match dtype {
        DType::I8 => -128.0,
        DType::U8 => 0.0,
        _ => f64::NEG_INFINITY,
    };
    let best = nest.variable(dtype, &NestArg::Const(lowest));
    let place = nest.variable(DType::I32, &(-1).into());
    Taps::of_window(window, &shape[2..]).visit(&mut nest, &point[2..], &mut |nest, positions, _| {
        let at = nest.offset(&shape, &[&point[..2], positions].concat());
        let value = nest.load(0, dtype, &at);
        let is_first = nest.compare(PointOp::Less, DType::I32, &place, &0.into());
        let is_larger = nest.compare(PointOp::Greater, dtype, &value, &best);
        let is_better = nest.step(PointOp::Or, DType::Bool, &[is_first, is_larger]);
        nest.when(&is_better, |nest| {
            nest.set(&best, &value);
            nest.set(&place, &at);
        });
    });
    let at = nest.offset(&result, &point);
    nest.store(0, &at, &best);
    let place = if by_column { by_columns(&mut nest, &shape, &place) } else { place };
    let place = nest.cast(&place, DType::I64);
    nest.store(1, &at, &place);
    lowering.emit(&call.name, Op::Nest(nest.finish()), &[x], vec![(dtype, result.clone()), (DType::I64, result)])
}

/// Converts an index to one in which the first spatial dimension varies fastest.
fn by_columns(nest: &mut NestBuilder, shape: &[Expr], place: &NestArg) -> NestArg {
    let indices = nest.unravel(place, shape);
    let turned: Vec<usize> = (0..2).chain((2..shape.len()).rev()).collect();
    let shape: Vec<Expr> = turned.iter().map(|axis| shape[*axis].clone()).collect();
    let indices: Vec<NestArg> = turned.iter().map(|axis| indices[*axis].clone()).collect();
    nest.offset(&shape, &indices)
}

/// Writes every element at its index, and zeros elsewhere. An index in another plane than its
/// element is ignored: no pooling produces one.
pub(super) fn max_unpool(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (x, indices) = (call.input(0)?, call.input(1)?);
    let (dtype, shape) = (lowering.dtype(x), lowering.shape(x).to_vec());
    if !same_shape(&shape, lowering.shape(indices)) || lowering.dtype(indices) != DType::I64 || !is_float(dtype) {
        return invalid("its operand is not of a float type, or its indices are not I64 of the same shape");
    }
    let window = Window::read(lowering, call, x, &call.required_ints("kernel_shape")?)?;
    let spatial = window.size.len();
    let full = |i: usize| {
        let pads = i64::from(window.pads[i]) + i64::from(window.pads[i + spatial]);
        canonical(&((shape[i + 2].clone() - 1) * i64::from(window.strides[i]) + (i64::from(window.size[i]) - pads)))
    };
    let result: Vec<Expr> = shape[..2].iter().cloned().chain((0..spatial).map(full)).collect();
    let planes = canonical(&(shape[0].clone() * shape[1].clone()));
    let [from, to] = [&shape[2..], &result[2..]].map(|dims| [planes.clone(), elements(dims)]);
    let mut nest = NestBuilder::new("max_unpool", vec![planes]);
    let plane = nest.point()[0].clone();
    nest.count(&0.into(), &NestArg::from(&to[1]), |nest, i| {
        let at = nest.offset(&to, &[plane.clone(), i.clone()]);
        nest.store(0, &at, &NestArg::Const(0.0));
    });
    let first = nest.mul(&plane, &NestArg::from(&to[1]));
    nest.count(&0.into(), &NestArg::from(&from[1]), |nest, i| {
        let at = nest.offset(&from, &[plane.clone(), i.clone()]);
        let place = nest.load(1, DType::I64, &at);
        let place = nest.cast(&place, DType::I32);
        let within = nest.sub(&place, &first);
        let inside = nest.inside(&within, &NestArg::from(&to[1]));
        nest.when(&inside, |nest| {
            let value = nest.load(0, dtype, &at);
            nest.store(0, &place, &value);
        });
    });
    let y = lowering.emit_one(&call.name, Op::Nest(nest.finish()), &[x, indices], dtype, result.clone())?;
    let Some(wanted) = call.optional(2) else { return Ok(vec![y]) };
    let wanted = lowering.require_known(wanted, "output_shape")?;
    if wanted.len() != result.len() {
        return invalid(format!("its output_shape has {} entries for {} dimensions", wanted.len(), result.len()));
    }
    let mut margins = Margins::none(result.len());
    margins.after =
        wanted.iter().zip(&result).map(|(wanted, have)| canonical(&(wanted.clone() - have.clone()))).collect();
    Ok(vec![pad::apply(lowering, &format!("{}.padded", call.name), y, margins, PadMode::Constant(0.0))?])
}
