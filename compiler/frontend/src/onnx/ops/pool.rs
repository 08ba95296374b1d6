//! Pooling. A window over more than two dimensions is applied in steps, the two innermost
//! dimensions first: a maximum of maxima, a sum of sums, and an average of averages over equal
//! windows equal those of the whole window.

use super::super::call::Call;
use super::super::error::{LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use super::taps::{self, Divisor};
use super::unpool;
use super::window::Window;
use crate::size::elements;
use crate::tensor::is_float;
use crate::tensor_graph::{Op, PointArg, PointOp, Pool, PoolKind, Reduce, ReduceKind, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

pub(super) fn max_pool(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let dtype = lowering.dtype(x);
    let window = Window::read(lowering, call, x, &call.required_ints("kernel_shape")?)?;
    // The pooling kernel computes in f32.
    if dtype == DType::F64 || call.node.output.get(1).is_some_and(|name| !name.is_empty()) {
        let by_column = call.int("storage_order", 0)? != 0;
        return unpool::max_with_indices(lowering, call, x, &window, by_column);
    }
    let lowest = match dtype {
        DType::I8 => -128.0,
        DType::U8 => 0.0,
        _ => f64::NEG_INFINITY,
    };
    let x = window.padded(lowering, &call.name, x, lowest)?;
    if matches!(dtype, DType::I8 | DType::U8) {
        let wide = lowering.cast(&format!("{}.wide", call.name), x, DType::F32)?;
        let y = pool(lowering, &call.name, PoolKind::Max, &window, wide)?;
        return Ok(vec![lowering.cast(&format!("{}.y", call.name), y, dtype)?]);
    }
    Ok(vec![pool(lowering, &call.name, PoolKind::Max, &window, x)?])
}

pub(super) fn average_pool(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let count_include_pad = call.flag("count_include_pad", false)?;
    let window = Window::read(lowering, call, x, &call.required_ints("kernel_shape")?)?;
    if window.pads_before() && !count_include_pad {
        return unsupported(
            "auto_pad with a stride on a symbolic dimension and count_include_pad = 0; export with explicit pads, or \
             fix the dimension with `--fix NAME=SIZE`",
        );
    }
    let x = window.padded(lowering, &call.name, x, 0.0)?;
    Ok(vec![pool(lowering, &call.name, PoolKind::Average { count_include_pad }, &window, x)?])
}

/// The p-norm of every window.
pub(super) fn lp_pool(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let p = call.int("p", 2)?;
    let window = Window::read(lowering, call, x, &call.required_ints("kernel_shape")?)?;
    let x = window.padded(lowering, &call.name, x, 0.0)?;
    let powers = to_power(lowering, call, x, p)?;
    let sums = pool(lowering, &format!("{}.sum", call.name), PoolKind::Sum, &window, powers)?;
    Ok(vec![root(lowering, call, sums, p)?])
}

/// `|x|^p`
fn to_power(lowering: &mut Lowering, call: &Call<'_>, x: ValueId, p: i64) -> LowerResult<ValueId> {
    let ty = lowering.dtype(x);
    if p < 1 || !is_float(ty) {
        return invalid(format!("its p is {p} for elements of type {ty:?}; it needs p of at least 1 and floats"));
    }
    lowering.pointwise(&format!("{}.power", call.name), &[x], ty, |program, x| {
        let size = program.step(PointOp::Abs, ty, x);
        if p == 2 {
            program.step(PointOp::Mul, ty, &[size, size]);
        } else if p > 2 {
            program.step(PointOp::Pow, ty, &[size, PointArg::Const(p as f64)]);
        }
    })
}

/// The p-th root.
fn root(lowering: &mut Lowering, call: &Call<'_>, x: ValueId, p: i64) -> LowerResult<ValueId> {
    let ty = lowering.dtype(x);
    match p {
        1 => Ok(x),
        _ => lowering.pointwise(&call.name, &[x], ty, |program, x| {
            match p {
                2 => program.step(PointOp::Sqrt, ty, x),
                _ => program.step(PointOp::Pow, ty, &[x[0], PointArg::Const(1.0 / p as f64)]),
            };
        }),
    }
}

/// Pools over all spatial dimensions of `x [N, C, spatial…]`.
fn pool(lowering: &mut Lowering, name: &str, kind: PoolKind, window: &Window, x: ValueId) -> LowerResult<ValueId> {
    let dtype = lowering.dtype(x);
    if !is_float(dtype) {
        return unsupported(format!("pooling of elements of type {dtype:?}; only floats are supported"));
    }
    match kind {
        PoolKind::Sum if dtype == DType::F64 => return taps::pool(lowering, name, Divisor::One, window, x),
        PoolKind::Average { count_include_pad } if dtype == DType::F64 => {
            return taps::pool(lowering, name, Divisor::Taps { count_include_pad }, window, x);
        }
        _ => {}
    }
    let output = window.output(lowering, &lowering.shape(x)[2..])?;
    let mut done = x;
    let mut end = output.len();
    while end > 0 {
        let axes = if end == output.len() && end > 1 { end - 2..end } else { end - 1..end };
        let part = if axes.start == 0 { name.to_owned() } else { format!("{name}.axes{}", axes.start) };
        end = axes.start;
        done = pool_axes(lowering, &part, kind, window, axes, &output, done)?;
    }
    Ok(done)
}

/// Pools over one spatial dimension, or the two innermost ones. The other dimensions are merged
/// into planes, or into columns.
fn pool_axes(
    lowering: &mut Lowering,
    name: &str,
    kind: PoolKind,
    window: &Window,
    axes: std::ops::Range<usize>,
    output: &[Expr],
    x: ValueId,
) -> LowerResult<ValueId> {
    let dtype = lowering.dtype(x);
    let shape = lowering.shape(x).to_vec();
    let (from, to) = (axes.start + 2, axes.end + 2);
    // The shape is [N, C * outer, A, B]: A and B are the two dimensions; or 1 and the only
    // dimension; or the dimension and all those after it.
    let [outer, behind] = [&shape[1..from], &shape[to..]].map(elements);
    let is_last = to == shape.len();
    let two = |of_axes: &[Expr]| match (of_axes, is_last) {
        ([a, b], _) => [a.clone(), b.clone()],
        ([only, ..], true) => [Expr::Const(1), only.clone()],
        ([only, ..], false) => [only.clone(), behind.clone()],
        ([], _) => [Expr::Const(1), Expr::Const(1)],
    };
    let planes =
        |of_axes: &[Expr]| [shape[0].clone(), outer.clone()].into_iter().chain(two(of_axes)).collect::<Vec<Expr>>();
    let numbers = |list: &[u32], neutral: u32| match (&list[axes.clone()], is_last) {
        ([a, b], _) => [*a, *b],
        ([only, ..], true) => [neutral, *only],
        ([only, ..], false) => [*only, neutral],
        ([], _) => [neutral, neutral],
    };
    let (begins, ends) = window.pads.split_at(window.size.len());
    let ([top, left], [bottom, right]) = (numbers(begins, 0), numbers(ends, 0));
    let pool = Pool {
        kind,
        window: numbers(&window.size, 1),
        strides: numbers(&window.strides, 1),
        pads: [top, left, bottom, right],
        dilations: numbers(&window.dilations, 1),
    };
    let x = lowering.reshape(&format!("{name}.x"), x, planes(&shape[from..to]))?;
    let y = lowering.emit_one(name, Op::Pool(pool), &[x], dtype, planes(&output[axes.clone()]))?;
    let result = [&shape[..from], &output[axes], &shape[to..]].concat();
    lowering.reshape(&format!("{name}.y"), y, result)
}

/// Global pooling is a reduction of all spatial axes.
pub(super) fn global_pool(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let rank = lowering.rank(x);
    if rank < 3 {
        return invalid(format!("its operand has {rank} dimensions, so it has no spatial dimensions"));
    }
    let shape: Vec<Expr> =
        (0..rank).map(|i| if i < 2 { lowering.shape(x)[i].clone() } else { Expr::Const(1) }).collect();
    let reduce = |lowering: &mut Lowering, name: &str, kind: ReduceKind, x: ValueId| {
        let op = Op::Reduce(Reduce { kind, axes: (2..rank).collect(), keep_dims: true });
        lowering.emit_one(name, op, &[x], lowering.dtype(x), shape.clone())
    };
    match call.node.op_type.as_str() {
        "GlobalMaxPool" => Ok(vec![reduce(lowering, &call.name, ReduceKind::Max, x)?]),
        "GlobalAveragePool" => Ok(vec![reduce(lowering, &call.name, ReduceKind::Mean, x)?]),
        _ => {
            let p = call.int("p", 2)?;
            let powers = to_power(lowering, call, x, p)?;
            let sums = reduce(lowering, &format!("{}.sum", call.name), ReduceKind::Sum, powers)?;
            Ok(vec![root(lowering, call, sums, p)?])
        }
    }
}
