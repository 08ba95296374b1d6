//! `TfIdfVectorizer`: counts how often each sequence of a pool occurs in each row.

use super::super::call::Call;
use super::super::error::{LowerError, LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use crate::nest::{NestArg, NestBuilder};
use crate::tensor::Tensor;
use crate::tensor_graph::{Op, PointOp, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// Largest number of elements in a row of the result.
const OUTPUTS_MAX: i64 = 1 << 24;

/// For each element of a row of the result, the sequence that it counts.
struct Pool {
    /// Length of the sequence; 0 if the element counts nothing.
    lengths: Vec<i64>,
    /// Index of the sequence's first element in `elements`.
    starts: Vec<i64>,
    weights: Vec<f64>,
    elements: Vec<i64>,
}

pub(super) fn tf_idf_vectorizer(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let dtype = lowering.dtype(x);
    if !matches!(dtype, DType::I32 | DType::I64 | DType::Strings) {
        return unsupported(format!("an operand of type {dtype}"));
    }
    let (rows, length) = match lowering.shape(x) {
        [length] => (Expr::Const(1), length.clone()),
        [rows, length] => (rows.clone(), length.clone()),
        shape => return invalid(format!("its operand has {} dimensions; it needs 1 or 2", shape.len())),
    };
    let pool = read_pool(lowering, call, dtype)?;
    let outputs = pool.lengths.len();
    let mode = call.string("mode", "")?;
    if !matches!(mode.as_str(), "TF" | "IDF" | "TFIDF") {
        return invalid(format!("its mode is {mode:?}; it must be TF, IDF or TFIDF"));
    }
    let skips = call.int("max_skip_count", 0)?;
    if !(0..=1 << 16).contains(&skips) {
        return invalid(format!("its max_skip_count is {skips}"));
    }
    let table = |lowering: &mut Lowering, part: &str, dtype: DType, values: &[i64]| {
        lowering.constant(
            &format!("{}.{part}", call.name),
            &Tensor::ints(dtype, vec![values.len()], values.iter().copied()),
        )
    };
    let lengths = table(lowering, "lengths", DType::I32, &pool.lengths);
    let starts = table(lowering, "starts", DType::I32, &pool.starts);
    let elements = table(lowering, "pool", dtype, &pool.elements);
    let weights = Tensor::floats(DType::F32, vec![outputs], pool.weights.iter().copied());
    let weights = lowering.constant(&format!("{}.weights", call.name), &weights);
    let mut nest = NestBuilder::new("ngrams", vec![rows.clone(), Expr::Const(outputs as i64)]);
    nest.by_rows(1);
    let [row, output] = [0, 1].map(|axis| nest.point()[axis].clone());
    let line = nest.mul(&row, &NestArg::from(&length));
    let (size, start) = (nest.load(1, DType::I32, &output), nest.load(2, DType::I32, &output));
    let found = nest.variable(DType::I32, &0.into());
    // A sequence of one element has no gaps, so it is counted once and not per skip distance.
    let is_single = nest.compare(PointOp::LessOrEqual, DType::I32, &size, &1.into());
    let distances = nest.select(DType::I32, &is_single, &1.into(), &NestArg::from(skips + 1));
    let is_counted = nest.compare(PointOp::Greater, DType::I32, &size, &0.into());
    nest.when(&is_counted, |nest| {
        nest.count(&0.into(), &distances, |nest, skipped| {
            let distance = nest.add(skipped, &1.into());
            let gaps = nest.sub(&size, &1.into());
            let reach = nest.mul(&gaps, &distance);
            let last = nest.sub(&NestArg::from(&length), &reach);
            nest.count(&0.into(), &last, |nest, from| {
                let first = nest.add(&line, from);
                let matches = nest.variable(DType::Bool, &NestArg::Const(1.0));
                nest.count_while(&0.into(), &size, &matches, |nest, i| {
                    let along = nest.mul(i, &distance);
                    let at = nest.add(&first, &along);
                    let own = nest.load(0, dtype, &at);
                    let at = nest.add(&start, i);
                    let wanted = nest.load(3, dtype, &at);
                    let is_same = nest.compare(PointOp::Equal, dtype, &own, &wanted);
                    nest.set(&matches, &is_same);
                });
                nest.when(&matches, |nest| nest.accumulate(&found, PointOp::Add, &1.into()));
            });
        });
    });
    let count = nest.cast(&found, DType::F32);
    let weight = nest.load(4, DType::F32, &output);
    let value = match mode.as_str() {
        "TF" => count,
        "IDF" => {
            let is_there = nest.compare(PointOp::Greater, DType::I32, &found, &0.into());
            nest.select(DType::F32, &is_there, &weight, &NestArg::from(0))
        }
        _ => nest.step(PointOp::Mul, DType::F32, &[count, weight]),
    };
    let to = nest.offset(&[rows.clone(), Expr::Const(outputs as i64)], &[row, output]);
    nest.store(0, &to, &value);
    let shape =
        if lowering.rank(x) == 1 { vec![Expr::Const(outputs as i64)] } else { vec![rows, Expr::Const(outputs as i64)] };
    Ok(vec![lowering.emit_one(
        &call.name,
        Op::Nest(nest.finish()),
        &[x, lengths, starts, elements, weights],
        DType::F32,
        shape,
    )?])
}

fn read_pool(lowering: &mut Lowering, call: &Call<'_>, dtype: DType) -> LowerResult<Pool> {
    let (counts, indexes) = (call.required_ints("ngram_counts")?, call.required_ints("ngram_indexes")?);
    let elements = if dtype == DType::Strings {
        let texts = call.strings("pool_strings")?;
        let texts = texts.ok_or_else(|| LowerError::Invalid("attribute pool_strings is missing".into()))?;
        texts.iter().map(|text| lowering.string_code(text)).collect::<LowerResult<Vec<i64>>>()?
    } else {
        call.required_ints("pool_int64s")?
    };
    let (shortest, longest) = (call.int("min_gram_length", 1)?, call.int("max_gram_length", 1)?);
    let given = call.floats("weights")?;
    let outputs = indexes.iter().max().map_or(0, |most| most.saturating_add(1));
    if indexes.iter().any(|index| *index < 0)
        || outputs > OUTPUTS_MAX
        || given.as_ref().is_some_and(|given| given.len() != indexes.len())
    {
        return invalid(format!("its result would have {outputs} elements"));
    }
    let mut pool = Pool {
        lengths: vec![0; outputs as usize],
        starts: vec![0; outputs as usize],
        weights: vec![1.0; outputs as usize],
        elements,
    };
    let mut at = 0;
    let ends = counts.iter().skip(1).copied().chain([pool.elements.len() as i64]);
    let mut sequence = 0;
    for ((length, from), to) in (1..).zip(&counts).zip(ends) {
        if *from != at || to < *from || to > pool.elements.len() as i64 || (to - from) % length != 0 {
            return invalid(format!(
                "its ngram_counts {counts:?} do not match a pool of {} elements",
                pool.elements.len()
            ));
        }
        for start in (*from..to).step_by(length as usize) {
            let Some(index) = indexes.get(sequence).map(|index| *index as usize) else {
                return invalid(format!("its pool has more sequences than its {} ngram_indexes", indexes.len()));
            };
            if pool.weights[index] != 1.0 || pool.lengths[index] != 0 {
                return unsupported("two sequences with the same ngram_index");
            }
            if let Some(given) = &given {
                pool.weights[index] = given[sequence].into();
            }
            if (shortest..=longest).contains(&length) {
                (pool.lengths[index], pool.starts[index]) = (length, start);
            }
            sequence += 1;
        }
        at = to;
    }
    Ok(pool)
}
