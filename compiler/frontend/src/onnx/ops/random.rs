//! Random numbers, generated at compile time as constants, for shapes that are known then.
//!
//! The generator is counter-based: number `i` of a node is a function of the node's seed and `i`.
//! The numbers differ from those of ONNX Runtime, and every run of a model gets the same ones. A
//! node without a seed derives one from its name.

use super::super::call::{Call, axis_of};
use super::super::error::{LowerError, LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use super::super::read::{dtype_name, dtype_of};
use super::softmax;
use crate::size::static_shape;
use crate::tensor::{Tensor, is_float};
use crate::tensor_graph::{PointOp, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// Largest number of random numbers of a node; they are stored in the compiled model.
const NUMBERS_MAX: usize = 1 << 24;

/// Random numbers by index.
struct Generator {
    seed: u64,
}

impl Generator {
    fn of(call: &Call<'_>) -> LowerResult<Generator> {
        let seed = match call.has("seed") {
            true => u64::from(call.float("seed", 0.0)?.to_bits()),
            false => call
                .name
                .bytes()
                .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)),
        };
        Ok(Generator { seed: mixed(seed) })
    }

    /// A uniform number in [0, 1) with 53 random bits.
    fn uniform(&self, index: usize) -> f64 {
        (mixed(self.seed.wrapping_add((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))) >> 11) as f64
            / (1u64 << 53) as f64
    }

    /// A normally distributed number, by the Box-Muller method.
    fn normal(&self, index: usize) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform(2 * index)).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform(2 * index + 1)).cos()
    }

    /// A Gumbel-distributed number. The index of the largest sum of log-weight and Gumbel number is
    /// distributed by the weights.
    fn gumbel(&self, index: usize) -> f64 {
        -(-(1.0 - self.uniform(index)).ln()).max(f64::MIN_POSITIVE).ln()
    }
}

/// The finaliser of SplitMix64.
fn mixed(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

fn numbers(
    lowering: &mut Lowering,
    name: &str,
    dtype: DType,
    shape: &[Expr],
    number: impl Fn(usize) -> f64,
) -> LowerResult<ValueId> {
    let Some(shape) = static_shape(shape) else {
        return unsupported(
            "random numbers of a symbolic shape, as they are generated at compile time; fix the sizes with \
             `--fix NAME=SIZE`",
        );
    };
    let count = shape.iter().product::<usize>();
    if count > NUMBERS_MAX {
        return Err(LowerError::TooLarge {
            what: "a result".into(),
            found: format!("{count} numbers"),
            limit: NUMBERS_MAX.to_string(),
        });
    }
    Ok(lowering.constant(name, &Tensor::floats(dtype, shape, (0..count).map(number))))
}

/// The element type of the attribute `dtype`.
fn result_type(call: &Call<'_>, default: DType) -> LowerResult<DType> {
    match call.int("dtype", 0)? as i32 {
        0 => Ok(default),
        number => dtype_of(number)
            .ok_or_else(|| LowerError::Unsupported(format!("random numbers of type {}", dtype_name(number)))),
    }
}

/// `RandomUniform`, `RandomNormal`, and their `Like` variants, which take shape and type from an
/// operand.
pub(super) fn random(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (shape, default) = if call.node.op_type.ends_with("Like") {
        let like = call.input(0)?;
        (lowering.shape(like).to_vec(), if is_float(lowering.dtype(like)) { lowering.dtype(like) } else { DType::F32 })
    } else {
        let shape = call.required_ints("shape")?;
        if shape.iter().any(|dim| *dim < 0) {
            return invalid(format!("its shape is {shape:?}"));
        }
        (shape.into_iter().map(Expr::Const).collect(), DType::F32)
    };
    let dtype = result_type(call, default)?;
    if !is_float(dtype) {
        return invalid(format!("its random numbers have type {dtype:?}; they must be floats"));
    }
    let generator = Generator::of(call)?;
    let y = if call.node.op_type.starts_with("RandomNormal") {
        let (mean, scale) = (f64::from(call.float("mean", 0.0)?), f64::from(call.float("scale", 1.0)?));
        numbers(lowering, &call.name, dtype, &shape, |i| mean + scale * generator.normal(i))?
    } else {
        let (low, high) = (f64::from(call.float("low", 0.0)?), f64::from(call.float("high", 1.0)?));
        numbers(lowering, &call.name, dtype, &shape, |i| low + (high - low) * generator.uniform(i))?
    };
    Ok(vec![y])
}

/// 1 with the probability that the operand gives, else 0.
pub(super) fn bernoulli(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let (ty, shape) = (lowering.dtype(x), lowering.shape(x).to_vec());
    let dtype = result_type(call, ty)?;
    let generator = Generator::of(call)?;
    let chance = numbers(lowering, &format!("{}.chance", call.name), ty, &shape, |i| generator.uniform(i))?;
    Ok(vec![lowering.pointwise(&call.name, &[chance, x], dtype, |p, x| {
        let happens = p.step(PointOp::Less, ty, x);
        if dtype != DType::Bool {
            p.step(PointOp::Cast, dtype, &[happens]);
        }
    })?])
}

/// Draws classes by their unnormalised logarithms `[batch, classes]`.
pub(super) fn multinomial(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let (ty, shape) = (lowering.dtype(x), lowering.shape(x).to_vec());
    let samples = call.int("sample_size", 1)?;
    let dtype = result_type(call, DType::I32)?;
    if shape.len() != 2 || samples < 1 {
        return invalid(format!(
            "its sample_size is {samples} and its operand has {} dimensions; it needs at least 1 sample and 2 \
             dimensions",
            shape.len()
        ));
    }
    let generator = Generator::of(call)?;
    let drawn = vec![shape[0].clone(), Expr::Const(samples), shape[1].clone()];
    let noise = numbers(lowering, &format!("{}.noise", call.name), ty, &drawn, |i| generator.gumbel(i))?;
    let apart = lowering.reshape(
        &format!("{}.apart", call.name),
        x,
        vec![shape[0].clone(), Expr::Const(1), shape[1].clone()],
    )?;
    let scores = lowering.pointwise(&format!("{}.scores", call.name), &[apart, noise], ty, |p, x| {
        p.step(PointOp::Add, ty, x);
    })?;
    let class = softmax::first_largest(lowering, &call.name, scores, axis_of(2, 3)?)?;
    let class = lowering.cast(&format!("{}.class", call.name), class, dtype)?;
    Ok(vec![lowering.reshape(
        &format!("{}.classes", call.name),
        class,
        vec![shape[0].clone(), Expr::Const(samples)],
    )?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_moments_of_their_distributions() {
        let generator = Generator { seed: 7 };
        let mean = |number: &dyn Fn(usize) -> f64| (0..20_000).map(number).sum::<f64>() / 20_000.0;
        assert!((mean(&|i| generator.uniform(i)) - 0.5).abs() < 0.01);
        assert!(mean(&|i| generator.normal(i)).abs() < 0.03);
        assert!((mean(&|i| generator.normal(i).powi(2)) - 1.0).abs() < 0.05);
        // Euler's constant.
        assert!((mean(&|i| generator.gumbel(i)) - 0.577_215_7).abs() < 0.03);
    }
}
