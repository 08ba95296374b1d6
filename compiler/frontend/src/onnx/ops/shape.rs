//! Operators on shapes. Their results are known at compile time; on data, each becomes a
//! [`Op::Reshape`](crate::tensor_graph::Op::Reshape) or no node.

use super::super::call::{Call, axes_of, axis_of};
use super::super::error::{LowerError, LowerResult, invalid};
use super::super::lowering::Lowering;
use crate::size::{at_least, elements, larger, same, simplified, smaller};
use crate::tensor_graph::ValueId;
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

pub(super) fn shape(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let shape = lowering.shape(call.input(0)?).to_vec();
    let rank = shape.len() as i64;
    let clamp = |axis: i64| (if axis < 0 { axis + rank } else { axis }).clamp(0, rank) as usize;
    let (start, end) = (clamp(call.int("start", 0)?), clamp(call.int("end", rank)?));
    let part = if start < end { shape[start..end].to_vec() } else { Vec::new() };
    Ok(vec![lowering.add_sizes(&call.name, DType::I64, vec![part.len()], part)])
}

pub(super) fn size(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let count = elements(lowering.shape(call.input(0)?));
    Ok(vec![lowering.add_sizes(&call.name, DType::I64, vec![], vec![count])])
}

/// `Reshape`: a 0 keeps the input's dimension, a -1 takes the remaining elements.
pub(super) fn reshape(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let wanted = lowering.require_known(call.input(1)?, "shape")?;
    let allow_zero = call.flag("allowzero", false)?;
    let rests = wanted.iter().filter(|dim| dim.as_const() == Some(-1)).count();
    let mut dims = Vec::with_capacity(wanted.len());
    for (axis, dim) in wanted.into_iter().enumerate() {
        dims.push(wanted_dim(lowering, x, axis, dim, allow_zero, rests > 0)?);
    }
    if rests > 1 {
        return invalid("its shape contains -1 twice");
    }
    // The invocation may determine which dimension is -1. In each invocation, at most one is.
    let count = dims.iter().filter_map(|dim| dim.is_rest.clone()).fold(Expr::Const(0), |sum, is_rest| sum + is_rest);
    lowering.require_at_least(&Expr::Const(1), &simplified(&count, &lowering.graph.symbols))?;
    let others: Vec<Expr> =
        dims.iter().map(|dim| dim.size.clone() + dim.is_rest.clone().unwrap_or(Expr::Const(0))).collect();
    let mut shape: Vec<Expr> = dims.iter().map(|dim| dim.size.clone()).collect();
    if count != Expr::Const(0) {
        let rest = rest_of(lowering, &elements(lowering.shape(x)), &elements(&others), count == Expr::Const(1))?;
        for (size, dim) in shape.iter_mut().zip(dims) {
            *size = size.clone() + dim.is_rest.map_or(Expr::Const(0), |is_rest| is_rest * rest.clone());
        }
    }
    Ok(vec![lowering.reshape(&call.name, x, shape)?])
}

/// A dimension of a requested shape.
struct Wanted {
    /// Its size; 0 if it takes the remaining elements.
    size: Expr,
    /// 1 if it takes the remaining elements, else 0; `None` means 0.
    is_rest: Option<Expr>,
}

