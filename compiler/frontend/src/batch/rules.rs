//! The dimension of the rows of a result, operator by operator.

use super::{Application, Dependence, Rows, axis_of};
use crate::nest::Nest;
use crate::size::same;
use crate::tensor_graph::{MatMul, Op, Reduce, ValueId};
use atoll_kgraph::Expr;

type Found = Result<Rows, Dependence>;

fn mixes<T>(what: &'static str) -> Result<T, Dependence> {
    Err(Dependence::Mixes(what))
}

/// The dimension of the rows of each result of a node.
pub(super) fn apply(application: &Application<'_>) -> Result<Vec<Rows>, Dependence> {
    let operands: Vec<Rows> =
        application.node.inputs.iter().map(|id| application.rows_of(*id)).collect::<Result<_, _>>()?;
    let all_same = operands.iter().all(|rows| *rows == Rows::Same);
    if let Op::Pointwise(_) = &application.node.op {
        return Ok(vec![application.broadcast(None, &application.node.inputs)?]);
    }
    if all_same {
        // No operand depends on a row; `check` makes sure that the shapes do not depend on the
        // number of rows either.
        return if application.attributes_depend_on_rows() {
            mixes("one of its sizes depends on the number of rows")
        } else {
            Ok(vec![Rows::Same; application.node.outputs.len()])
        };
    }
    if !matches!(application.node.op, Op::Nest(_)) && application.attributes_depend_on_rows() {
        return mixes("one of its positions depends on the number of rows");
    }
    let first = operands[0];
    let found = match &application.node.op {
        Op::Pointwise(_) => application.broadcast(None, &application.node.inputs),
        Op::Conv(_) => match (first, operands[1]) {
            (Rows::Axis(0), Rows::Same) => application.broadcast(Some(Rows::Axis(0)), &application.node.inputs[2..]),
            _ => mixes("it sums over rows, or its weights differ by row"),
        },
        Op::MatMul(matmul) => application.matmul(matmul, first, operands[1]),
        Op::Pool(_) | Op::Resize(_) => match first {
            Rows::Axis(axis @ (0 | 1)) => Ok(Rows::Axis(axis)),
            _ => mixes("its window spans rows"),
        },
        Op::Reduce(reduce) => reduced(reduce, first),
        Op::Softmax { axis, .. } => match first {
            Rows::Axis(rows) if rows != *axis => Ok(first),
            _ => mixes("it normalises over rows"),
        },
        Op::LayerNorm { axis, .. } => match first {
            Rows::Axis(rows) if rows < *axis && operands[1..].iter().all(|rows| *rows == Rows::Same) => Ok(first),
            _ => mixes("it normalises over rows, or its scale differs by row"),
        },
        Op::Gather { axis } => application.gather(*axis, first, operands[1]),
        Op::Transpose { permutation } => match first {
            Rows::Axis(rows) => {
                permutation.iter().position(|from| *from == rows).map(Rows::Axis).ok_or(Dependence::Unknown)
            }
            Rows::Same => Ok(Rows::Same),
        },
        Op::Reshape => application.reshape(first),
        Op::Slice { starts, steps } => match first {
            Rows::Axis(rows) if steps[rows] == 1 && starts[rows].as_const() == Some(0) => Ok(first),
            _ => mixes("it selects or reorders rows"),
        },
        Op::Concat { axis } => match first {
            Rows::Axis(rows) if rows != *axis && operands.iter().all(|other| *other == first) => Ok(first),
            _ => mixes("it concatenates rows, or rows and a value that is the same for all rows"),
        },
        Op::Pad { before, .. } => match first {
            Rows::Axis(rows) if before[rows].as_const() == Some(0) => Ok(first),
            _ => mixes("it adds rows"),
        },
        Op::Recurrent { .. } => return recurrent(&operands),
        Op::Nest(nest) => return application.nest(nest, &operands),
        Op::If { .. } | Op::Loop { .. } => mixes("one condition decides for all rows"),
    };
    Ok(vec![found?])
}

