//! Traversals of a shape: the layout of kernels whose threads do not cooperate.
//!
//! A *row* is a line along the innermost dimension. If rows are long enough, a warp takes a row (or
//! a segment of it), so that all values that depend only on the row are uniform across lanes, and
//! adjacent lanes access adjacent elements. If rows are short, every thread takes single elements
//! and finds their rows by division. [`sweep`] chooses between the two; [`points`] always takes
//! single elements.

use crate::error::CodegenError;
use crate::target::TargetDescription;
use crate::writer::{Int, LANES, Writer, Written};
use atoll_kgraph::Expr;

/// Shortest row that gets a warp of its own; for shorter rows too many lanes would be idle.
const WARP_ROW_MIN: i64 = 24;

/// What a traversal computes.
pub(crate) trait Body {
    /// State that a thread computes once per row.
    type Row;

    /// Prepares a row. `outer` are the indices of all dimensions but the innermost; `first` is the
    /// first innermost index of this thread.
    fn row(&mut self, w: &mut Writer, outer: &[Int], first: &Int) -> Result<Self::Row, CodegenError>;

    /// Computes one element of the row; `at` is its innermost index.
    fn element(&mut self, w: &mut Writer, row: &Self::Row, at: &Int) -> Result<(), CodegenError>;

    /// Advances the state of the row by 32 elements.
    fn advance(&mut self, _w: &mut Writer, _row: &Self::Row) {}
}

/// Writes the kernel that visits every index of `dims`. `elements` is the number of elements that a
/// block should compute.
pub(crate) fn sweep(
    mut w: Writer,
    target: &TargetDescription,
    dims: &[Expr],
    elements: u32,
    body: &mut impl Body,
) -> Result<Written, CodegenError> {
    let one = [Expr::Const(1)];
    let (inner, outer) = dims.split_last().unwrap_or((&one[0], &[]));
    let grid_x = match inner.as_const() {
        Some(length) if length < WARP_ROW_MIN && !outer.is_empty() => {
            by_element(&mut w, target, outer, length, elements, body)?
        }
        _ => by_row(&mut w, target, outer, inner, elements, body)?,
    };
    Ok(w.finish([LANES, target.warps, 1], [grid_x, Expr::Const(1), Expr::Const(1)]))
}

/// The rows of a shape. A warp takes a row, or a segment of a long one.
struct Rows<'a> {
    outer: &'a [Expr],
    inner: &'a Expr,
    /// Elements of a segment.
    segment: i64,
    /// Segments of a row.
    segments: Expr,
}

/// One warp per row, or per segment of a long row.
fn by_row(
    w: &mut Writer,
    target: &TargetDescription,
    outer: &[Expr],
    inner: &Expr,
    elements: u32,
    body: &mut impl Body,
) -> Result<Expr, CodegenError> {
    let warp_elements = i64::from((elements / target.warps).max(1).next_multiple_of(LANES));
    let segment = match inner.as_const() {
        Some(length) if length <= warp_elements => length,
        _ => warp_elements,
    };
    let rows = Rows { outer, inner, segment, segments: inner.clone().ceil_div(segment.max(1)) };
    let padded = (segment as u32).next_multiple_of(LANES).max(LANES);
    let items_per_warp = if rows.segments == Expr::Const(1) { (warp_elements as u32 / padded).max(1) } else { 1 };
    let items = Expr::product(outer) * rows.segments.clone();
    let items_per_block = items_per_warp * target.warps;

    let lane = w.special("%tid.x");
    let warp = w.special("%tid.y");
    let block = w.special("%ctaid.x");
    let first_item = w.mad(&block, &items_per_block.into(), &warp);
    let item_count = if outer.is_empty() { w.parameter(&items) } else { w.size(&items) };
    let all_exist = items.as_const().is_some_and(|n| n % i64::from(items_per_block) == 0) && !outer.is_empty();
    let mut outcome = Ok(());
    w.count(&0.into(), &items_per_block.into(), &target.warps.into(), |w, round| {
        let item = w.add(&first_item, round);
        let guard = (!all_exist).then(|| w.compare("lt.u32", &item, &item_count));
        w.when(guard.as_ref(), |w| outcome = row(w, &rows, &item, &lane, body));
    });
    outcome?;
    Ok(items.ceil_div(i64::from(items_per_block)))
}

