//! Probabilities of classes from the scores of pairs of classes: a sigmoid for each pair (Platt), and
//! the iteration of Wu, Lin and Weng that makes them agree. libsvm, scikit-learn and ONNX Runtime stop
//! it early, so the number of rounds and the tolerance are part of the result.

use super::super::super::error::LowerResult;
use super::super::super::lowering::Lowering;
use super::operands::{floats, integers};
use crate::nest::{NestArg, NestBuilder};
use crate::tensor_graph::{Op, PointArg, PointOp, ValueId};
use atoll_kgraph::{DType, Expr};

const TY: DType = DType::F32;

/// Most rounds of the iteration.
const ROUNDS: i64 = 100;

/// The iteration ends once no equation is off by more than this, divided by the number of classes.
const TOLERANCE: f64 = 0.005;

/// Least distance of the probability of a pair from 0 and 1.
const MARGIN: f64 = 1e-7;

/// The probabilities `[N, classes]` from the scores of pairs `[N, pairs]`.
pub(super) fn coupled(
    lowering: &mut Lowering,
    name: &str,
    scores: ValueId,
    classes: usize,
    a: &[f32],
    b: &[f32],
) -> LowerResult<ValueId> {
    let pairs = of_pairs(lowering, name, scores, a, b)?;
    let matrix = mirrored(lowering, name, pairs, classes as i64)?;
    let count = lowering.shape(scores)[0].clone();
    let classes = classes as i64;
    let mut nest = NestBuilder::new("svm_coupling", vec![count.clone()]);
    nest.by_rows(1);
    let coupling = Coupling::of(&mut nest, classes);
    coupling.begin(&mut nest);
    coupling.iterate(&mut nest);
    let vector = vec![count.clone(), Expr::Const(classes)];
    let square = vec![count, Expr::Const(classes), Expr::Const(classes)];
    let outputs = vec![(TY, vector.clone()), (TY, square), (TY, vector)];
    Ok(lowering.emit(name, Op::Nest(nest.finish()), &[matrix], outputs)?[0])
}

/// The probability of the first class of each pair, `1 / (1 + exp(a * score + b))`.
fn of_pairs(lowering: &mut Lowering, name: &str, scores: ValueId, a: &[f32], b: &[f32]) -> LowerResult<ValueId> {
    let [a, b] = [("a", a), ("b", b)].map(|(part, numbers)| {
        floats(lowering, &format!("{name}.{part}"), &[numbers.len()], numbers.iter().copied().map(f64::from))
    });
    lowering.pointwise(&format!("{name}.pairs"), &[scores, a, b], TY, |p, x| {
        let product = p.step(PointOp::Mul, TY, &x[..2]);
        let exponent = p.step(PointOp::Add, TY, &[product, x[2]]);
        let exponent = p.step(PointOp::Neg, TY, &[exponent]);
        let share = p.step(PointOp::Sigmoid, TY, &[exponent]);
        p.step(PointOp::Clip, TY, &[share, PointArg::Const(MARGIN), PointArg::Const(1.0 - MARGIN)]);
    })
}

/// The probabilities of the pairs as a matrix `[N, classes, classes]`: of class `i` against `j`, and 0
/// on the diagonal.
fn mirrored(lowering: &mut Lowering, name: &str, pairs: ValueId, classes: i64) -> LowerResult<ValueId> {
    let mut places = vec![0; (classes * classes) as usize];
    let mut pair = 0;
    for i in 0..classes {
        for j in i + 1..classes {
            places[(i * classes + j) as usize] = pair;
            places[(j * classes + i) as usize] = pair;
            pair += 1;
        }
    }
    let places = integers(lowering, &format!("{name}.places"), places);
    let shape = vec![lowering.shape(pairs)[0].clone(), Expr::Const(classes), Expr::Const(classes)];
    let mut nest = NestBuilder::new("svm_pairs", shape.clone());
    nest.by_rows(1);
    let place = nest.point();
    let at = nest.offset(&shape[1..], &place[1..]);
    let own = nest.load(1, DType::I32, &at);
    let row = nest.mul(&place[0], &pair.into());
    let at = nest.add(&row, &own);
    let first = nest.load(0, TY, &at);
    let second = nest.step(PointOp::Sub, TY, &[NestArg::Const(1.0), first.clone()]);
    let is_first = nest.compare(PointOp::Less, DType::I32, &place[1], &place[2]);
    let share = nest.select(TY, &is_first, &first, &second);
    let is_same = nest.compare(PointOp::Equal, DType::I32, &place[1], &place[2]);
    let share = nest.select(TY, &is_same, &NestArg::Const(0.0), &share);
    let at = nest.offset(&shape, &place);
    nest.store(0, &at, &share);
    lowering.emit_one(&format!("{name}.matrix"), Op::Nest(nest.finish()), &[pairs, places], TY, shape)
}

/// The iteration for one row. Operand 0 has the probabilities of pairs `r`. Result 0 has those of the
/// classes, `p`; result 1 the matrix `q` of the equations; result 2 the products `q p`.
struct Coupling {
    classes: i64,
    /// Offset of the row in `p`.
    row: NestArg,
    /// Offset of the row in `r` and `q`.
    square: NestArg,
}

const P: u32 = 0;
const Q: u32 = 1;
const QP: u32 = 2;

impl Coupling {
    fn of(nest: &mut NestBuilder, classes: i64) -> Coupling {
        let point = nest.point();
        let row = nest.mul(&point[0], &classes.into());
        let square = nest.mul(&row, &classes.into());
        Coupling { classes, row, square }
    }

    fn each(&self, nest: &mut NestBuilder, body: impl FnOnce(&mut NestBuilder, &NestArg)) {
        nest.count(&0.into(), &self.classes.into(), body);
    }

