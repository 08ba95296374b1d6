//! Sequences and optionals: lists of tensors whose length is known at compile time. Their operators
//! add no nodes.

use super::call::{Call, axis_of};
use super::error::{LowerError, LowerResult, invalid};
use super::failure::{Failure, tensor_of};
use super::import::Import;
use super::ops::layout;
use super::scope::{Body, Item};
use crate::tensor::Tensor;
use crate::tensor_graph::ValueId;
use atoll_kgraph::{DType, Expr};

type Items = Result<Vec<Item>, Failure>;

/// Largest number of tensors of a sequence.
const SEQUENCE_MAX: usize = 1 << 16;

/// The operand itself. An optional with an element is represented by that element.
pub(super) fn identity<'m>(_: &mut Import<'m>, call: &Call<'m>) -> Items {
    Ok(vec![call.items.first().cloned().unwrap_or(Item::Nothing)])
}

pub(super) fn optional_has_element<'m>(import: &mut Import<'m>, call: &Call<'m>) -> Items {
    let has = !matches!(call.items.first(), None | Some(Item::Nothing));
    Ok(vec![truth(import, call, has)])
}

pub(super) fn optional_get_element<'m>(_: &mut Import<'m>, call: &Call<'m>) -> Items {
    match call.items.first() {
        None | Some(Item::Nothing) => Ok(invalid("its optional is empty")?),
        Some(item) => Ok(vec![item.clone()]),
    }
}

pub(super) fn sequence_construct<'m>(_: &mut Import<'m>, call: &Call<'m>) -> Items {
    Ok(vec![Item::Sequence(call.all_inputs()?)])
}

pub(super) fn sequence_empty<'m>(_: &mut Import<'m>, _: &Call<'m>) -> Items {
    Ok(vec![Item::Sequence(Vec::new())])
}

pub(super) fn sequence_length<'m>(import: &mut Import<'m>, call: &Call<'m>) -> Items {
    let length = sequence(call, 0)?.len() as i64;
    Ok(vec![Item::Tensor(import.lowering.constant(&call.name, &Tensor::ints(DType::I64, vec![], [length])))])
}

pub(super) fn sequence_at<'m>(import: &mut Import<'m>, call: &Call<'m>) -> Items {
    let elements = sequence(call, 0)?;
    let at = position(import, call, 1, elements.len())?;
    let element = elements.get(at).ok_or_else(|| {
        LowerError::Invalid(format!("position {at} is out of range for a sequence of {} tensors", elements.len()))
    })?;
    Ok(vec![Item::Tensor(*element)])
}

pub(super) fn sequence_insert<'m>(import: &mut Import<'m>, call: &Call<'m>) -> Items {
    let mut elements = sequence(call, 0)?.to_vec();
    let at = match call.optional(2) {
        Some(_) => position(import, call, 2, elements.len())?,
        None => elements.len(),
    };
    if elements.len() >= SEQUENCE_MAX {
        let (found, limit) = (format!("more than {SEQUENCE_MAX} tensors"), SEQUENCE_MAX.to_string());
        return Err(LowerError::TooLarge { what: "a sequence".into(), found, limit }.into());
    }
    elements.insert(at, call.input(1)?);
    Ok(vec![Item::Sequence(elements)])
}

pub(super) fn sequence_erase<'m>(import: &mut Import<'m>, call: &Call<'m>) -> Items {
    let mut elements = sequence(call, 0)?.to_vec();
    let at = match call.optional(1) {
        Some(_) => position(import, call, 1, elements.len())?,
        None => elements.len().wrapping_sub(1),
    };
    if at >= elements.len() {
        return Ok(invalid(format!("position {at} is out of range for a sequence of {} tensors", elements.len()))?);
    }
    elements.remove(at);
    Ok(vec![Item::Sequence(elements)])
}

pub(super) fn concat_from_sequence<'m>(import: &mut Import<'m>, call: &Call<'m>) -> Items {
    let elements = sequence(call, 0)?;
    let is_new = call.flag("new_axis", false)?;
    let rank = elements.first().map_or(0, |id| import.lowering.rank(*id)) + usize::from(is_new);
    let axis = call.int("axis", 0)?;
    if elements.is_empty() {
        return Ok(invalid("its sequence is empty")?);
    }
    let axis = axis_of(axis, rank)?;
    let join = if is_new { layout::stack } else { layout::join };
    Ok(vec![Item::Tensor(join(&mut import.lowering, &call.name, elements, axis)?)])
}

