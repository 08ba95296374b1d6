//! Operators on tensors of sizes: evaluates the arithmetic that exporters apply to shapes, over
//! symbols instead of numbers.

use crate::reference;
use crate::size::{at_least, canonical, divide_exact, larger, same, smaller};
use crate::tensor::{Data, Tensor, is_float};
use crate::tensor_graph::{Op, PointArg, PointOp, PointProgram, PointStep, Reduce, ReduceKind};
use atoll_kgraph::{DType, Expr, SymbolSpec};

/// An operand of sizes; its elements are row-major.
pub(super) struct Operand {
    pub(super) shape: Vec<usize>,
    pub(super) values: Vec<Expr>,
}

/// The elements of the result; `None` if they cannot be expressed.
pub(super) fn evaluate(op: &Op, operands: &[Operand], shape: &[usize], symbols: &[SymbolSpec]) -> Option<Vec<Expr>> {
    match op {
        Op::Pointwise(program) => pointwise(program, operands, shape, symbols),
        Op::Reduce(reduce) => reduce_all(reduce, operands.first()?, shape),
        Op::Gather { .. } | Op::Transpose { .. } | Op::Reshape | Op::Slice { .. } | Op::Concat { .. } => {
            movement(op, operands, shape)
        }
        _ => None,
    }
}

/// Evaluates operators that move elements, by moving the indices of the elements.
fn movement(op: &Op, operands: &[Operand], shape: &[usize]) -> Option<Vec<Expr>> {
    let mut all: Vec<&Expr> = Vec::new();
    let mut tensors = Vec::with_capacity(operands.len());
    for (position, operand) in operands.iter().enumerate() {
        let is_index = matches!(op, Op::Gather { .. }) && position == 1;
        let numbers: Vec<i64> = if is_index {
            operand.values.iter().map(Expr::as_const).collect::<Option<_>>()?
        } else {
            (all.len() as i64..(all.len() + operand.values.len()) as i64).collect()
        };
        if !is_index {
            all.extend(&operand.values);
        }
        tensors.push(Tensor::ints(DType::I64, operand.shape.clone(), numbers));
    }
    let result =
        reference::evaluate(op, &tensors.iter().collect::<Vec<_>>(), &[(DType::I64, shape.to_vec())], &[]).ok()?;
    let Data::Int(numbers) = &result.first()?.data else { return None };
    numbers.iter().map(|n| all.get(*n as usize).map(|e| (*e).clone())).collect()
}

fn reduce_all(reduce: &Reduce, operand: &Operand, shape: &[usize]) -> Option<Vec<Expr>> {
    if shape.iter().product::<usize>() != 1 {
        return None;
    }
    let fold = |f: fn(Expr, Expr) -> Expr| operand.values.iter().cloned().reduce(f).map(|e| vec![e]);
    match reduce.kind {
        ReduceKind::Prod => Some(vec![Expr::product(&operand.values)]),
        ReduceKind::Sum => fold(|a, b| a + b),
        ReduceKind::Max => fold(|a, b| a.max(b)),
        ReduceKind::Min => fold(|a, b| a.min(b)),
        _ => None,
    }
}

fn pointwise(
    program: &PointProgram,
    operands: &[Operand],
    shape: &[usize],
    symbols: &[SymbolSpec],
) -> Option<Vec<Expr>> {
    let indices: Vec<Vec<usize>> = operands.iter().map(|o| reference::broadcast_indices(&o.shape, shape)).collect();
    (0..shape.iter().product())
        .map(|element| {
            let inputs: Vec<&Expr> = operands.iter().zip(&indices).map(|(o, at)| &o.values[at[element]]).collect();
            let mut results: Vec<Expr> = Vec::new();
            for step in &program.steps {
                let args =
                    step.args.iter().map(|arg| argument(arg, &inputs, &results)).collect::<Option<Vec<Expr>>>()?;
                results.push(canonical(&run_step(step, args, symbols)?));
            }
            results.pop().or_else(|| inputs.first().map(|e| (*e).clone()))
        })
        .collect()
}

