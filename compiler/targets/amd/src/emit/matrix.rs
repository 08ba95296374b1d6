//! Matrix products of a warp, `mma.sync` and `wmma.mma`, by shuffles and scalar products.
//!
//! [`atoll_emit::matrix`] describes the layout of the matrices.
//!
//! *Rounding.* The same as on the host target: fused multiply-adds add the products to the
//! accumulator in ascending k, with one rounding per product. An f16 result is rounded once more at
//! the end.

use super::*;
use atoll_emit::Arithmetic;
use atoll_emit::matrix::{MatrixShape, MatrixTypes, is_known, per_register};
use atoll_lower::program::elem_of;
use std::collections::HashMap;

/// Rows of A, or columns of B, in a tile.
const TILE: u32 = 8;
/// Lanes that share a row of a tile.
const ROW_LANES: u32 = 4;
/// Lanes of a warp.
pub(super) const LANES: u32 = 32;

/// A factor of a product: the lane's own registers, and the registers of other lanes that were
/// read.
struct Factor {
    ty: ScalarType,
    registers: Vec<Val>,
    /// Key: the register, and the lane's position within its row; for B also the half.
    read: HashMap<(u32, u32), Val>,
}

impl Emitter<'_> {
    /// `mma.sync.aligned.shape.row.col.d.a.b.c` and `wmma.mma.sync.aligned.row.col.shape…`
    pub(super) fn matrix_product(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let (Some(shape), [d, a, b, c]) = (MatrixShape::of(inst), inst.ops.as_slice()) else {
            return Err(self.malformed(inst, "needs a shape and four operands"));
        };
        let Some(types) = MatrixTypes::of(inst) else {
            return Err(self.malformed(inst, "needs the types of its matrices"));
        };
        if !is_known(inst, shape, types) {
            return Err(self.unsupported(inst, "a product of this shape and these types"));
        }
        let per = per_register(types.a);
        let a = self.factor(inst, a, shape.m * shape.k / (LANES * per), types.a)?;
        let b = self.factor(inst, b, shape.n * shape.k / (LANES * per), types.b)?;
        let start = self.accumulators(inst, c, shape.m * shape.n / LANES, types.c)?;
        let sums = self.multiply(inst, shape, a, b, start);
        self.write_accumulators(inst, d, &sums, types.d)
    }

    /// The registers of a vector operand. An error if there are fewer than `count`.
    pub(super) fn registers<'i>(&self, inst: &Inst, operand: &'i Opnd, count: u32) -> Result<&'i [Opnd], LowerError> {
        let parts = match operand {
            Opnd::Vec(parts) => parts.as_slice(),
            single => std::slice::from_ref(single),
        };
        if parts.len() < count as usize {
            return Err(self.malformed(inst, "has a matrix of too few registers"));
        }
        Ok(parts)
    }

    fn factor(&mut self, inst: &Inst, operand: &Opnd, count: u32, ty: ScalarType) -> Result<Factor, LowerError> {
        let elem = if ty == ScalarType::F64 { Elem::F64 } else { Elem::I32 };
        let registers = self.registers(inst, operand, count)?.iter().take(count as usize).cloned();
        let registers = registers.collect::<Vec<_>>().iter().map(|r| self.operand(r, elem)).collect();
        Ok(Factor { ty, registers, read: HashMap::new() })
    }

    /// The number at a position in a register.
    fn number(&mut self, register: &Val, ty: ScalarType, place: u32) -> Val {
        match ty {
            ScalarType::F16 | ScalarType::Bf16 => {
                let moved = self.w.bin_const("lshr", register, (16 * place).into());
                let bits = self.w.resize(&moved, Elem::I16, false);
                Arithmetic(self).half_to_float(&bits, ty)
            }
            // The product uses only 10 bits of the fraction.
            ScalarType::Tf32 => {
                let bits = self.w.bin_const("and", register, -0x2000);
                self.w.cast("bitcast", &bits, Elem::F32)
            }
            ScalarType::F64 => register.clone(),
            _ => Arithmetic(self).sub_register(register, 8 * place, 8, ty == ScalarType::S8),
        }
    }

    /// The `count` input accumulators.
    fn accumulators(
        &mut self,
        inst: &Inst,
        operand: &Opnd,
        count: u32,
        ty: ScalarType,
    ) -> Result<Vec<Val>, LowerError> {
        if ty == ScalarType::F16 {
            let registers = self.registers(inst, operand, count / 2)?[..count as usize / 2].to_vec();
            let pairs = registers.iter().map(|r| Arithmetic(self).halves(r, ScalarType::F16x2, 1, false));
            return Ok(pairs.collect::<Vec<_>>().concat());
        }
        let registers = self.registers(inst, operand, count)?[..count as usize].to_vec();
        Ok(registers.iter().map(|r| self.operand(r, elem_of(ty))).collect())
    }

    fn write_accumulators(
        &mut self,
        inst: &Inst,
        operand: &Opnd,
        sums: &[Val],
        ty: ScalarType,
    ) -> Result<(), LowerError> {
        let values: Vec<Val> = match ty {
            ScalarType::F16 => {
                let halves: Vec<Val> = sums.iter().map(|s| Arithmetic(self).float_to_half(s, ty)).collect();
                halves.chunks(2).map(|pair| Arithmetic(self).join_halves(&pair[0], &pair[1])).collect()
            }
            _ => sums.to_vec(),
        };
        for (register, value) in self.registers(inst, operand, values.len() as u32)?.iter().zip(&values) {
            self.set_operand(register, value, false);
        }
        Ok(())
    }

    /// Adds the products to the accumulators.
    fn multiply(&mut self, inst: &Inst, shape: MatrixShape, mut a: Factor, mut b: Factor, start: Vec<Val>) -> Vec<Val> {
        let is_int = !start[0].ty.elem.is_float();
        let saturates = is_int && inst.has("satfinite");
        let per = per_register(a.ty);
        // Sums of products of bytes cannot overflow. If the result must saturate, the input is
        // added last.
        let mut sums: Vec<Val> =
            if saturates { start.iter().map(|s| constant(s.ty, 0)).collect() } else { start.clone() };
        let (row_tiles, k_tiles) = (shape.m / TILE, shape.k / (ROW_LANES * per));
        for k in 0..shape.k {
            let (k_tile, within, place) = (k / (ROW_LANES * per), k / per % ROW_LANES, k % per);
            for (index, sum) in sums.iter_mut().enumerate() {
                let (tile, half) = (index as u32 / 2, index as u32 % 2);
                let x = self.of_row(&mut a, k_tile * row_tiles + tile % row_tiles, within);
                let y = self.of_column(&mut b, tile / row_tiles * k_tiles + k_tile, within, half);
                let (x, y) = (self.number(&x, a.ty, place), self.number(&y, b.ty, place));
                *sum = if is_int {
                    let product = self.w.bin("mul", &x, &y);
                    self.w.bin("add", sum, &product)
                } else {
                    self.w.call("llvm.fma", sum.ty, &[&x, &y, sum])
                };
            }
        }
        if saturates {
            sums = sums.iter().zip(&start).map(|(s, c)| self.w.call("llvm.sadd.sat", s.ty, &[s, c])).collect();
        }
        sums
    }

    /// A register of A from the lane of the same row that holds the column.
    fn of_row(&mut self, factor: &mut Factor, register: u32, within: u32) -> Val {
        if let Some(known) = factor.read.get(&(register, within)) {
            return known.clone();
        }
        let lane = self.lane();
        let row = self.w.bin_const("and", &lane, i128::from(LANES - ROW_LANES));
        let from = self.w.bin_const("or", &row, within.into());
        let value = self.of_lane(&factor.registers[register as usize], &from);
        factor.read.insert((register, within), value.clone());
        value
    }

    /// A register of B from the lane that holds the row, for the column of the lane's first or
    /// second result.
    fn of_column(&mut self, factor: &mut Factor, register: u32, within: u32, half: u32) -> Val {
        let key = (register, 2 * within + half);
        if let Some(known) = factor.read.get(&key) {
            return known.clone();
        }
        let lane = self.lane();
        let pair = self.w.bin_const("and", &lane, i128::from(ROW_LANES - 1));
        let first = self.w.bin_const("shl", &pair, 3);
        let from = self.w.bin_const("add", &first, i128::from(half * ROW_LANES + within));
        let value = self.of_lane(&factor.registers[register as usize], &from);
        factor.read.insert(key, value.clone());
        value
    }
}
