//! Support vector machines. A nest evaluates the kernel function for every row and support vector; a
//! second one sums them with their coefficients, once for each pair of classes. The pairs vote for
//! the label.

use super::super::super::call::Call;
use super::super::super::error::{LowerResult, invalid, unsupported};
use super::super::super::lowering::Lowering;
use super::coupling::coupled;
use super::labels::Labels;
use super::operands::{floats, integers, rows};
use super::scores::{Transform, best_label, negative, two_columns};
use crate::nest::{NestArg, NestBuilder};
use crate::tensor_graph::{Op, PointArg, PointOp, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

const TY: DType = DType::F32;

/// Columns of a pair of classes in its table. For each of both classes: its first support vector, the
/// one after its last, and the start of the row of coefficients.
const COLUMNS: i64 = 6;

/// `kernel_type` with its numbers.
#[derive(Clone, Copy, Debug)]
enum Kernel {
    Linear,
    Poly { gamma: f64, coef0: f64, degree: f64 },
    Rbf { gamma: f64 },
    Sigmoid { gamma: f64, coef0: f64 },
}

impl Kernel {
    fn of(call: &Call<'_>) -> LowerResult<Kernel> {
        let parameters = numbers(call, "kernel_params")?;
        let [gamma, coef0, degree] = match parameters[..] {
            [] => [0.0; 3],
            [gamma, coef0, degree] => [gamma, coef0, degree].map(f64::from),
            _ => {
                return invalid(format!("it has {} kernel_params; it needs gamma, coef0 and degree", parameters.len()));
            }
        };
        Ok(match call.string("kernel_type", "LINEAR")?.as_str() {
            "LINEAR" => Kernel::Linear,
            "POLY" => Kernel::Poly { gamma, coef0, degree },
            "RBF" => Kernel::Rbf { gamma },
            "SIGMOID" => Kernel::Sigmoid { gamma, coef0 },
            other => return invalid(format!("its attribute kernel_type is {other:?}, which ONNX does not define")),
        })
    }

    /// What one feature contributes to the sum of a row and a support vector.
    fn term(self, nest: &mut NestBuilder, x: &NestArg, vector: &NestArg) -> NestArg {
        if !matches!(self, Kernel::Rbf { .. }) {
            return nest.step(PointOp::Mul, TY, &[x.clone(), vector.clone()]);
        }
        let distance = nest.step(PointOp::Sub, TY, &[x.clone(), vector.clone()]);
        nest.step(PointOp::Mul, TY, &[distance.clone(), distance])
    }

    /// The kernel function of the sum of all terms.
    fn finish(self, nest: &mut NestBuilder, sum: NestArg) -> NestArg {
        let mut scaled = |gamma: f64, coef0: f64| {
            let product = nest.step(PointOp::Mul, TY, &[sum.clone(), NestArg::Const(gamma)]);
            nest.step(PointOp::Add, TY, &[product, NestArg::Const(coef0)])
        };
        match self {
            Kernel::Linear => sum,
            Kernel::Rbf { gamma } => {
                let exponent = scaled(-gamma, 0.0);
                nest.step(PointOp::Exp, TY, &[exponent])
            }
            Kernel::Poly { gamma, coef0, degree } => {
                let base = scaled(gamma, coef0);
                nest.step(PointOp::Pow, TY, &[base, NestArg::Const(degree)])
            }
            Kernel::Sigmoid { gamma, coef0 } => {
                let argument = scaled(gamma, coef0);
                nest.step(PointOp::Tanh, TY, &[argument])
            }
        }
    }
}

/// The support vectors of a model, and the rows that they are compared with.
struct Machine<'c, 'm> {
    call: &'c Call<'m>,
    kernel: Kernel,
    x: ValueId,
    /// Number of rows.
    count: Expr,
    features: usize,
    /// Values of all vectors, one after the other.
    vectors: Vec<f32>,
}

impl<'c, 'm> Machine<'c, 'm> {
    /// The machine with `vectors` of `count` support vectors.
    fn of(
        lowering: &mut Lowering,
        call: &'c Call<'m>,
        kernel: Kernel,
        count: usize,
        vectors: Vec<f32>,
    ) -> LowerResult<Self> {
        let (x, [rows, features]) = rows(lowering, call)?;
        let known = features.as_const().and_then(|f| usize::try_from(f).ok());
        let features = known.ok_or_else(|| lowering.open_size("its number of features", &features))?;
        if features == 0 || count.checked_mul(features) != Some(vectors.len()) {
            let numbers = vectors.len();
            return invalid(format!("it has {numbers} numbers for {count} vectors of {features} features"));
        }
        let x = lowering.cast(&format!("{}.x", call.name), x, TY)?;
        Ok(Machine { call, kernel, x, count: rows, features, vectors })
    }

    fn name(&self, part: &str) -> String {
        format!("{}.{part}", self.call.name)
    }

    /// The kernel function of every row and vector, `[N, vectors]`.
    fn kernels(&self, lowering: &mut Lowering) -> LowerResult<ValueId> {
        let vectors = self.vectors.len() / self.features;
        let numbers = self.vectors.iter().copied().map(f64::from);
        let table = floats(lowering, &self.name("vectors"), &[vectors, self.features], numbers);
        let width = NestArg::from(self.features as i64);
        let shape = vec![self.count.clone(), Expr::Const(vectors as i64)];
        let mut nest = NestBuilder::new("svm_kernels", shape.clone());
        nest.by_rows(1);
        let place = nest.point();
        let sum = nest.variable(TY, &NestArg::Const(0.0));
        let [row, vector] = [0, 1].map(|axis| nest.mul(&place[axis], &width));
        nest.count(&0.into(), &width, |nest, feature| {
            let at = nest.add(&row, feature);
            let x = nest.load(0, TY, &at);
            let at = nest.add(&vector, feature);
            let value = nest.load(1, TY, &at);
            let term = self.kernel.term(nest, &x, &value);
            nest.accumulate(&sum, PointOp::Add, &term);
        });
        let value = self.kernel.finish(&mut nest, sum);
        let at = nest.offset(&shape, &place);
        nest.store(0, &at, &value);
        lowering.emit_one(&self.name("kernels"), Op::Nest(nest.finish()), &[self.x, table], TY, shape)
    }

    /// For each pair in `table`: the sum of the kernels of its vectors with their coefficients, and its
    /// `rho`. `[N, pairs]`. Sums are in F64, as in ONNX Runtime.
    fn sums(
        &self,
        lowering: &mut Lowering,
        table: Vec<i64>,
        coefficients: &[f32],
        rho: &[f32],
    ) -> LowerResult<ValueId> {
        let kernels = self.kernels(lowering)?;
        let vectors = self.vectors.len() / self.features;
        let pairs = rho.len();
        let name = |part: &str| self.name(part);
        let table = integers(lowering, &name("pairs"), table);
        let coefficients =
            floats(lowering, &name("coefficients"), &[coefficients.len()], coefficients.iter().copied().map(f64::from));
        let rho = floats(lowering, &name("rho"), &[pairs], rho.iter().copied().map(f64::from));
        let shape = vec![self.count.clone(), Expr::Const(pairs as i64)];
        let mut nest = NestBuilder::new("svm_sums", shape.clone());
        nest.by_rows(1);
        let place = nest.point();
        let row = nest.mul(&place[0], &(vectors as i64).into());
        let start = nest.load(3, TY, &place[1]);
        let total = nest.cast(&start, DType::F64);
        let total = nest.variable(DType::F64, &total);
        for class in 0..2 {
            let [first, end, offset] = [0, 1, 2].map(|column| pair(&mut nest, &place[1], 3 * class + column));
            nest.count(&first, &end, |nest, vector| {
                let at = nest.add(&offset, vector);
                let coefficient = nest.load(2, TY, &at);
                let at = nest.add(&row, vector);
                let kernel = nest.load(0, TY, &at);
                let factors = [coefficient, kernel].map(|factor| nest.cast(&factor, DType::F64));
                let product = nest.step(PointOp::Mul, DType::F64, &factors);
                nest.accumulate(&total, PointOp::Add, &product);
            });
        }
        let result = nest.cast(&total, TY);
        let at = nest.offset(&shape, &place);
        nest.store(0, &at, &result);
        let inputs = [kernels, table, coefficients, rho];
        lowering.emit_one(&name("sums"), Op::Nest(nest.finish()), &inputs, TY, shape)
    }
}

/// A column of a pair in its table.
fn pair(nest: &mut NestBuilder, pair: &NestArg, column: i64) -> NestArg {
    let row = nest.mul(pair, &COLUMNS.into());
    let at = nest.add(&row, &column.into());
    nest.load(1, DType::I32, &at)
}

/// An attribute of numbers; none if it is missing.
fn numbers(call: &Call<'_>, name: &str) -> LowerResult<Vec<f32>> {
    Ok(call.floats(name)?.unwrap_or_default())
}

/// One number per row, or for a machine of one class whether the row belongs to it: 1 or -1.
pub(in super::super) fn svm_regressor(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (coefficients, vectors) = (numbers(call, "coefficients")?, numbers(call, "support_vectors")?);
    let rho = numbers(call, "rho")?;
    let count = usize::try_from(call.int("n_supports", 0)?).unwrap_or(0);
    if Transform::of(call)? != Transform::None {
        return unsupported("a post_transform; ONNX Runtime ignores it");
    }
    let [rho] = rho[..] else { return invalid(format!("it has {} numbers in rho; it needs one", rho.len())) };
    let sums = if count == 0 {
        // Without support vectors, the coefficients are those of the features.
        let machine = Machine::of(lowering, call, Kernel::Linear, 1, coefficients)?;
        machine.sums(lowering, vec![0, 1, 0, 0, 0, 0], &[1.0], &[rho])?
    } else {
        if coefficients.len() != count {
            return invalid(format!("it has {} coefficients for {count} support vectors", coefficients.len()));
        }
        let machine = Machine::of(lowering, call, Kernel::of(call)?, count, vectors)?;
        machine.sums(lowering, vec![0, count as i64, 0, 0, 0, 0], &coefficients, &[rho])?
    };
    if !call.flag("one_class", false)? {
        return Ok(vec![sums]);
    }
    Ok(vec![lowering.pointwise(&call.name, &[sums], TY, |p, x| {
        let is_inside = p.step(PointOp::Greater, TY, &[x[0], PointArg::Const(0.0)]);
        p.step(PointOp::Where, TY, &[is_inside, PointArg::Const(1.0), PointArg::Const(-1.0)]);
    })?])
}

/// Labels, and scores: those of the pairs of classes, or probabilities of the classes if the model has
/// `prob_a` and `prob_b`.
pub(in super::super) fn svm_classifier(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let labels = Labels::of(lowering, call, "classlabels_ints", "classlabels_strings")?;
    let classes = labels.values.len();
    if classes < 2 {
        return unsupported(format!("{classes} labels of classes; 2 are needed"));
    }
    let sizes = sizes(call)?;
    if sizes.iter().sum::<usize>() == 0 {
        return linear_machines(lowering, call, &labels);
    }
    if sizes.len() != classes {
        return invalid(format!("it has vectors_per_class of {} classes for {classes} labels", sizes.len()));
    }
    let sums = pair_sums(lowering, call, &sizes)?;
    let votes = votes(lowering, call, sums, classes)?;
    let label = best_label(lowering, &format!("{}.label", call.name), votes, &labels)?;
    let transform = Transform::of(call)?;
    let (a, b) = (numbers(call, "prob_a")?, numbers(call, "prob_b")?);
    let pairs = classes * (classes - 1) / 2;
    let scores = match (a.len(), b.len()) {
        (0, 0) if classes == 2 => return Ok(vec![label, both_sides(lowering, call, sums, transform)?]),
        (0, 0) => sums,
        (found_a, found_b) if found_a == pairs && found_b == pairs => {
            coupled(lowering, &format!("{}.probabilities", call.name), sums, classes, &a, &b)?
        }
        (found_a, found_b) => {
            return invalid(format!("it has {found_a} prob_a and {found_b} prob_b for {pairs} pairs of classes"));
        }
    };
    Ok(vec![label, transform.apply(lowering, &call.name, scores)?])
}

/// `vectors_per_class`
fn sizes(call: &Call<'_>) -> LowerResult<Vec<usize>> {
    let numbers = call.ints("vectors_per_class")?.unwrap_or_default();
    let sizes: Option<Vec<usize>> =
        numbers.iter().map(|size| u32::try_from(*size).ok().and_then(|size| usize::try_from(size).ok())).collect();
    sizes.map_or_else(|| invalid(format!("its vectors_per_class are {numbers:?}")), Ok)
}

/// The scores of the pairs of classes: positive for the first class of the pair.
fn pair_sums(lowering: &mut Lowering, call: &Call<'_>, sizes: &[usize]) -> LowerResult<ValueId> {
    let (coefficients, vectors) = (numbers(call, "coefficients")?, numbers(call, "support_vectors")?);
    let rho = numbers(call, "rho")?;
    let (classes, count) = (sizes.len(), sizes.iter().sum::<usize>());
    let pairs = classes * (classes - 1) / 2;
    if (classes - 1).checked_mul(count) != Some(coefficients.len()) || rho.len() != pairs {
        let (c, r) = (coefficients.len(), rho.len());
        return invalid(format!(
            "it has {c} coefficients and {r} numbers in rho for {count} support vectors of {classes} classes"
        ));
    }
    let machine = Machine::of(lowering, call, Kernel::of(call)?, count, vectors)?;
    machine.sums(lowering, table(sizes, count), &coefficients, &rho)
}

/// The table of pairs. The coefficients have a row of `count` numbers less than there are classes: row
/// `b - 1` has those of a class `a < b` against `b`, row `a` those of `b` against `a`.
fn table(sizes: &[usize], count: usize) -> Vec<i64> {
    let mut ends = Vec::with_capacity(sizes.len());
    let mut end = 0;
    for size in sizes {
        end += size;
        ends.push(end);
    }
    let mut table = Vec::new();
    for a in 0..sizes.len() {
        for b in a + 1..sizes.len() {
            for (class, row) in [(a, b - 1), (b, a)] {
                table.extend([ends[class] - sizes[class], ends[class], row * count].map(|number| number as i64));
            }
        }
    }
    table
}

/// How many pairs each class wins, `[N, classes]`.
fn votes(lowering: &mut Lowering, call: &Call<'_>, sums: ValueId, classes: usize) -> LowerResult<ValueId> {
    let mut winners = Vec::new();
    for a in 0..classes as i64 {
        for b in a + 1..classes as i64 {
            winners.extend([a, b]);
        }
    }
    let pairs = winners.len() as i64 / 2;
    let winners = integers(lowering, &format!("{}.winners", call.name), winners);
    let count = lowering.shape(sums)[0].clone();
    let shape = vec![count.clone(), Expr::Const(classes as i64)];
    let mut nest = NestBuilder::new("svm_votes", shape.clone());
    nest.by_rows(1);
    let place = nest.point();
    let won = nest.variable(TY, &NestArg::Const(0.0));
    let row = nest.mul(&place[0], &pairs.into());
    nest.count(&0.into(), &pairs.into(), |nest, pair| {
        let at = nest.add(&row, pair);
        let score = nest.load(0, TY, &at);
        let is_first = nest.compare(PointOp::Greater, TY, &score, &NestArg::Const(0.0));
        let first_at = nest.mul(pair, &2.into());
        let second_at = nest.add(&first_at, &1.into());
        let [first, second] = [first_at, second_at].map(|at| nest.load(1, DType::I32, &at));
        let winner = nest.select(DType::I32, &is_first, &first, &second);
        let is_mine = nest.compare(PointOp::Equal, DType::I32, &winner, &place[1]);
        let vote = nest.cast(&is_mine, TY);
        nest.accumulate(&won, PointOp::Add, &vote);
    });
    let at = nest.offset(&shape, &place);
    nest.store(0, &at, &won);
    lowering.emit_one(&format!("{}.votes", call.name), Op::Nest(nest.finish()), &[sums, winners], TY, shape)
}

/// The scores of two classes without probabilities: the score of the pair, with both signs.
fn both_sides(lowering: &mut Lowering, call: &Call<'_>, sums: ValueId, transform: Transform) -> LowerResult<ValueId> {
    if !matches!(transform, Transform::None | Transform::Logistic) {
        return unsupported(format!(
            "post_transform = {} for 2 classes without probabilities, where ONNX Runtime differs from ONNX's \
             reference; export with probabilities or with NONE",
            call.string("post_transform", "NONE")?
        ));
    }
    let both = two_columns(lowering, &format!("{}.both", call.name), sums, negative)?;
    transform.apply(lowering, &call.name, both)
}

/// Without support vectors: a row of coefficients for each class.
fn linear_machines(lowering: &mut Lowering, call: &Call<'_>, labels: &Labels) -> Results {
    let classes = labels.values.len();
    if classes == 2 {
        return unsupported(
            "2 classes without support vectors, where ONNX Runtime differs from ONNX's reference; \
             export a LinearClassifier",
        );
    }
    let rho = numbers(call, "rho")?;
    let Some(first) = rho.first().copied() else { return invalid("it has no rho") };
    let coefficients = numbers(call, "coefficients")?;
    let machine = Machine::of(lowering, call, Kernel::Linear, classes, coefficients)?;
    let scores = machine.kernels(lowering)?;
    let scores = lowering.pointwise(&format!("{}.scores", call.name), &[scores], TY, |p, x| {
        p.step(PointOp::Add, TY, &[x[0], PointArg::Const(f64::from(first))]);
    })?;
    let label = best_label(lowering, &format!("{}.label", call.name), scores, labels)?;
    Ok(vec![label, Transform::of(call)?.apply(lowering, &call.name, scores)?])
}
