//! Weights that are packed several to a byte.

use super::super::error::{LowerError, LowerResult, invalid};
use super::super::lowering::Lowering;
use crate::tensor::{Data, Tensor};
use crate::tensor_graph::ValueId;
use atoll_kgraph::DType;

/// The operands of `MatMulNBits`.
pub(super) struct Packed {
    /// `[n, blocks, bytes of a block]`
    pub(super) packed: ValueId,
    /// One per block.
    pub(super) scales: ValueId,
    /// One per block: packed as the weights are, or of the scales' type.
    pub(super) zeros: Option<ValueId>,
    pub(super) n: i64,
    pub(super) k: i64,
    pub(super) bits: i64,
    /// Number of elements that share a scale.
    pub(super) block: i64,
}

/// The dequantised weights, `[n, k]`.
pub(super) fn dequantize(lowering: &Lowering, weights: &Packed) -> LowerResult<Tensor> {
    let Packed { n, k, bits, block, .. } = *weights;
    let [n, k, bits, block] = [n, k, bits, block].map(|number| number as usize);
    let blocks = k.div_ceil(block);
    let known = |id: ValueId| {
        lowering.tensor(id).ok_or_else(|| {
            LowerError::Unsupported("its weights are known only at run time; they must be constants".into())
        })
    };
    let (packed, scales) = (known(weights.packed)?, known(weights.scales)?.to_f64());
    let Data::Int(bytes) = packed.data else { return invalid("its weights are not bytes") };
    let bytes_of_block = block * bits / 8;
    if Some(bytes.len()) != n.checked_mul(blocks * bytes_of_block) || scales.len() != n * blocks {
        return invalid(format!("it has {} bytes and {} scales for a {n} by {k} matrix", bytes.len(), scales.len()));
    }
    let zeros = match weights.zeros {
        Some(zeros) => zero_points(&known(zeros)?, n, blocks, bits)?,
        None => vec![f64::from(1u32 << (bits - 1)); n * blocks],
    };
    let number = |at: usize| {
        let (row, column) = (at / k, at % k);
        let of_block = row * blocks + column / block;
        let number = unpack(&bytes[of_block * bytes_of_block..], column % block, bits) as f64;
        (number - zeros[of_block]) * scales[of_block]
    };
    Ok(Tensor::floats(DType::F32, vec![n, k], (0..n * k).map(number)))
}

fn zero_points(zeros: &Tensor, n: usize, blocks: usize, bits: usize) -> LowerResult<Vec<f64>> {
    match &zeros.data {
        Data::Float(numbers) if numbers.len() == n * blocks => Ok(numbers.clone()),
        Data::Int(bytes) if bytes.len() == n * (blocks * bits).div_ceil(8) => {
            let row_bytes = (blocks * bits).div_ceil(8);
            Ok((0..n * blocks).map(|at| unpack(&bytes[at / blocks * row_bytes..], at % blocks, bits) as f64).collect())
        }
        _ => invalid(format!("it has {} zero points for {n} rows of {blocks} blocks", zeros.len())),
    }
}

/// The element at `index`; the first element of a byte is in its lowest bits.
fn unpack(bytes: &[i64], index: usize, bits: usize) -> i64 {
    let at = index * bits;
    (bytes[at / 8] >> (at % 8)) & ((1 << bits) - 1)
}