    /// Offset of an element of a matrix.
    fn at(&self, nest: &mut NestBuilder, i: &NestArg, j: &NestArg) -> NestArg {
        let start = nest.mul(i, &self.classes.into());
        let start = nest.add(&self.square, &start);
        nest.add(&start, j)
    }

    /// An element of `p` or `q p`.
    fn get(&self, nest: &mut NestBuilder, result: u32, i: &NestArg) -> NestArg {
        let at = nest.add(&self.row, i);
        nest.load_result(result, TY, &at)
    }

    fn set(&self, nest: &mut NestBuilder, result: u32, i: &NestArg, value: &NestArg) {
        let at = nest.add(&self.row, i);
        nest.store(result, &at, value);
    }

    fn q(&self, nest: &mut NestBuilder, i: &NestArg, j: &NestArg) -> NestArg {
        let at = self.at(nest, i, j);
        nest.load_result(Q, TY, &at)
    }

    /// Equal probabilities, and the matrix: `-r[j][i] * r[i][j]`, and on the diagonal the sum of the
    /// squares of `r[j][i]`.
    fn begin(&self, nest: &mut NestBuilder) {
        self.each(nest, |nest, i| {
            self.set(nest, P, i, &NestArg::Const(1.0 / self.classes as f64));
            let diagonal = nest.variable(TY, &NestArg::Const(0.0));
            self.each(nest, |nest, j| {
                let there = self.at(nest, i, j);
                let here = self.at(nest, j, i);
                let [own, other] = [&there, &here].map(|at| nest.load(0, TY, at));
                let square = nest.step(PointOp::Mul, TY, &[other.clone(), other.clone()]);
                nest.accumulate(&diagonal, PointOp::Add, &square);
                let product = nest.step(PointOp::Mul, TY, &[other, own]);
                let product = nest.step(PointOp::Neg, TY, &[product]);
                nest.store(Q, &there, &product);
            });
            let at = self.at(nest, i, i);
            nest.store(Q, &at, &diagonal);
        });
    }

    fn iterate(&self, nest: &mut NestBuilder) {
        let tolerance = NestArg::Const(TOLERANCE / self.classes as f64);
        let searching = nest.variable(DType::Bool, &NestArg::Const(1.0));
        nest.count_while(&0.into(), &ROUNDS.into(), &searching, |nest, _| {
            let total = self.products(nest);
            let worst = nest.variable(TY, &NestArg::Const(0.0));
            self.each(nest, |nest, i| {
                let product = self.get(nest, QP, i);
                let error = nest.step(PointOp::Sub, TY, &[product, total.clone()]);
                let error = nest.step(PointOp::Abs, TY, &[error]);
                nest.accumulate(&worst, PointOp::Max, &error);
            });
            let is_close = nest.compare(PointOp::Less, TY, &worst, &tolerance);
            nest.choose(
                &is_close,
                |nest| nest.set(&searching, &NestArg::Const(0.0)),
                |nest| self.each(nest, |nest, i| self.correct(nest, i, &total)),
            );
        });
    }

    /// Computes `q p`; returns the variable with `p q p`.
    fn products(&self, nest: &mut NestBuilder) -> NestArg {
        let total = nest.variable(TY, &NestArg::Const(0.0));
        self.each(nest, |nest, i| {
            let sum = nest.variable(TY, &NestArg::Const(0.0));
            self.each(nest, |nest, j| {
                let factors = [self.q(nest, i, j), self.get(nest, P, j)];
                let product = nest.step(PointOp::Mul, TY, &factors);
                nest.accumulate(&sum, PointOp::Add, &product);
            });
            self.set(nest, QP, i, &sum);
            let own = self.get(nest, P, i);
            let product = nest.step(PointOp::Mul, TY, &[own, sum]);
            nest.accumulate(&total, PointOp::Add, &product);
        });
        total
    }

    /// Corrects the probability of one class, and scales all so that their sum stays 1. The products
    /// and their sum `total` follow.
    fn correct(&self, nest: &mut NestBuilder, i: &NestArg, total: &NestArg) {
        let (product, diagonal, own) = (self.get(nest, QP, i), self.q(nest, i, i), self.get(nest, P, i));
        let off = nest.step(PointOp::Sub, TY, &[total.clone(), product.clone()]);
        let change = nest.step(PointOp::Div, TY, &[off, diagonal.clone()]);
        let corrected = nest.step(PointOp::Add, TY, &[own, change.clone()]);
        self.set(nest, P, i, &corrected);
        let whole = nest.step(PointOp::Add, TY, &[change.clone(), NestArg::Const(1.0)]);
        let own = nest.step(PointOp::Mul, TY, &[change.clone(), diagonal]);
        let twice = nest.step(PointOp::Add, TY, &[product.clone(), product]);
        let growth = nest.step(PointOp::Add, TY, &[own, twice]);
        let growth = nest.step(PointOp::Mul, TY, &[change.clone(), growth]);
        nest.accumulate(total, PointOp::Add, &growth);
        nest.accumulate(total, PointOp::Div, &whole);
        nest.accumulate(total, PointOp::Div, &whole);
        self.each(nest, |nest, j| {
            let factors = [change.clone(), self.q(nest, i, j)];
            let share = nest.step(PointOp::Mul, TY, &factors);
            let product = self.get(nest, QP, j);
            let product = nest.step(PointOp::Add, TY, &[product, share]);
            let product = nest.step(PointOp::Div, TY, &[product, whole.clone()]);
            self.set(nest, QP, j, &product);
            let other = self.get(nest, P, j);
            let other = nest.step(PointOp::Div, TY, &[other, whole.clone()]);
            self.set(nest, P, j, &other);
        });
    }
}
