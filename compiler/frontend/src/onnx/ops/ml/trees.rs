//! Ensembles of decision trees: one nest walks every tree for every row, another one sums the
//! weights of the leaves for each target. Thresholds and weights are constants.

use super::super::super::call::Call;
use super::super::super::error::{LowerResult, invalid, unsupported};
use super::super::super::lowering::Lowering;
use super::super::pieces::{part, point};
use super::forest::{Branch, Forest, Mode, Node, optional_numbers};
use super::labels::Labels;
use super::operands::{floats, rows};
use super::scores::{Transform, best_label, complement, label_above, negative, two_columns};
use crate::nest::{NestArg, NestBuilder};
use crate::tensor::Tensor;
use crate::tensor_graph::{Op, PointOp, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// Columns of a node in its table: feature (-1 for a leaf), mode, child if true, child if false,
/// whether a NaN takes the true branch, first member of its set, number of members. For a leaf, the
/// two child columns hold the index and the number of its entries.
const COLUMNS: i64 = 7;

/// How the weights of the leaves are combined per target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aggregate {
    Sum,
    Average,
    Min,
    Max,
}

pub(in super::super) fn tree_ensemble_regressor(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let forest = Forest::by_numbers(call, "target")?;
    let aggregate = match call.string("aggregate_function", "SUM")?.as_str() {
        "SUM" => Aggregate::Sum,
        "AVERAGE" => Aggregate::Average,
        "MIN" => Aggregate::Min,
        "MAX" => Aggregate::Max,
        other => return invalid(format!("its attribute aggregate_function is {other:?}, which ONNX does not define")),
    };
    let targets = call.int("n_targets", 1)?;
    let scores = Ensemble::of(lowering, call, forest)?.scores(lowering, call, targets, aggregate)?;
    let scores = lowering.cast(&format!("{}.scores", call.name), scores, DType::F32)?;
    let scores = add_base(lowering, call, scores, targets)?;
    Ok(vec![Transform::of(call)?.apply(lowering, &call.name, scores)?])
}

/// `TreeEnsemble`; its result has the type of its operand.
pub(in super::super) fn tree_ensemble(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let forest = Forest::by_places(call)?;
    let aggregate = match call.int("aggregate_function", 1)? {
        0 => Aggregate::Average,
        1 => Aggregate::Sum,
        2 => Aggregate::Min,
        3 => Aggregate::Max,
        other => return invalid(format!("its aggregate_function is {other}, which ONNX does not define")),
    };
    let transform = match call.int("post_transform", 0)? {
        0 => Transform::None,
        1 => Transform::Softmax,
        2 => Transform::Logistic,
        3 => Transform::SoftmaxZero,
        4 => Transform::Probit,
        other => return invalid(format!("its post_transform is {other}, which ONNX does not define")),
    };
    let dtype = lowering.dtype(call.input(0)?);
    let scores = Ensemble::of(lowering, call, forest)?.scores(lowering, call, call.int("n_targets", 1)?, aggregate)?;
    if transform == Transform::None {
        return Ok(vec![lowering.cast(&call.name, scores, dtype)?]);
    }
    let scores = lowering.cast(&format!("{}.scores", call.name), scores, DType::F32)?;
    let scores = transform.apply(lowering, &format!("{}.transformed", call.name), scores)?;
    Ok(vec![lowering.cast(&call.name, scores, dtype)?])
}

/// Labels and scores: the best class of each row, except as described at [`two_classes`].
pub(in super::super) fn tree_ensemble_classifier(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let labels = Labels::of(lowering, call, "classlabels_int64s", "classlabels_strings")?;
    let forest = Forest::by_numbers(call, "class")?;
    let mut named: Vec<i64> = forest.targets().map(|(id, _)| id).collect();
    named.sort_unstable();
    named.dedup();
    let all_positive = forest.targets().all(|(_, weight)| weight >= 0.0);
    let transform = Transform::of(call)?;
    let classes = labels.values.len() as i64;
    let scores = Ensemble::of(lowering, call, forest)?.scores(lowering, call, classes, Aggregate::Sum)?;
    let scores = lowering.cast(&format!("{}.scores", call.name), scores, DType::F32)?;
    if let ([_, _], [only]) = (&labels.values[..], &named[..]) {
        return two_classes(lowering, call, scores, &labels, *only, all_positive);
    }
    let scores = add_base(lowering, call, scores, classes)?;
    let label = best_label(lowering, &format!("{}.label", call.name), scores, &labels)?;
    Ok(vec![label, transform.apply(lowering, &call.name, scores)?])
}

