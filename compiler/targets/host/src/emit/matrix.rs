//! Matrix products of a warp: `mma.sync` and `wmma.mma`.
//!
//! [`atoll_emit::matrix`] describes their layout.
//!
//! *Rounding.* Products of f16, bf16 and tf32 (only the 10 bits of its fraction are used) are
//! exact. They are added to the f32 accumulator in ascending k by fused multiply-adds, with one
//! rounding per product; an f16 result is rounded once more at the end. f64 works the same way in
//! double precision. NVIDIA adds several products before it rounds, in an unspecified order:
//! results differ by at most 2·k units in the last place of the largest partial sum. Integers wrap
//! around, or saturate with `.satfinite`.
//!
//! *Speed.* For each k, one constant shuffle each moves the column of A and the row of B into the
//! layout of the accumulators; the rest are fused multiply-adds of whole registers.

use super::*;
use atoll_emit::matrix::{MatrixShape, MatrixTypes, is_known, per_register};
use atoll_ptx::ScalarType;
use std::collections::hash_map::Entry;

/// Rows of A, or columns of B, in a tile.
const TILE: u32 = 8;
/// Lanes that share a row of a tile.
const ROW_LANES: u32 = 4;

/// A product being emitted.
struct Product {
    shape: MatrixShape,
    /// Numbers of A and B by register and position in it, 32 lanes each.
    a: Vec<Val>,
    b: Vec<Val>,
    per: u32,
    /// Factors already shuffled to the layout of the accumulators, by factor, number and lane or
    /// lanes.
    placed: HashMap<(bool, u32, u32), Val>,
}