/// The meaning of a number in the requested shape; a symbolic one may be a size, 0 or -1.
fn wanted_dim(
    lowering: &Lowering,
    x: ValueId,
    axis: usize,
    dim: Expr,
    allow_zero: bool,
    has_rest: bool,
) -> LowerResult<Wanted> {
    let symbols = &lowering.graph.symbols;
    let zero = || Expr::Const(0);
    let kept = lowering.shape(x).get(axis).cloned();
    match dim.as_const() {
        Some(0) if !allow_zero => {
            return match kept {
                Some(size) => Ok(Wanted { size, is_rest: None }),
                None => invalid(format!(
                    "its shape keeps dimension {axis}, but its operand has {} dimensions",
                    lowering.rank(x)
                )),
            };
        }
        Some(-1) => return Ok(Wanted { size: zero(), is_rest: Some(Expr::Const(1)) }),
        Some(negative) if negative < 0 => return invalid(format!("its shape contains the dimension {negative}")),
        Some(_) => return Ok(Wanted { size: dim, is_rest: None }),
        None => {}
    }
    if at_least(&dim, &Expr::Const(1), symbols) || kept.as_ref().is_some_and(|kept| same(kept, &dim)) {
        return Ok(Wanted { size: dim, is_rest: None });
    }
    lowering.require_at_least(&dim, &Expr::Const(if has_rest { 0 } else { -1 }))?;
    let is_rest = larger(zero() - dim.clone(), zero(), symbols);
    let mut size = larger(dim.clone(), zero(), symbols);
    if let Some(kept) = kept.filter(|_| !allow_zero) {
        let is_zero = Expr::Const(1) - smaller(larger(dim.clone(), zero() - dim, symbols), Expr::Const(1), symbols);
        size = size + is_zero * kept;
    }
    Ok(Wanted { size, is_rest: (is_rest != zero()).then_some(is_rest) })
}

/// The dimension that -1 stands for. If it is not certain that there is a -1, the division may
/// leave a remainder.
fn rest_of(lowering: &Lowering, all: &Expr, others: &Expr, is_certain: bool) -> LowerResult<Expr> {
    match (all.as_const(), others.as_const()) {
        (Some(0), Some(0)) => Ok(Expr::Const(0)),
        _ if is_certain => lowering.divided(all, others),
        _ => Ok(all.clone().floor_div(others.clone().max(1))),
    }
}

pub(super) fn flatten(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let shape = lowering.shape(x).to_vec();
    let axis = match call.int("axis", 1)? {
        axis if axis == shape.len() as i64 => shape.len(),
        axis => axis_of(axis, shape.len())?,
    };
    Ok(vec![lowering.reshape(&call.name, x, vec![elements(&shape[..axis]), elements(&shape[axis..])])?])
}

/// Axes are an attribute before opset 13 and an operand from opset 13 on.
fn read_axes(lowering: &Lowering, call: &Call<'_>) -> LowerResult<Option<Vec<i64>>> {
    match call.optional(1) {
        Some(axes) => lowering.require_ints(axes, "list of axes").map(Some),
        None => call.ints("axes"),
    }
}

pub(super) fn squeeze(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let shape = lowering.shape(x).to_vec();
    let axes = match read_axes(lowering, call)? {
        Some(axes) => axes_of(&axes, shape.len())?,
        None => {
            // The rank of the result must not depend on the invocation.
            for dim in shape.iter().filter(|dim| dim.as_const().is_none()) {
                lowering.require_at_least(dim, &Expr::Const(2))?;
            }
            (0..shape.len()).filter(|i| shape[*i] == Expr::Const(1)).collect()
        }
    };
    for axis in &axes {
        lowering.equal_dims(shape[*axis].clone(), Expr::Const(1))?;
    }
    let kept = shape.into_iter().enumerate().filter(|(i, _)| !axes.contains(i)).map(|(_, d)| d).collect();
    Ok(vec![lowering.reshape(&call.name, x, kept)?])
}

pub(super) fn unsqueeze(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let axes = read_axes(lowering, call)?.ok_or_else(|| LowerError::Invalid("its axes are missing".into()))?;
    let mut shape = lowering.shape(x).to_vec();
    for axis in axes_of(&axes, shape.len() + axes.len())? {
        shape.insert(axis, Expr::Const(1));
    }
    Ok(vec![lowering.reshape(&call.name, x, shape)?])
}

/// `Expand` broadcasts both ways: a dimension of 1 in the requested shape keeps the input's.
pub(super) fn expand(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let wanted = lowering.require_known(call.input(1)?, "shape")?;
    let shape = lowering.broadcast_shapes(lowering.shape(x), &wanted)?;
    lowering.require_broadcast(&wanted, &shape)?;
    Ok(vec![lowering.expand(&call.name, x, shape)?])
}