/// Two classes, if the leaves have weights only for class `only`. Its score selects the class:
/// above 0.5 if all weights are positive, otherwise above 0. ONNX does not define the scores of
/// this case; they are those of ONNX Runtime.
fn two_classes(
    lowering: &mut Lowering,
    call: &Call<'_>,
    scores: ValueId,
    labels: &Labels,
    only: i64,
    all_positive: bool,
) -> Results {
    let transform = Transform::of(call)?;
    let score = part(lowering, &format!("{}.named", call.name), scores, 1, only, Expr::Const(1))?;
    let score = match (&optional_numbers(call, "base_values")?[..], only) {
        ([], _) => score,
        ([base], 0) => {
            let base = floats(lowering, &format!("{}.base", call.name), &[1], [*base]);
            point(lowering, &format!("{}.based", call.name), PointOp::Add, &[score, base])?
        }
        (base, _) => {
            return unsupported(format!(
                "{} base values, where the leaves have weights only for class {only} of two",
                base.len()
            ));
        }
    };
    let threshold = if all_positive { 0.5 } else { 0.0 };
    let label = label_above(lowering, &format!("{}.label", call.name), score, 0, threshold, labels)?;
    let scores = match (only, transform) {
        (1, _) => transform.apply(lowering, &call.name, scores)?,
        (_, Transform::Probit) => {
            return unsupported("post_transform = PROBIT, where the leaves have weights only for one class of two");
        }
        (_, Transform::Logistic) => {
            let both = two_columns(lowering, &format!("{}.both", call.name), score, negative)?;
            transform.apply(lowering, &call.name, both)?
        }
        _ => two_columns(lowering, &call.name, score, if all_positive { complement } else { negative })?,
    };
    Ok(vec![label, scores])
}

/// Adds the base values, one per target.
fn add_base(lowering: &mut Lowering, call: &Call<'_>, scores: ValueId, targets: i64) -> LowerResult<ValueId> {
    let base = optional_numbers(call, "base_values")?;
    if base.is_empty() {
        return Ok(scores);
    }
    if base.len() != 1 && base.len() as i64 != targets {
        return invalid(format!("it has {} base values for {targets} targets", base.len()));
    }
    let base = floats(lowering, &format!("{}.base", call.name), &[base.len()], base);
    point(lowering, &format!("{}.based", call.name), PointOp::Add, &[scores, base])
}

/// The operand and the tables of the nests.
struct Ensemble {
    forest: Forest,
    x: ValueId,
    shape: [Expr; 2],
    /// The type of comparisons and sums.
    ty: DType,
}

impl Ensemble {
    fn of(lowering: &mut Lowering, call: &Call<'_>, forest: Forest) -> LowerResult<Ensemble> {
        let (x, shape) = rows(lowering, call)?;
        let Some(width) = shape[1].as_const() else {
            return Err(lowering.open_size("its number of features", &shape[1]));
        };
        let negative = forest.nodes.iter().any(|n| matches!(n, Node::Branch(b) if b.feature < 0));
        if forest.features() > width || negative {
            return invalid(format!(
                "its trees read feature {}, but rows have {width} features",
                forest.features() - 1
            ));
        }
        let ty = if lowering.dtype(x) == DType::F64 { DType::F64 } else { DType::F32 };
        let x = lowering.cast(&format!("{}.x", call.name), x, ty)?;
        Ok(Ensemble { forest, x, shape, ty })
    }

    /// `[N, targets]`
    fn scores(
        self,
        lowering: &mut Lowering,
        call: &Call<'_>,
        targets: i64,
        aggregate: Aggregate,
    ) -> LowerResult<ValueId> {
        if targets < 1 || self.forest.targets().any(|(id, _)| !(0..targets).contains(&id)) {
            return invalid(format!("its leaves have targets outside 0..{targets}"));
        }
        let leaves = self.leaves(lowering, call)?;
        let (ids, weights) = self.entries(lowering, call);
        let (rows, trees, ty) = (self.shape[0].clone(), self.forest.roots.len() as i64, self.ty);
        let shape = vec![rows.clone(), Expr::Const(targets)];
        let leaves_shape = [rows, trees.into(), Expr::Const(2)];
        let mut nest = NestBuilder::new("tree_sums", shape.clone());
        nest.by_rows(1);
        let place = nest.point();
        let total = nest.variable(ty, &NestArg::Const(0.0));
        let is_first = nest.variable(DType::Bool, &NestArg::Const(1.0));
        nest.count(&0.into(), &trees.into(), |nest, tree| {
            let at = nest.offset(&leaves_shape, &[place[0].clone(), tree.clone(), 0.into()]);
            let first = nest.load(0, DType::I32, &at);
            let at = nest.add(&at, &1.into());
            let end = nest.load(0, DType::I32, &at);
            nest.count(&first, &end, |nest, entry| {
                let id = nest.load(1, DType::I32, entry);
                let is_mine = nest.compare(PointOp::Equal, DType::I32, &id, &place[1]);
                nest.when(&is_mine, |nest| {
                    let weight = nest.load(2, ty, entry);
                    aggregate.take(nest, ty, &total, &weight, &is_first);
                });
            });
        });
        if aggregate == Aggregate::Average {
            nest.accumulate(&total, PointOp::Div, &NestArg::Const(trees as f64));
        }
        let at = nest.offset(&shape, &place);
        nest.store(0, &at, &total);
        lowering.emit_one(&format!("{}.sums", call.name), Op::Nest(nest.finish()), &[leaves, ids, weights], ty, shape)
    }

