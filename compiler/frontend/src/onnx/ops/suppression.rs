//! `NonMaxSuppression`: among overlapping boxes keeps the best. One thread per class selects boxes;
//! another thread writes the selected boxes of all classes.

use super::super::call::Call;
use super::super::error::{LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use crate::nest::{Nest, NestArg, NestBuilder};
use crate::tensor_graph::{Op, PointOp, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

const TY: DType = DType::F32;

/// Operands of the nest that selects boxes.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Operand {
    Boxes,
    Scores,
    Most,
    Overlap,
    Least,
}

/// The sizes and options of a suppression.
struct Suppression {
    batch: Expr,
    classes: Expr,
    boxes: Expr,
    /// Whether boxes are given by centre and size, instead of corners.
    by_centre: bool,
    has_least: bool,
}

pub(super) fn non_max_suppression(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (boxes, scores) = (call.input(0)?, call.input(1)?);
    let ([batch, count, four], [score_batch, classes, score_count]) =
        match (lowering.shape(boxes), lowering.shape(scores)) {
            ([a, b, c], [d, e, f]) => ([a.clone(), b.clone(), c.clone()], [d.clone(), e.clone(), f.clone()]),
            (boxes, scores) => {
                return invalid(format!(
                    "its boxes have shape {} and its scores shape {}",
                    lowering.shape_text(boxes),
                    lowering.shape_text(scores)
                ));
            }
        };
    if lowering.dtype(boxes) != TY || lowering.dtype(scores) != TY {
        return unsupported(format!(
            "boxes of type {} and scores of type {}; F32 is supported",
            lowering.dtype(boxes),
            lowering.dtype(scores)
        ));
    }
    lowering.equal_dims(four, 4.into())?;
    let batch = lowering.equal_dims(batch, score_batch)?;
    let count = lowering.equal_dims(count, score_count)?;
    let by_centre = call.flag("center_point_box", false)?;
    let suppression = Suppression { batch, classes, boxes: count, by_centre, has_least: call.optional(4).is_some() };
    let number = |lowering: &mut Lowering, index: usize, dtype: DType| -> LowerResult<ValueId> {
        let name = format!("{}.operand{index}", call.name);
        let Some(id) = call.optional(index) else { return lowering.fill(&name, dtype, Vec::new(), 0.0) };
        if lowering.dtype(id) != dtype {
            return invalid(format!("its operand {index} is not one number of type {dtype}"));
        }
        for dim in lowering.shape(id) {
            lowering.equal_dims(dim.clone(), 1.into())?;
        }
        lowering.reshape(&name, id, Vec::new())
    };
    let most = number(lowering, 2, DType::I64)?;
    let mut operands = vec![boxes, scores, most, number(lowering, 3, TY)?];
    if suppression.has_least {
        operands.push(number(lowering, 4, TY)?);
    }
    let of_each = lowering.known(most).and_then(|most| most.first().cloned());
    let all = [suppression.batch.clone(), suppression.classes.clone(), suppression.boxes.clone()];
    let pairs = all[..2].to_vec();
    let outputs = vec![(DType::I32, all.to_vec()), (DType::Bool, all.to_vec()), (DType::I32, pairs)];
    let chosen = lowering.emit(&format!("{}/choose", call.name), Op::Nest(suppression.choose()), &operands, outputs)?;
    let total = Expr::product(&all);
    let outputs = vec![(DType::I32, vec![total.clone()]), (DType::I32, Vec::new())];
    let rows = lowering.emit(
        &format!("{}/rows", call.name),
        Op::Nest(suppression.gather()),
        &[chosen[0], chosen[2]],
        outputs,
    )?;
    let limit = match of_each {
        Some(most) => {
            suppression.batch.clone() * suppression.classes.clone() * suppression.boxes.clone().min(most.max(0))
        }
        None => total,
    };
    let count = lowering.run_time_size(&format!("{}/count", call.name), rows[1], limit)?;
    let shape = vec![count.clone(), Expr::Const(3)];
    let mut nest = NestBuilder::new("selected", vec![count]);
    let at = nest.point()[0].clone();
    let row = nest.load(0, DType::I32, &at);
    for (column, index) in nest.unravel(&row, &all).iter().enumerate() {
        let to = nest.offset(&shape, &[at.clone(), NestArg::from(column as i64)]);
        let index = nest.cast(index, DType::I64);
        nest.store(0, &to, &index);
    }
    Ok(vec![lowering.emit_one(&call.name, Op::Nest(nest.finish()), &[rows[0]], DType::I64, shape)?])
}

impl Suppression {
    /// Per class and image, selects the boxes that are kept, best first, into results 0 (indices)
    /// and 2 (count). Result 1 marks the remaining candidates.
    fn choose(&self) -> Nest {
        let boxes = NestArg::from(&self.boxes);
        let mut nest = NestBuilder::new("suppression", vec![self.batch.clone(), self.classes.clone()]);
        let [image, class] = [0, 1].map(|axis| nest.point()[axis].clone());
        let pair = nest.offset(&[self.batch.clone(), self.classes.clone()], &[image.clone(), class]);
        let (first, corner) = (nest.mul(&pair, &boxes), nest.mul(&image, &boxes));
        let zero = NestArg::from(0);
        let most = nest.load(Operand::Most as u32, DType::I64, &zero);
        let overlap = nest.load(Operand::Overlap as u32, TY, &zero);
        let least = self.has_least.then(|| nest.load(Operand::Least as u32, TY, &zero));
        nest.count(&zero, &boxes, |nest, i| {
            let at = nest.add(&first, i);
            let is_candidate = match &least {
                Some(least) => {
                    let score = nest.load(Operand::Scores as u32, TY, &at);
                    nest.compare(PointOp::Greater, TY, &score, least)
                }
                None => nest.variable(DType::Bool, &NestArg::Const(1.0)),
            };
            nest.store(1, &at, &is_candidate);
            nest.store(0, &at, &zero);
        });
        let kept = nest.variable(DType::I32, &zero);
        let goes_on = nest.compare(PointOp::Greater, DType::I64, &most, &zero);
        let goes_on = nest.variable(DType::Bool, &goes_on);
        nest.count_while(&zero, &boxes, &goes_on, |nest, _| {
            let best = self.best(nest, &first);
            let is_none = nest.compare(PointOp::Less, DType::I32, &best, &zero);
            nest.choose(
                &is_none,
                |nest| nest.set(&goes_on, &NestArg::Const(0.0)),
                |nest| {
                    let to = nest.add(&first, &kept);
                    nest.store(0, &to, &best);
                    nest.accumulate(&kept, PointOp::Add, &1.into());
                    let wide = nest.cast(&kept, DType::I64);
                    let is_more = nest.compare(PointOp::Less, DType::I64, &wide, &most);
                    nest.set(&goes_on, &is_more);
                    self.suppress(nest, &first, &corner, &best, &overlap);
                },
            );
        });
        nest.store(2, &pair, &kept);
        nest.finish()
    }

    /// The candidate with the best score, the first among equals; -1 if there is none.
    fn best(&self, nest: &mut NestBuilder, first: &NestArg) -> NestArg {
        let best = nest.variable(DType::I32, &NestArg::from(-1));
        let score = nest.variable(TY, &NestArg::from(0));
        nest.count(&0.into(), &NestArg::from(&self.boxes), |nest, i| {
            let at = nest.add(first, i);
            let is_candidate = nest.load_result(1, DType::Bool, &at);
            nest.when(&is_candidate, |nest| {
                let own = nest.load(Operand::Scores as u32, TY, &at);
                let is_better = nest.compare(PointOp::Greater, TY, &own, &score);
                let is_first = nest.compare(PointOp::Less, DType::I32, &best, &0.into());
                let wins = nest.step(PointOp::Or, DType::Bool, &[is_better, is_first]);
                nest.when(&wins, |nest| {
                    nest.set(&best, i);
                    nest.set(&score, &own);
                });
            });
        });
        best
    }

    /// Removes the selected box, and the boxes that overlap it, from the candidates.
    fn suppress(&self, nest: &mut NestBuilder, first: &NestArg, corner: &NestArg, best: &NestArg, overlap: &NestArg) {
        let chosen = self.edges(nest, corner, best);
        let area = area(nest, &chosen);
        nest.count(&0.into(), &NestArg::from(&self.boxes), |nest, i| {
            let at = nest.add(first, i);
            let is_candidate = nest.load_result(1, DType::Bool, &at);
            nest.when(&is_candidate, |nest| {
                let other = self.edges(nest, corner, i);
                let share = share(nest, &chosen, &area, &other);
                let covered = nest.compare(PointOp::Greater, TY, &share, overlap);
                let is_self = nest.compare(PointOp::Equal, DType::I32, i, best);
                let ends = nest.step(PointOp::Or, DType::Bool, &[covered, is_self]);
                let stays = nest.step(PointOp::Not, DType::Bool, &[ends]);
                nest.store(1, &at, &stays);
            });
        });
    }

    /// The lower and upper edge in both directions.
    fn edges(&self, nest: &mut NestBuilder, corner: &NestArg, index: &NestArg) -> [[NestArg; 2]; 2] {
        let at = nest.add(corner, index);
        let at = nest.mul(&at, &4.into());
        let numbers = [0, 1, 2, 3].map(|i| {
            let at = nest.add(&at, &NestArg::from(i));
            nest.load(Operand::Boxes as u32, TY, &at)
        });
        [0, 1].map(|axis: usize| {
            let (a, b) = (&numbers[axis], &numbers[axis + 2]);
            if self.by_centre {
                let half = nest.step(PointOp::Div, TY, &[b.clone(), NestArg::from(2)]);
                [PointOp::Sub, PointOp::Add].map(|op| nest.step(op, TY, &[a.clone(), half.clone()]))
            } else {
                [PointOp::Min, PointOp::Max].map(|op| nest.step(op, TY, &[a.clone(), b.clone()]))
            }
        })
    }

    /// One thread writes the selected boxes of all classes, one after the other, as indices of
    /// `[batch, classes, boxes]`, and their number.
    fn gather(&self) -> Nest {
        let (zero, boxes) = (NestArg::from(0), NestArg::from(&self.boxes));
        let pairs = self.batch.clone() * self.classes.clone();
        let mut nest = NestBuilder::new("selected_rows", Vec::new());
        let count = nest.variable(DType::I32, &zero);
        nest.count(&zero, &NestArg::from(&pairs), |nest, pair| {
            let kept = nest.load(1, DType::I32, pair);
            let first = nest.mul(pair, &boxes);
            nest.count(&zero, &kept, |nest, i| {
                let at = nest.add(&first, i);
                let index = nest.load(0, DType::I32, &at);
                let row = nest.add(&first, &index);
                nest.store(0, &count, &row);
                nest.accumulate(&count, PointOp::Add, &1.into());
            });
        });
        nest.count(&count, &NestArg::from(&(pairs * self.boxes.clone())), |nest, at| nest.store(0, at, &zero));
        nest.store(1, &zero, &count);
        nest.finish()
    }
}

fn length(nest: &mut NestBuilder, edge: &[NestArg; 2]) -> NestArg {
    nest.step(PointOp::Sub, TY, &[edge[1].clone(), edge[0].clone()])
}

fn area(nest: &mut NestBuilder, edges: &[[NestArg; 2]; 2]) -> NestArg {
    let [height, width] = edges.each_ref().map(|edge| length(nest, edge));
    nest.step(PointOp::Mul, TY, &[height, width])
}

/// Intersection over union of two boxes; -1 if they do not intersect or one has no area.
fn share(nest: &mut NestBuilder, a: &[[NestArg; 2]; 2], a_area: &NestArg, b: &[[NestArg; 2]; 2]) -> NestArg {
    let common = [0, 1].map(|axis: usize| {
        let low = nest.step(PointOp::Max, TY, &[a[axis][0].clone(), b[axis][0].clone()]);
        let high = nest.step(PointOp::Min, TY, &[a[axis][1].clone(), b[axis][1].clone()]);
        [low, high]
    });
    let [height, width] = common.each_ref().map(|edge| length(nest, edge));
    let zero = NestArg::from(0);
    let both = nest.step(PointOp::Mul, TY, &[height.clone(), width.clone()]);
    let b_area = area(nest, b);
    let sum = nest.step(PointOp::Add, TY, &[a_area.clone(), b_area.clone()]);
    let whole = nest.step(PointOp::Sub, TY, &[sum, both.clone()]);
    let share = nest.step(PointOp::Div, TY, &[both.clone(), whole.clone()]);
    let mut meets = NestArg::Const(1.0);
    for size in [&height, &width, &both, a_area, &b_area, &whole] {
        let is_positive = nest.compare(PointOp::Greater, TY, size, &zero);
        meets = if meets == NestArg::Const(1.0) { is_positive } else { nest.both(&meets, &is_positive) };
    }
    nest.select(TY, &meets, &share, &NestArg::from(-1))
}
