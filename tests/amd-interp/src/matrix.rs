//! Matrix products of CDNA (MFMA) and RDNA (WMMA). The hardware's order of summation is not
//! documented. Here products are summed in f64 and rounded once, f64 products step by step,
//! integers exactly.

use crate::fault::FaultKind;
use crate::mode::Mode;
use crate::op::{Element, Inst, Machine, Shape};
use crate::operand::{Kind, Operand, Ty};
use crate::soft::{BF16, F16, F32, F64};
use crate::target::Generation;
use crate::wave::{Wave, unsupported};

const PLAIN: Mode = Mode(0xf0);

/// The lanes and registers of the elements of one block.
struct Layout {
    shape: Shape,
    lanes: usize,
    /// Elements of A or B in a lane.
    per_lane: usize,
    /// Whether each row of A and B is stored twice, as on gfx11.
    doubled: bool,
}

fn element(name: &str) -> Option<(Element, usize)> {
    Some(match name {
        "f32" | "_f32" => (Element::F32, 1),
        "f64" | "_f64" => (Element::F64, 1),
        "f16" | "_f16" => (Element::F16, 4),
        "bf16" => (Element::Bf16, 2),
        "bf16_1k" | "_bf16" => (Element::Bf16, 4),
        "i8" | "_i8" | "_iu8" => (Element::I8, 4),
        _ => return None,
    })
}

/// The shape that a mnemonic names, such as `v_mfma_f32_16x16x16f16`.
pub(crate) fn find(mnemonic: &str) -> Option<Shape> {
    let (wmma, rest) = match mnemonic.strip_prefix("v_wmma_") {
        Some(rest) => (true, rest),
        None => (false, mnemonic.strip_prefix("v_mfma_")?),
    };
    let (output, rest) = rest.split_once('_')?;
    let output = match output {
        "f32" => Element::F32,
        "f64" => Element::F64,
        "i32" => Element::I8,
        _ => return None,
    };
    let mut dimensions = rest.splitn(3, 'x');
    let (rows, columns, tail) = (dimensions.next()?, dimensions.next()?, dimensions.next()?);
    let digits = tail.find(|c: char| !c.is_ascii_digit())?;
    let (rows, columns, depth): (usize, usize, usize) =
        (rows.parse().ok()?, columns.parse().ok()?, tail[..digits].parse().ok()?);
    let (input, per_lane) = element(&tail[digits..])?;
    let matches = match output {
        Element::F64 => input == Element::F64 && rows == 16,
        Element::I8 => input == Element::I8,
        _ => !matches!(input, Element::F64 | Element::I8),
    };
    if rows != columns || !matches!(rows, 4 | 16 | 32) || depth == 0 || !matches || wmma && rows != 16 {
        return None;
    }
    let blocks = if wmma { 1 } else { (64 * per_lane / (rows * depth)).max(1) };
    Some(Shape { rows, depth, blocks, input, output, wmma })
}

impl Layout {
    fn new(shape: Shape, wave: &Wave, generation: Generation) -> Self {
        let lanes = wave.size as usize;
        let doubled = shape.wmma && generation == Generation::Gfx11;
        let groups = if doubled { 1 } else { lanes / shape.rows / shape.blocks };
        Self { shape, lanes, per_lane: shape.depth / groups, doubled }
    }

    /// The lane, and the index in the lane, of element `k` of a row of A or a column of B.
    fn input(&self, block: usize, row: usize, k: usize) -> (usize, usize) {
        let group = if self.doubled { 0 } else { block.max(k / self.per_lane) };
        (group * self.shape.rows + row, k % self.per_lane)
    }

    /// The lane, and the index in the lane, of an element of C and D.
    fn output(&self, block: usize, row: usize, column: usize) -> (usize, usize) {
        let (rows, groups) = (self.shape.rows, self.lanes / self.shape.rows);
        if self.doubled {
            return (row % groups * rows + column, row / groups);
        }
        if self.shape.wmma {
            let each = rows / groups;
            return (row / each * rows + column, row % each);
        }
        if self.shape.output == Element::F64 {
            return (row % groups * rows + column, row / groups);
        }
        if rows == 4 {
            return (block * 4 + column, row);
        }
        let index = block * rows * rows / self.lanes + row / (4 * groups) * 4 + row % 4;
        (row / 4 % groups * rows + column, index)
    }
}

/// The bits of an element of an operand, which is a register or a constant.
fn bits(wave: &Wave, operand: &Operand, kind: Element, (lane, index): (usize, usize)) -> Result<u64, FaultKind> {
    let word = |at: usize| Ok::<u64, FaultKind>(wave.vector(operand, at as u32)?[lane].into());
    Ok(match kind {
        Element::F32 => word(index)?,
        Element::F64 => word(2 * index)? | word(2 * index + 1)? << 32,
        Element::F16 | Element::Bf16 => word(index / 2)? >> (16 * (index % 2)) & 0xffff,
        Element::I8 => word(index / 4)? >> (8 * (index % 4)) & 0xff,
    })
}