    /// For every row and tree, the first and the end index of the entries of the leaf that it
    /// reaches: `[N, trees, 2]`.
    fn leaves(&self, lowering: &mut Lowering, call: &Call<'_>) -> LowerResult<ValueId> {
        let trees = self.forest.roots.len() as i64;
        let [nodes, values, members, roots] = self.tables(lowering, call);
        let domain = vec![self.shape[0].clone(), trees.into()];
        let mut nest = NestBuilder::new("tree_leaves", domain.clone());
        nest.by_rows(1);
        let place = nest.point();
        let root = nest.load(4, DType::I32, &place[1]);
        let node = nest.variable(DType::I32, &root);
        let walking = nest.variable(DType::Bool, &NestArg::Const(1.0));
        nest.count_while(&0.into(), &(self.forest.depth as i64).into(), &walking, |nest, _| {
            let feature = column(nest, &node, 0);
            let is_branch = nest.compare(PointOp::GreaterOrEqual, DType::I32, &feature, &0.into());
            nest.choose(
                &is_branch,
                |nest| {
                    let at = nest.offset(&self.shape, &[place[0].clone(), feature.clone()]);
                    let x = nest.load(0, self.ty, &at);
                    let holds = self.decide(nest, &node, &x);
                    let (on_true, on_false) = (column(nest, &node, 2), column(nest, &node, 3));
                    let next = nest.select(DType::I32, &holds, &on_true, &on_false);
                    nest.set(&node, &next);
                },
                |nest| nest.set(&walking, &NestArg::Const(0.0)),
            );
        });
        let (first, count) = (column(&mut nest, &node, 2), column(&mut nest, &node, 3));
        let end = nest.add(&first, &count);
        let shape = [&domain[..], &[Expr::Const(2)]].concat();
        let at = nest.offset(&shape, &[place[0].clone(), place[1].clone(), 0.into()]);
        nest.store(0, &at, &first);
        let at = nest.add(&at, &1.into());
        nest.store(0, &at, &end);
        let inputs = [self.x, nodes, values, members, roots];
        lowering.emit_one(&format!("{}.leaves", call.name), Op::Nest(nest.finish()), &inputs, DType::I32, shape)
    }

    /// Whether the condition of a node is true for `x`. Only the comparisons of modes that occur
    /// are emitted.
    fn decide(&self, nest: &mut NestBuilder, node: &NestArg, x: &NestArg) -> NestArg {
        let branches = || self.forest.nodes.iter().filter_map(|n| if let Node::Branch(b) = n { Some(b) } else { None });
        let value = nest.load(2, self.ty, node);
        let mut modes: Vec<Mode> = branches().map(|b| b.mode).collect();
        modes.sort_unstable();
        modes.dedup();
        let mut holds = None;
        for mode in modes {
            let this = self.compare(nest, mode, node, x, &value);
            holds = Some(match holds {
                None => this,
                Some(others) => {
                    let number = column(nest, node, 1);
                    let is_this = nest.compare(PointOp::Equal, DType::I32, &number, &(mode as i64).into());
                    nest.select(DType::Bool, &is_this, &this, &others)
                }
            });
        }
        let holds = holds.unwrap_or(NestArg::Const(0.0));
        if !branches().any(|b| b.missing_is_true) {
            return holds;
        }
        let tracks = column(nest, node, 4);
        let tracks = nest.compare(PointOp::Greater, DType::I32, &tracks, &0.into());
        let is_number = nest.compare(PointOp::Equal, self.ty, x, x);
        let is_missing = nest.step(PointOp::Not, DType::Bool, &[is_number]);
        let counts = nest.both(&tracks, &is_missing);
        nest.step(PointOp::Or, DType::Bool, &[holds, counts])
    }