impl Emitter<'_> {
    /// `mma.sync.aligned.shape.row.col.d.a.b.c` and `wmma.mma.sync.aligned.row.col.shape…`
    pub(super) fn matrix_product(&mut self, inst: &Inst) -> Result<(), HostError> {
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
        let (a_registers, b_registers) = (shape.m * shape.k / (LANES * per), shape.n * shape.k / (LANES * per));
        let factors = Product {
            shape,
            a: self.factor(inst, a, a_registers, types.a)?,
            b: self.factor(inst, b, b_registers, types.b)?,
            per,
            placed: HashMap::new(),
        };
        let count = shape.m * shape.n / LANES;
        let start = self.accumulators(inst, c, count, types.c)?;
        let sums = self.multiply(inst, factors, start);
        self.write_accumulators(inst, d, &sums, types.d)
    }

    /// The registers of a vector operand, at least `count`.
    pub(super) fn registers<'i>(&self, inst: &Inst, operand: &'i Opnd, count: u32) -> Result<&'i [Opnd], HostError> {
        let parts = match operand {
            Opnd::Vec(parts) => parts.as_slice(),
            single => std::slice::from_ref(single),
        };
        if parts.len() < count as usize {
            return Err(self.malformed(inst, "has a matrix of too few registers"));
        }
        Ok(parts)
    }

    /// The numbers of a factor, ordered by register and position in the register.
    fn factor(&mut self, inst: &Inst, operand: &Opnd, count: u32, ty: ScalarType) -> Result<Vec<Val>, HostError> {
        let mut numbers = Vec::new();
        for register in &self.registers(inst, operand, count)?[..count as usize] {
            match ty {
                ScalarType::F16 | ScalarType::Bf16 => {
                    let pair = if ty == ScalarType::F16 { ScalarType::F16x2 } else { ScalarType::Bf16x2 };
                    numbers.extend(Arithmetic(self).halves(register, pair, LANES, false));
                }
                ScalarType::Tf32 => {
                    let bits = self.get(register, Elem::I32, LANES);
                    let bits = self.w.bin_const("and", &bits, -0x2000);
                    numbers.push(self.w.cast("bitcast", &bits, Elem::F32));
                }
                ScalarType::F64 => numbers.push(self.get(register, Elem::F64, LANES)),
                _ => {
                    let bytes = self.get(register, Elem::I32, LANES);
                    numbers
                        .extend((0..4).map(|i| Arithmetic(self).sub_register(&bytes, 8 * i, 8, ty == ScalarType::S8)));
                }
            }
        }
        Ok(numbers)
    }

    /// The input accumulators: `count` numbers per lane.
    fn accumulators(&mut self, inst: &Inst, operand: &Opnd, count: u32, ty: ScalarType) -> Result<Vec<Val>, HostError> {
        if ty == ScalarType::F16 {
            let registers = self.registers(inst, operand, count / 2)?.to_vec();
            return Ok(registers[..count as usize / 2]
                .iter()
                .flat_map(|r| Arithmetic(self).halves(r, ScalarType::F16x2, LANES, false))
                .collect());
        }
        let registers = self.registers(inst, operand, count)?.to_vec();
        Ok(registers[..count as usize].iter().map(|r| self.get(r, atoll_lower::program::elem_of(ty), LANES)).collect())
    }

    fn write_accumulators(
        &mut self,
        inst: &Inst,
        operand: &Opnd,
        sums: &[Val],
        ty: ScalarType,
    ) -> Result<(), HostError> {
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
    fn multiply(&mut self, inst: &Inst, mut factors: Product, start: Vec<Val>) -> Vec<Val> {
        let is_int = !start[0].ty.elem.is_float();
        let saturates = is_int && inst.has("satfinite");
        // Sums of bytes cannot overflow; if the result must saturate, the input is added last.
        let mut sums: Vec<Val> =
            if saturates { start.iter().map(|s| constant(s.ty, 0)).collect() } else { start.clone() };
        let row_tiles = factors.shape.m / TILE;
        for k in 0..factors.shape.k {
            for (index, sum) in sums.iter_mut().enumerate() {
                let (tile, half) = (index as u32 / 2, index as u32 % 2);
                let a = self.column_of_a(&mut factors, tile % row_tiles, k);
                let b = self.row_of_b(&mut factors, tile / row_tiles, half, k);
                *sum = if is_int {
                    let product = self.w.bin("mul", &a, &b);
                    self.w.bin("add", sum, &product)
                } else {
                    self.w.call("llvm.fma", sum.ty, &[&a, &b, sum])
                };
            }
        }
        if saturates {
            sums = sums.iter().zip(&start).map(|(s, c)| self.w.call("llvm.sadd.sat", s.ty, &[s, c])).collect();
        }
        sums
    }

    /// For each lane's results, the number in column k of A and in their row.
    fn column_of_a(&mut self, factors: &mut Product, tile: u32, k: u32) -> Val {
        let (k_tile, lane, place) = (k / (ROW_LANES * factors.per), k / factors.per % ROW_LANES, k % factors.per);
        let number = (k_tile * (factors.shape.m / TILE) + tile) * factors.per + place;
        let pattern: Vec<u32> = (0..LANES).map(|l| l / ROW_LANES * ROW_LANES + lane).collect();
        self.placed(&mut factors.placed, (true, number, lane), &factors.a[number as usize], &pattern)
    }

    /// For each lane's first or second result of a tile, the number in row k of B and in its
    /// column.
    fn row_of_b(&mut self, factors: &mut Product, tile: u32, half: u32, k: u32) -> Val {
        let k_tiles = factors.shape.k / (ROW_LANES * factors.per);
        let (k_tile, lane, place) = (k / (ROW_LANES * factors.per), k / factors.per % ROW_LANES, k % factors.per);
        let number = (tile * k_tiles + k_tile) * factors.per + place;
        let pattern: Vec<u32> = (0..LANES).map(|l| (2 * (l % ROW_LANES) + half) * ROW_LANES + lane).collect();
        self.placed(&mut factors.placed, (false, number, 2 * lane + half), &factors.b[number as usize], &pattern)
    }

    fn placed(
        &mut self,
        placed: &mut HashMap<(bool, u32, u32), Val>,
        key: (bool, u32, u32),
        number: &Val,
        pattern: &[u32],
    ) -> Val {
        match placed.entry(key) {
            Entry::Occupied(entry) => entry.get().clone(),
            Entry::Vacant(entry) => entry.insert(self.w.shuffle(number, pattern)).clone(),
        }
    }
}
