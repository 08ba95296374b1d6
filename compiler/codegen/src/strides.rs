//! Dimensions and strides: how a kernel traverses several tensors at once.

use atoll_frontend::size::same;
use atoll_kgraph::Expr;

/// Row-major strides in elements.
pub(crate) fn dense(shape: &[Expr]) -> Vec<Expr> {
    let mut strides = vec![Expr::Const(1); shape.len()];
    for axis in (0..shape.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1].clone() * shape[axis + 1].clone();
    }
    strides
}

/// Strides for reading a tensor of `shape` at an index of `output`, by NumPy's rule: 0 on an axis
/// that is broadcast. If only an invocation determines whether an axis is broadcast, the stride is
/// an expression of its extent.
pub(crate) fn broadcast(shape: &[Expr], output: &[Expr]) -> Vec<Expr> {
    broadcast_with(shape, &dense(shape), output)
}

/// As [`broadcast`], for a tensor with the strides `own`.
pub(crate) fn broadcast_with(shape: &[Expr], own: &[Expr], output: &[Expr]) -> Vec<Expr> {
    let missing = output.len().saturating_sub(shape.len());
    let stride = |axis: usize| {
        let Some(at) = axis.checked_sub(missing) else { return Expr::Const(0) };
        match &shape[at] {
            Expr::Const(1) => Expr::Const(0),
            dim if dim.as_const().is_some() || same(dim, &output[axis]) => own[at].clone(),
            dim => own[at].clone() * (dim.clone() - 1).max(0).min(1),
        }
    };
    (0..output.len()).map(stride).collect()
}

/// `from` is the shape of the front part of a dense array of shape `within`. Returns the array's
/// shape when the part is viewed with shape `to`. `None` if no axis is shorter, or if the shorter
/// axis is not an axis of the view.
pub(crate) fn reshaped(from: &[Expr], within: &[Expr], to: &[Expr]) -> Option<Vec<Expr>> {
    let axis = from.iter().zip(within).position(|(part, whole)| part != whole)?;
    let equal = |a: &[Expr], b: &[Expr]| same(&Expr::product(a), &Expr::product(b));
    let is_it = |at: &usize| {
        same(&to[*at], &from[axis]) && equal(&to[..*at], &from[..axis]) && equal(&to[at + 1..], &from[axis + 1..])
    };
    let at = (0..to.len()).find(is_it)?;
    let mut result = to.to_vec();
    result[at] = within[axis].clone();
    Some(result)
}

/// `items[permutation[i]]` for every i.
pub(crate) fn permuted(items: &[Expr], permutation: &[usize]) -> Vec<Expr> {
    permutation.iter().map(|&axis| items[axis].clone()).collect()
}

/// The dimensions over which several tensors are traversed, and the strides of each tensor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Walk {
    /// Dimensions, outermost first.
    pub(crate) dims: Vec<Expr>,
    /// Strides of each tensor, one per dimension.
    pub(crate) strides: Vec<Vec<Expr>>,
}

impl Walk {
    /// A walk with as few dimensions as possible: dimensions of 1 are dropped, and adjacent
    /// dimensions that every tensor traverses with one stride are merged.
    pub(crate) fn collapsed(dims: &[Expr], strides: &[Vec<Expr>]) -> Walk {
        let mut walk = Walk { dims: Vec::new(), strides: vec![Vec::new(); strides.len()] };
        for (axis, dim) in dims.iter().enumerate() {
            if *dim == Expr::Const(1) {
                continue;
            }
            let joins = !walk.dims.is_empty()
                && walk
                    .strides
                    .iter()
                    .zip(strides)
                    .all(|(have, new)| have.last() == Some(&(new[axis].clone() * dim.clone())));
            if joins {
                let last = walk.dims.len() - 1;
                walk.dims[last] = walk.dims[last].clone() * dim.clone();
                for (have, new) in walk.strides.iter_mut().zip(strides) {
                    have[last] = new[axis].clone();
                }
            } else {
                walk.dims.push(dim.clone());
                for (have, new) in walk.strides.iter_mut().zip(strides) {
                    have.push(new[axis].clone());
                }
            }
        }
        walk
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_kgraph::SymbolId;

    fn dims(values: &[i64]) -> Vec<Expr> {
        values.iter().map(|&v| Expr::Const(v)).collect()
    }

    #[test]
    fn a_channel_bias_leaves_three_dimensions() {
        let output = dims(&[2, 8, 5, 7]);
        let walk = Walk::collapsed(&output, &[dense(&output), broadcast(&dims(&[8, 1, 1]), &output)]);
        assert_eq!(walk.dims, dims(&[2, 8, 35]));
        assert_eq!(walk.strides, vec![dims(&[280, 35, 1]), dims(&[0, 1, 0])]);
    }

    #[test]
    fn the_extent_decides_whether_a_symbolic_axis_broadcasts() {
        let [s, t] = [0, 1].map(|id| Expr::from(SymbolId(id)));
        let strides = broadcast(&[s.clone(), t.clone()], &[s.clone().max(t.clone()), t]);
        let of = |values: [i64; 2]| strides.iter().map(|stride| stride.eval(&values).unwrap()).collect::<Vec<_>>();
        assert_eq!((of([1, 5]), of([5, 5])), (vec![0, 1], vec![5, 1]));
    }

    #[test]
    fn symbolic_dimensions_are_merged_too() {
        let batch = Expr::from(SymbolId(0));
        let output = vec![batch.clone(), Expr::Const(4), Expr::Const(6)];
        let walk = Walk::collapsed(&output, &[dense(&output), dense(&output)]);
        assert_eq!(walk.dims, vec![batch * 4 * 6]);
    }
}