    fn compare(&self, nest: &mut NestBuilder, mode: Mode, node: &NestArg, x: &NestArg, value: &NestArg) -> NestArg {
        let op = match mode {
            Mode::LessOrEqual => PointOp::LessOrEqual,
            Mode::Less => PointOp::Less,
            Mode::GreaterOrEqual => PointOp::GreaterOrEqual,
            Mode::Greater => PointOp::Greater,
            Mode::Equal => PointOp::Equal,
            Mode::NotEqual => {
                let equal = nest.compare(PointOp::Equal, self.ty, x, value);
                return nest.step(PointOp::Not, DType::Bool, &[equal]);
            }
            Mode::Member => return self.is_member(nest, node, x),
        };
        nest.compare(op, self.ty, x, value)
    }

    fn is_member(&self, nest: &mut NestBuilder, node: &NestArg, x: &NestArg) -> NestArg {
        let (first, count) = (column(nest, node, 5), column(nest, node, 6));
        let end = nest.add(&first, &count);
        let found = nest.variable(DType::Bool, &NestArg::Const(0.0));
        nest.count(&first, &end, |nest, i| {
            let member = nest.load(3, self.ty, i);
            let equal = nest.compare(PointOp::Equal, self.ty, x, &member);
            nest.accumulate(&found, PointOp::Or, &equal);
        });
        found
    }

    /// The tables: numbers of the nodes, their values, members of sets, roots.
    fn tables(&self, lowering: &mut Lowering, call: &Call<'_>) -> [ValueId; 4] {
        let (mut numbers, mut values, mut members, mut entries) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for node in &self.forest.nodes {
            match node {
                Node::Branch(branch) => {
                    numbers.extend(branch_row(branch, members.len()));
                    values.push(branch.value);
                    members.extend(&branch.members);
                }
                Node::Leaf(own) => {
                    numbers.extend([-1, 0, entries, own.len() as i64, 0, 0, 0]);
                    entries += own.len() as i64;
                    values.push(0.0);
                }
            }
        }
        // A tensor without elements has no address.
        members.push(f64::NAN);
        let name = |part: &str| format!("{}.{part}", call.name);
        let ints = |values: Vec<i64>| Tensor::ints(DType::I32, vec![values.len()], values);
        let numbers_of = |values: Vec<f64>| Tensor::floats(self.ty, vec![values.len()], values);
        let roots = self.forest.roots.iter().map(|root| *root as i64).collect();
        [
            lowering.constant(&name("nodes"), &ints(numbers)),
            lowering.constant(&name("values"), &numbers_of(values)),
            lowering.constant(&name("members"), &numbers_of(members)),
            lowering.constant(&name("roots"), &ints(roots)),
        ]
    }

    /// Targets and weights of the leaves, in the order of the leaves.
    fn entries(&self, lowering: &mut Lowering, call: &Call<'_>) -> (ValueId, ValueId) {
        let (mut ids, mut weights): (Vec<i64>, Vec<f64>) = self.forest.targets().unzip();
        ids.push(-1);
        weights.push(0.0);
        let ids = Tensor::ints(DType::I32, vec![ids.len()], ids);
        let weights = Tensor::floats(self.ty, vec![weights.len()], weights);
        (
            lowering.constant(&format!("{}.ids", call.name), &ids),
            lowering.constant(&format!("{}.weights", call.name), &weights),
        )
    }
}

fn branch_row(branch: &Branch, first_member: usize) -> [i64; COLUMNS as usize] {
    let missing = i64::from(branch.missing_is_true);
    let (on_true, on_false) = (branch.on_true as i64, branch.on_false as i64);
    [branch.feature, branch.mode as i64, on_true, on_false, missing, first_member as i64, branch.members.len() as i64]
}

/// A column of a node.
fn column(nest: &mut NestBuilder, node: &NestArg, column: i64) -> NestArg {
    let row = nest.mul(node, &COLUMNS.into());
    let at = nest.add(&row, &column.into());
    nest.load(1, DType::I32, &at)
}

impl Aggregate {
    /// Combines the weight of one leaf.
    fn take(self, nest: &mut NestBuilder, ty: DType, total: &NestArg, weight: &NestArg, is_first: &NestArg) {
        let op = match self {
            Aggregate::Sum | Aggregate::Average => return nest.accumulate(total, PointOp::Add, weight),
            Aggregate::Min => PointOp::Min,
            Aggregate::Max => PointOp::Max,
        };
        let met = nest.step(op, ty, &[total.clone(), weight.clone()]);
        let value = nest.select(ty, is_first, weight, &met);
        nest.set(total, &value);
        nest.set(is_first, &NestArg::Const(0.0));
    }
}