/// One row or segment, computed by one warp: full warps of elements, then the remainder.
fn row(w: &mut Writer, rows: &Rows<'_>, item: &Int, lane: &Int, body: &mut impl Body) -> Result<(), CodegenError> {
    let &Rows { outer, inner, segment, ref segments } = rows;
    let (line, part) = if outer.is_empty() {
        (Int::Known(0), item.clone())
    } else {
        let segments = w.size(segments);
        w.div_rem(item, &segments)
    };
    let indices = unravel(w, &line, outer);
    let start = w.mul(&part, &Int::Known(segment));
    let length = match inner.as_const() {
        Some(length) if length % segment.max(1) == 0 && !outer.is_empty() => Int::Known(segment),
        _ => {
            let total = if outer.is_empty() { w.parameter(inner) } else { w.size(inner) };
            let rest = w.sub(&total, &start);
            w.min(&rest, &Int::Known(segment))
        }
    };
    let (rounds, rest) = w.div_rem(&length, &LANES.into());
    let first = w.add(&start, lane);
    let state = body.row(w, &indices, &first)?;
    if rounds.is(1) && rest.is(0) {
        return body.element(w, &state, &first);
    }
    if rounds.is(0) {
        return remainder(w, lane, &rest, |w| body.element(w, &state, &first));
    }
    let at = Int::Reg(w.variable(&first));
    let mut outcome = Ok(());
    w.count(&0.into(), &rounds, &1.into(), |w, _| {
        outcome = body.element(w, &state, &at);
        body.advance(w, &state);
        w.emit("add.s32", [at.operand(), at.operand(), LANES.into()]);
    });
    outcome?;
    if rest.is(0) { Ok(()) } else { remainder(w, lane, &rest, |w| body.element(w, &state, &at)) }
}

/// The last elements of a row: the first `rest` lanes compute one each.
fn remainder(
    w: &mut Writer,
    lane: &Int,
    rest: &Int,
    element: impl FnOnce(&mut Writer) -> Result<(), CodegenError>,
) -> Result<(), CodegenError> {
    let guard = w.compare("lt.u32", lane, rest);
    let mut outcome = Ok(());
    w.when(Some(&guard), |w| outcome = element(w));
    outcome
}

/// Writes the kernel that runs `body` once at every index of `dims`. `elements` is the number of
/// points that a block should compute.
pub(crate) fn points(
    mut w: Writer,
    target: &TargetDescription,
    dims: &[Expr],
    elements: u32,
    mut body: impl FnMut(&mut Writer, &[Int]) -> Result<(), CodegenError>,
) -> Result<Written, CodegenError> {
    let grid_x = each(&mut w, target, &Expr::product(dims), elements, |w, element| {
        let indices = unravel(w, element, dims);
        body(w, &indices)
    })?;
    Ok(w.finish([LANES, target.warps, 1], [grid_x, Expr::Const(1), Expr::Const(1)]))
}

/// One thread per element.
fn by_element(
    w: &mut Writer,
    target: &TargetDescription,
    outer: &[Expr],
    inner: i64,
    elements: u32,
    body: &mut impl Body,
) -> Result<Expr, CodegenError> {
    each(w, target, &(Expr::product(outer) * inner), elements, |w, element| {
        let (line, at) = w.div_rem(element, &Int::Known(inner));
        let indices = unravel(w, &line, outer);
        body.row(w, &indices, &at).and_then(|state| body.element(w, &state, &at))
    })
}

/// Calls `visit` with every number below `count`, one thread for each. Returns the number of
/// blocks.
fn each(
    w: &mut Writer,
    target: &TargetDescription,
    count: &Expr,
    elements: u32,
    mut visit: impl FnMut(&mut Writer, &Int) -> Result<(), CodegenError>,
) -> Result<Expr, CodegenError> {
    let threads = target.warps * LANES;
    let elements = elements.next_multiple_of(threads);
    let total = w.size(count);
    let lane = w.special("%tid.x");
    let warp = w.special("%tid.y");
    let block = w.special("%ctaid.x");
    let thread = w.mad(&warp, &LANES.into(), &lane);
    let first = w.mad(&block, &elements.into(), &thread);
    let all_exist = count.as_const().is_some_and(|n| n % i64::from(elements) == 0);
    let mut outcome = Ok(());
    w.count(&0.into(), &elements.into(), &threads.into(), |w, round| {
        let element = w.add(&first, round);
        let guard = (!all_exist).then(|| w.compare("lt.u32", &element, &total));
        w.when(guard.as_ref(), |w| outcome = visit(w, &element));
    });
    outcome?;
    Ok(count.clone().ceil_div(i64::from(elements)))
}

/// Multi-index of a linear index, row-major.
pub(crate) fn unravel(w: &mut Writer, linear: &Int, dims: &[Expr]) -> Vec<Int> {
    let mut indices = vec![Int::Known(0); dims.len()];
    let mut rest = linear.clone();
    for axis in (0..dims.len()).rev() {
        if axis == 0 {
            indices[0] = rest.clone();
        } else {
            let dim = w.size(&dims[axis]);
            (rest, indices[axis]) = w.div_rem(&rest, &dim);
        }
    }
    indices
}

/// Sum of `indices[i] * strides[i]`.
pub(crate) fn offset(w: &mut Writer, indices: &[Int], strides: &[Expr]) -> Int {
    let mut sum = Int::Known(0);
    for (index, stride) in indices.iter().zip(strides) {
        let stride = w.size(stride);
        sum = w.mad(index, &stride, &sum);
    }
    sum
}