/// `split` is a list of part sizes, or one size for all parts (the last part may be smaller).
/// Without `split`, every element of the axis is a part.
pub(super) fn split_to_sequence<'m>(import: &mut Import<'m>, call: &Call<'m>) -> Items {
    let x = call.input(0)?;
    let lowering = &mut import.lowering;
    let axis = axis_of(call.int("axis", 0)?, lowering.rank(x))?;
    let dim = &lowering.shape(x)[axis];
    let Some(dim) = dim.as_const() else {
        return Err(lowering.open_size(&format!("dimension {axis} of its operand, which is split,"), dim).into());
    };
    let (sizes, keep_axis) = match call.optional(1) {
        Some(sizes) if lowering.rank(sizes) == 0 => {
            (chunks(dim, lowering.require_ints(sizes, "list of sizes")?[0])?, true)
        }
        Some(sizes) => (lowering.require_ints(sizes, "list of sizes")?, true),
        None => (chunks(dim, 1)?, call.flag("keepdims", true)?),
    };
    if sizes.iter().any(|size| *size < 0) || sizes.iter().sum::<i64>() != dim {
        return Ok(invalid(format!("its part sizes {sizes:?} do not add up to {dim}"))?);
    }
    let mut start = 0;
    let mut parts = Vec::with_capacity(sizes.len());
    for (index, size) in sizes.into_iter().enumerate() {
        let name = format!("{}.{index}", call.name);
        parts.push(match keep_axis {
            true => layout::part(lowering, &name, x, axis, Expr::Const(start), Expr::Const(size))?,
            false => layout::element(lowering, &name, x, axis, start)?,
        });
        start += size;
    }
    Ok(vec![Item::Sequence(parts)])
}

/// Sizes of the parts of `dim` elements: `size` each, the last one may be smaller.
fn chunks(dim: i64, size: i64) -> LowerResult<Vec<i64>> {
    if size < 1 || dim / size > SEQUENCE_MAX as i64 {
        return invalid(format!("{dim} elements cannot be split into parts of {size}"));
    }
    Ok((0..dim).step_by(size as usize).map(|start| size.min(dim - start)).collect())
}

/// Applies a subgraph to each tensor of the first sequence, together with the tensors at the same
/// position of the other sequences. Operands that are tensors are passed unchanged each time.
pub(super) fn sequence_map<'m>(import: &mut Import<'m>, call: &Call<'m>) -> Items {
    let body = Body::of_graph(call.graph("body")?)?;
    let count = sequence(call, 0)?.len();
    let mut results = vec![Vec::with_capacity(count); body.outputs.len()];
    for index in 0..count {
        import.count_nodes(1)?;
        let at = |item: &Item| match item {
            Item::Sequence(elements) => elements.get(index).map(|id| Item::Tensor(*id)),
            item => Some(item.clone()),
        };
        let items: Option<Vec<Item>> = call.items.iter().map(at).collect();
        let items = items.ok_or_else(|| LowerError::Invalid("its sequences have different lengths".into()))?;
        let items = import.lower_body(&body, &format!("{}/{index}", call.name), items, None)?;
        for (result, item) in results.iter_mut().zip(&items) {
            result.push(tensor_of(item, "a result of the body")?);
        }
    }
    Ok(results.into_iter().map(Item::Sequence).collect())
}

/// An operand that must be a sequence.
fn sequence<'c>(call: &'c Call<'_>, index: usize) -> LowerResult<&'c [ValueId]> {
    match call.items.get(index) {
        Some(Item::Sequence(elements)) => Ok(elements),
        _ => invalid(format!("operand {index} is not a sequence")),
    }
}

/// A position in `0..=count`; a negative one counts from the end.
fn position(import: &Import<'_>, call: &Call<'_>, index: usize, count: usize) -> LowerResult<usize> {
    let at = import.lowering.require_ints(call.input(index)?, "position")?;
    let [at] = at[..] else { return invalid("its position is not a scalar") };
    let from_start = if at < 0 { at + count as i64 } else { at };
    usize::try_from(from_start)
        .ok()
        .filter(|at| *at <= count)
        .ok_or_else(|| LowerError::Invalid(format!("position {at} is out of range for a sequence of {count} tensors")))
}

fn truth(import: &mut Import<'_>, call: &Call<'_>, truth: bool) -> Item {
    Item::Tensor(import.lowering.constant(&call.name, &Tensor::ints(DType::Bool, vec![], [i64::from(truth)])))
}