/// `x [T, B, I]` and the states `[D, B, H]` have their rows in dimension 1; the weights are the
/// same for all rows.
fn recurrent(operands: &[Rows]) -> Result<Vec<Rows>, Dependence> {
    let middle = Rows::Axis(1);
    let why = "its time axis is that of the rows, or its weights differ by row";
    let [x, w, r, bias, states @ ..] = operands else { return mixes(why) };
    let moves = [x].into_iter().chain(states).all(|rows| *rows == middle);
    if !moves || [w, r, bias].iter().any(|rows| **rows != Rows::Same) {
        return mixes(why);
    }
    Ok([Rows::Axis(2)].into_iter().chain(states.iter().map(|_| middle)).collect())
}

fn reduced(reduce: &Reduce, rows: Rows) -> Found {
    match rows {
        Rows::Axis(axis) if reduce.axes.contains(&axis) => mixes("it reduces over rows"),
        Rows::Axis(axis) if reduce.keep_dims => Ok(Rows::Axis(axis)),
        Rows::Axis(axis) => Ok(Rows::Axis(axis - reduce.axes.iter().filter(|reduced| **reduced < axis).count())),
        Rows::Same => Ok(Rows::Same),
    }
}

impl Application<'_> {
    fn rows_of(&self, id: ValueId) -> Found {
        self.rows.get(&id).copied().ok_or(Dependence::Unknown)
    }

    fn shape(&self, id: ValueId) -> &[Expr] {
        &self.graph.value(id).shape
    }

    fn output(&self) -> Result<&[Expr], Dependence> {
        self.node.outputs.first().map(|id| self.shape(*id)).ok_or(Dependence::Unknown)
    }

    /// Whether numeric attributes of the operator depend on the number of rows.
    fn attributes_depend_on_rows(&self) -> bool {
        match &self.node.op {
            Op::Slice { starts: numbers, .. } | Op::Pad { before: numbers, .. } => {
                numbers.iter().any(|n| n.depends_on(self.symbol))
            }
            Op::Nest(nest) => nest.sizes().iter().any(|size| size.depends_on(self.symbol)),
            // Sizes in bodies are not analysed.
            Op::If { .. } | Op::Loop { .. } => true,
            _ => false,
        }
    }

    /// A nest whose first operands are read by rows, while the others are the same for all rows.
    fn nest(&self, nest: &Nest, operands: &[Rows]) -> Result<Vec<Rows>, Dependence> {
        if nest.row_operands == 0 {
            return mixes("it is a loop nest, whose reads are not analysed");
        }
        if !nest.refusals().is_empty() {
            return mixes("a value of one row can make it refuse all rows");
        }
        let (by_row, others) = operands.split_at_checked(nest.row_operands).ok_or(Dependence::Unknown)?;
        if by_row.iter().any(|rows| *rows != Rows::Axis(0)) || others.iter().any(|rows| *rows != Rows::Same) {
            return mixes(
                "its rows are not along the first axis, or an operand that it reads as a whole differs by row",
            );
        }
        let sizes = nest.sizes();
        let (first, inner) = sizes.split_first().ok_or(Dependence::Unknown)?;
        if **first != Expr::Symbol(self.symbol) || inner.iter().any(|size| size.depends_on(self.symbol)) {
            return mixes("one of its positions depends on the number of rows");
        }
        Ok(vec![Rows::Axis(0); self.node.outputs.len()])
    }

    /// The rows of values that are broadcast to the result's shape. `known` is the dimension of the
    /// result's rows, if it is known already. The rows of each operand must be along the same
    /// dimension of the result, or the operand is the same for all rows.
    fn broadcast(&self, known: Option<Rows>, operands: &[ValueId]) -> Found {
        let output = self.output()?;
        let mut found = known;
        for &id in operands {
            if let Rows::Axis(axis) = self.rows_of(id)? {
                let aligned = Rows::Axis(self.aligned(id, axis)?);
                if found.is_some_and(|found| found != aligned) {
                    return mixes("its operands have their rows along different dimensions");
                }
                found = Some(aligned);
            }
        }
        // A constant that is broadcast to all rows is the same in each of them.
        let rows = found.or_else(|| axis_of(output, self.symbol).map(Rows::Axis)).unwrap_or(Rows::Same);
        if let Rows::Axis(axis) = rows {
            for &id in operands {
                if self.rows_of(id)? == Rows::Same && !self.is_broadcast(id, axis)? {
                    return mixes("an operand without rows has several elements along the dimension of the rows");
                }
            }
        }
        Ok(rows)
    }

    /// The dimension of the result to which a dimension of an operand is broadcast.
    fn aligned(&self, id: ValueId, axis: usize) -> Result<usize, Dependence> {
        let missing = self.output()?.len().checked_sub(self.shape(id).len());
        missing.map(|missing| axis + missing).ok_or(Dependence::Unknown)
    }

    /// Whether an operand is broadcast along a dimension of the result.
    fn is_broadcast(&self, id: ValueId, axis: usize) -> Result<bool, Dependence> {
        let shape = self.shape(id);
        let missing = self.output()?.len().checked_sub(shape.len()).ok_or(Dependence::Unknown)?;
        Ok(axis.checked_sub(missing).is_none_or(|own| shape[own].as_const() == Some(1)))
    }

    fn matmul(&self, matmul: &MatMul, a: Rows, b: Rows) -> Found {
        let ids = &self.node.inputs;
        let rank = self.output()?.len();
        let (a_rank, b_rank) = (self.shape(ids[0]).len(), self.shape(ids[1]).len());
        if a_rank < 2 || b_rank < 2 || rank < 2 {
            return mixes("it is a product of vectors");
        }
        let (m, k) = if matmul.transpose_a { (a_rank - 1, a_rank - 2) } else { (a_rank - 2, a_rank - 1) };
        let (n, other_k) = if matmul.transpose_b { (b_rank - 2, b_rank - 1) } else { (b_rank - 1, b_rank - 2) };
        let rows = match (a, b) {
            (Rows::Axis(axis), _) if axis == k => return mixes("it sums over rows"),
            (_, Rows::Axis(axis)) if axis == other_k => return mixes("it sums over rows"),
            (Rows::Axis(axis), Rows::Same) if axis == m => Rows::Axis(rank - 2),
            (Rows::Same, Rows::Axis(axis)) if axis == n => Rows::Axis(rank - 1),
            (Rows::Axis(axis), _) if axis == m => return mixes("it multiplies rows with rows"),
            (_, Rows::Axis(axis)) if axis == n => return mixes("it multiplies rows with rows"),
            // The remaining case: rows along a dimension before those of the matrices.
            _ => self.broadcast(None, &ids[..2])?,
        };
        self.broadcast(Some(rows), &ids[2..])
    }

    fn gather(&self, axis: usize, data: Rows, indices: Rows) -> Found {
        let indices_rank = self.shape(self.node.inputs[1]).len();
        match (data, indices) {
            (Rows::Same, Rows::Axis(rows)) => Ok(Rows::Axis(axis + rows)),
            (Rows::Axis(rows), Rows::Same) if rows < axis => Ok(Rows::Axis(rows)),
            (Rows::Axis(rows), Rows::Same) if rows > axis => Ok(Rows::Axis(rows - 1 + indices_rank)),
            (Rows::Same, Rows::Same) => Ok(Rows::Same),
            _ => mixes("it chooses among rows"),
        }
    }

    /// The dimension of the rows after a reshape: the numbers of elements before and after that
    /// dimension must not change.
    fn reshape(&self, rows: Rows) -> Found {
        let Rows::Axis(from) = rows else { return Ok(Rows::Same) };
        let (before, after) = (self.shape(self.node.inputs[0]), self.output()?);
        let Some(to) = axis_of(after, self.symbol) else {
            return mixes("it merges the dimension of the rows with another");
        };
        let equal = |a: &[Expr], b: &[Expr]| same(&Expr::product(a), &Expr::product(b));
        if equal(&before[..from], &after[..to]) && equal(&before[from + 1..], &after[to + 1..]) {
            Ok(Rows::Axis(to))
        } else {
            mixes("it mixes elements of different rows")
        }
    }
}