/// The value of an input element.
fn number(kind: Element, bits: u64, signed: bool) -> f64 {
    let wide = |format| f64::from_bits(PLAIN.convert(format, F64, bits));
    match kind {
        Element::F16 => wide(F16),
        Element::Bf16 => wide(BF16),
        Element::F32 => wide(F32),
        Element::F64 => f64::from_bits(bits),
        Element::I8 if signed => (bits as i8).into(),
        Element::I8 => (bits as u8).into(),
    }
}

/// The bits of an element of C.
fn addend(wave: &Wave, operand: &Operand, output: Element, place: (usize, usize)) -> Result<u64, FaultKind> {
    let constant = !matches!(operand.kind, Kind::Vector { .. } | Kind::Accumulator { .. });
    match output {
        Element::F64 if constant => wave.uniform(operand, Ty::F64),
        _ if constant => wave.uniform(operand, if output == Element::I8 { Ty::B32 } else { Ty::F32 }),
        Element::F64 => bits(wave, operand, Element::F64, place),
        _ => bits(wave, operand, Element::F32, place),
    }
}

/// Computes one element of the result.
fn dot(output: Element, a: &[f64], b: &[f64], c: u64) -> u64 {
    match output {
        Element::F64 => a.iter().zip(b).fold(f64::from_bits(c), |s, (&x, &y)| x.mul_add(y, s)).to_bits(),
        Element::I8 => {
            let sum: i64 = a.iter().zip(b).map(|(&x, &y)| (x * y) as i64).sum();
            i64::from(c as u32 as i32).wrapping_add(sum) as u64
        }
        _ => {
            let sum = a.iter().zip(b).fold(number(Element::F32, c, false), |s, (&x, &y)| s + x * y);
            PLAIN.convert(F64, F32, sum.to_bits())
        }
    }
}

/// Executes a matrix product. All lanes take part, whatever EXEC says.
pub(crate) fn execute(machine: &mut Machine, inst: &Inst, shape: Shape) -> Result<(), FaultKind> {
    let generation = machine.target.generation;
    let wave = &mut *machine.wave;
    let expected = if shape.wmma { 32 } else { 64 };
    let supported = if shape.wmma { generation >= Generation::Gfx11 } else { generation == Generation::Gfx9 };
    if wave.size != expected || !supported || inst.mods.clamp || inst.mods.op_sel != 0 || inst.mods.neg_hi != 0 {
        return unsupported("this form of a matrix product");
    }
    if shape.wmma && wave.exec() != wave.all() {
        return unsupported("a matrix product with inactive lanes");
    }
    let signed = [0, 1].map(|at| !shape.wmma || inst.mods.neg_lo >> at & 1 == 1);
    if inst.mods.neg_lo != 0 && shape.input != Element::I8 {
        return unsupported("a negated matrix");
    }
    let layout = Layout::new(shape, wave, generation);
    let mut results = Vec::with_capacity(shape.blocks * shape.rows * shape.rows);
    for block in 0..shape.blocks {
        let rows = |operand: usize| -> Result<Vec<Vec<f64>>, FaultKind> {
            let source = inst.operand(operand)?;
            let value = |row, k| {
                let bits = bits(wave, source, shape.input, layout.input(block, row, k))?;
                Ok(number(shape.input, bits, signed[operand - 1]))
            };
            (0..shape.rows).map(|row| (0..shape.depth).map(|k| value(row, k)).collect()).collect()
        };
        let (a, b) = (rows(1)?, rows(2)?);
        for (row, a) in a.iter().enumerate() {
            for (column, b) in b.iter().enumerate() {
                let place = layout.output(block, row, column);
                let c = addend(wave, inst.operand(3)?, shape.output, place)?;
                results.push((place, dot(shape.output, a, b, c)));
            }
        }
    }
    let dst = inst.operand(0)?;
    for ((lane, index), value) in results {
        let words = if shape.output == Element::F64 { 2 } else { 1 };
        for part in 0..words {
            wave.vector_mut(dst, (index * words + part) as u32)?[lane] = (value >> (32 * part)) as u32;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_from_names() {
        let shape = |name| find(name).map(|s| (s.rows, s.depth, s.blocks, s.input));
        assert_eq!(shape("v_mfma_f32_16x16x16f16"), Some((16, 16, 1, Element::F16)));
        assert_eq!(shape("v_mfma_f32_32x32x8bf16_1k"), Some((32, 8, 1, Element::Bf16)));
        assert_eq!(shape("v_mfma_f32_32x32x1f32"), Some((32, 1, 2, Element::F32)));
        assert_eq!(shape("v_mfma_f32_4x4x4f16"), Some((4, 4, 16, Element::F16)));
        assert_eq!(shape("v_mfma_i32_16x16x32_i8"), Some((16, 32, 1, Element::I8)));
        assert_eq!(shape("v_wmma_f32_16x16x16_f16"), Some((16, 16, 1, Element::F16)));
        assert_eq!(shape("v_mfma_f32_16x16x16strange"), None);
    }
}