fn argument(arg: &PointArg, inputs: &[&Expr], results: &[Expr]) -> Option<Expr> {
    match arg {
        PointArg::Input(i) => inputs.get(*i as usize).map(|e| (*e).clone()),
        PointArg::Step(i) => results.get(*i as usize).cloned(),
        PointArg::Const(number) => {
            (number.trunc() == *number && number.abs() < 9e15).then_some(Expr::Const(*number as i64))
        }
    }
}

/// Evaluates one step. Float steps are allowed as long as values are integers, as in
/// `Cast(float) -> Mul(2.0) -> Floor -> Cast(int64)`. Booleans are 0 and 1.
fn run_step(step: &PointStep, args: Vec<Expr>, symbols: &[SymbolSpec]) -> Option<Expr> {
    let zero = || Expr::Const(0);
    let mut operands = args.into_iter();
    let a = operands.next()?;
    match step.op {
        PointOp::Identity | PointOp::Floor | PointOp::Ceil | PointOp::Round => return Some(a),
        PointOp::Cast if step.ty == DType::Bool => return Some(Expr::Const(1) - equal(&a, &zero(), symbols)),
        PointOp::Cast => return Some(a),
        PointOp::Neg => return Some(zero() - a),
        PointOp::Abs => return Some(larger(a.clone(), zero() - a, symbols)),
        PointOp::Relu => return Some(larger(a, zero(), symbols)),
        PointOp::Sign => return Some(positive(&a, symbols) - positive(&(zero() - a), symbols)),
        PointOp::Not => return Some(Expr::Const(1) - a),
        _ => {}
    }
    let b = operands.next()?;
    match step.op {
        PointOp::Add => Some(a + b),
        PointOp::Sub => Some(a - b),
        PointOp::Mul => Some(a * b),
        PointOp::Div => divide(a, b, step.ty, symbols),
        PointOp::Mod if at_least(&b, &Expr::Const(1), symbols) => Some(a.clone() - a.floor_div(b.clone()) * b),
        PointOp::Min => Some(smaller(a, b, symbols)),
        PointOp::Max => Some(larger(a, b, symbols)),
        PointOp::Clip => Some(smaller(larger(a, b, symbols), operands.next()?, symbols)),
        PointOp::Equal => Some(equal(&a, &b, symbols)),
        PointOp::Less => Some(positive(&(b - a), symbols)),
        PointOp::Greater => Some(positive(&(a - b), symbols)),
        PointOp::LessOrEqual => Some(Expr::Const(1) - positive(&(a - b), symbols)),
        PointOp::GreaterOrEqual => Some(Expr::Const(1) - positive(&(b - a), symbols)),
        PointOp::And => Some(a * b),
        PointOp::Or => Some(larger(a, b, symbols)),
        PointOp::Xor => Some(equal(&(a + b), &Expr::Const(1), symbols)),
        PointOp::Where => {
            let otherwise = operands.next()?;
            Some(match a.as_const() {
                Some(0) => otherwise,
                Some(_) => b,
                None => a.clone() * b + (Expr::Const(1) - a) * otherwise,
            })
        }
        _ => None,
    }
}

/// A quotient. ONNX truncates, which equals rounding down if nothing is negative. A quotient of
/// floats must be exact.
fn divide(a: Expr, b: Expr, ty: DType, symbols: &[SymbolSpec]) -> Option<Expr> {
    if let Some(exact) = divide_exact(&a, &b) {
        return Some(exact);
    }
    let positive = at_least(&a, &Expr::Const(0), symbols) && at_least(&b, &Expr::Const(1), symbols);
    (positive && !is_float(ty)).then(|| a.floor_div(b))
}

/// 1 if a size is positive, else 0.
fn positive(size: &Expr, symbols: &[SymbolSpec]) -> Expr {
    smaller(larger(canonical(size), Expr::Const(0), symbols), Expr::Const(1), symbols)
}

/// 1 if two sizes are equal, else 0.
fn equal(a: &Expr, b: &Expr, symbols: &[SymbolSpec]) -> Expr {
    if same(a, b) {
        return Expr::Const(1);
    }
    Expr::Const(1) - positive(&(a.clone() - b.clone()), symbols) - positive(&(b.clone() - a.clone()), symbols)
}
