//! What becomes of each operator: mostly one kernel node; the exceptions are here.

use super::{Scheduler, Tensor, WorkKind};
use crate::error::CodegenError;
use crate::strides;
use atoll_frontend::tensor_graph::{Direction, MatMul, Op, PointProgram, TensorNode, ValueId};
use atoll_kgraph::Expr;
use std::sync::Arc;

/// Operands of a concatenation that one kernel takes: their addresses and sizes fit the parameter block, and the chain that selects one stays short.
const CONCAT_OPERANDS_MAX: usize = 12;

impl Scheduler<'_> {
    /// Adds the nodes of one operator.
    pub(super) fn node(&mut self, node: &TensorNode) -> Result<(), CodegenError> {
        match &node.op {
            Op::Reshape => Ok(()),
            Op::MatMul(product) => self.matmul(node, product),
            Op::Concat { axis } => self.concat(node, *axis),
            Op::Lstm { hidden, direction } => self.lstm(node, *hidden, *direction),
            op => {
                let (inputs, outputs) = (self.tensors(&node.inputs)?, self.tensors(&node.outputs)?);
                self.push_kernel(&node.name, WorkKind::Op(op.clone()), inputs, outputs);
                Ok(())
            }
        }
    }

    fn tensors(&mut self, values: &[ValueId]) -> Result<Vec<Tensor>, CodegenError> {
        values.iter().map(|&v| self.tensor(v)).collect()
    }

    /// A constant operand stored transposed is turned at compile time: kernels then read rows of `a` along k and rows of `b` along n.
    fn matmul(&mut self, node: &TensorNode, product: &MatMul) -> Result<(), CodegenError> {
        let mut inputs = self.tensors(&node.inputs)?;
        let outputs = self.tensors(&node.outputs)?;
        let mut product = product.clone();
        for (index, transposed) in [&mut product.transpose_a, &mut product.transpose_b].into_iter().enumerate() {
            if *transposed && let Some(turned) = self.turned(node.inputs[index], &inputs[index])? {
                inputs[index] = turned;
                *transposed = false;
            }
        }
        self.push_kernel(&node.name, WorkKind::Op(Op::MatMul(product)), inputs, outputs);
        Ok(())
    }

    /// The constant with its two innermost axes exchanged; `None` where the value is not constant.
    fn turned(&mut self, value: ValueId, tensor: &Tensor) -> Result<Option<Tensor>, CodegenError> {
        let Some(content) = self.storage.content(value) else { return Ok(None) };
        let [outer @ .., rows, columns] = &tensor.shape[..] else { return Ok(None) };
        let (Some(rows), Some(columns)) = (rows.as_const(), columns.as_const()) else { return Ok(None) };
        let shape: Vec<Expr> = outer.iter().cloned().chain([Expr::Const(columns), Expr::Const(rows)]).collect();
        let bytes = tensor.element_bytes() as usize;
        let make = || transpose_matrices(&content, rows as usize, columns as usize, bytes);
        let buffer = self.storage.derived(value, "transposed", &shape, make)?;
        Ok(Some(Tensor { buffer, shape, ..tensor.clone() }))
    }

    /// Concatenation: nodes of at most [`CONCAT_OPERANDS_MAX`] operands, each writing its slice.
    fn concat(&mut self, node: &TensorNode, axis: usize) -> Result<(), CodegenError> {
        let output = self.tensors(&node.outputs)?.remove(0);
        let mut first = Expr::Const(0);
        for (part, operands) in node.inputs.chunks(CONCAT_OPERANDS_MAX).enumerate() {
            let inputs = self.tensors(operands)?;
            let length = inputs.iter().map(|t| t.shape[axis].clone()).fold(Expr::Const(0), |sum, d| sum + d);
            let name = if part == 0 { node.name.clone() } else { format!("{}/part{part}", node.name) };
            self.push_kernel(&name, WorkKind::ConcatPart { axis, first: first.clone() }, inputs, vec![output.clone()]);
            first = first + length;
        }
        Ok(())
    }

    /// LSTM: the input products of all steps as one matrix product per direction, then the recurrence.
    fn lstm(&mut self, node: &TensorNode, hidden: usize, direction: Direction) -> Result<(), CodegenError> {
        let inputs = self.tensors(&node.inputs)?;
        let outputs = self.tensors(&node.outputs)?;
        let [x, w, r, bias, h0, c0] = <[Tensor; 6]>::try_from(inputs)
            .map_err(|given| CodegenError::inconsistent(format!("an LSTM has six operands, not {}", given.len())))?;
        let directions = if direction == Direction::Bidirectional { 2 } else { 1 };
        let gates_count = Expr::Const(4 * hidden as i64);
        let (steps, batch, features) = (x.shape[0].clone(), x.shape[1].clone(), x.shape[2].clone());

        // [D, 4H, I] read as one matrix [D * 4H, I].
        let rows = gates_count.clone() * directions;
        let flat = |t: &Tensor, shape: Vec<Expr>| Tensor { shape, ..t.clone() };
        let gates_shape = vec![steps * batch, rows.clone()];
        let gates_name = format!("{}/gates", node.name);
        let gates = Tensor {
            buffer: self.storage.temporary(&gates_name, x.dtype, &gates_shape),
            offset: Expr::Const(0),
            dtype: x.dtype,
            shape: gates_shape.clone(),
        };
        let weights = flat(&w, vec![rows.clone(), features.clone()]);
        let turned = self.turned(node.inputs[1], &weights)?;
        let product = MatMul { transpose_a: false, transpose_b: turned.is_none(), epilogue: PointProgram::default() };
        let flat_x = flat(&x, vec![gates_shape[0].clone(), features]);
        self.push_kernel(&gates_name, WorkKind::Op(Op::MatMul(product)), vec![flat_x, turned.unwrap_or(weights)], vec![gates.clone()]);

        let r = match self.turned(node.inputs[2], &r)? {
            Some(turned) => turned,
            None => self.transpose_node(&format!("{}/r", node.name), &r),
        };
        self.push_kernel(&node.name, WorkKind::Recurrence { hidden, direction }, vec![gates, r, bias, h0, c0], outputs);
        Ok(())
    }

    /// A node that exchanges the two innermost axes of a tensor that is not constant.
    fn transpose_node(&mut self, name: &str, tensor: &Tensor) -> Tensor {
        let rank = tensor.shape.len();
        let mut permutation: Vec<usize> = (0..rank).collect();
        permutation.swap(rank - 2, rank - 1);
        let shape = strides::permuted(&tensor.shape, &permutation);
        let result = Tensor { buffer: self.storage.temporary(name, tensor.dtype, &shape), shape, ..tensor.clone() };
        self.push_kernel(name, WorkKind::Op(Op::Transpose { permutation }), vec![tensor.clone()], vec![result.clone()]);
        result
    }
}

/// Exchanges rows and columns of every matrix in `content`.
fn transpose_matrices(content: &[u8], rows: usize, columns: usize, bytes: usize) -> Arc<[u8]> {
    let mut turned = vec![0u8; content.len()];
    let matrix_bytes = rows * columns * bytes;
    if matrix_bytes == 0 {
        return turned.into();
    }
    for (from, to) in content.chunks_exact(matrix_bytes).zip(turned.chunks_exact_mut(matrix_bytes)) {
        for (row, line) in from.chunks_exact(columns * bytes).enumerate() {
            for (column, element) in line.chunks_exact(bytes).enumerate() {
                let at = (column * rows + row) * bytes;
                to[at..at + bytes].copy_from_slice(element);
            }
        }
    }
    turned.into()
}
