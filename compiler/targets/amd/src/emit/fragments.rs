//! Matrix transfers between memory and the registers of a warp: `ldmatrix`, `stmatrix`,
//! `movmatrix`, `wmma.load` and `wmma.store`. The layouts are those of [`atoll_emit::matrix`].

use super::matrix::LANES;
use super::*;
use atoll_emit::matrix::{MatrixShape, per_register};
use atoll_lower::program::storage;

/// The number of rows of the matrices that `ldmatrix` moves, and of 16-bit numbers in a row.
const ROWS: u32 = 8;
/// Registers of a row.
const ROW_REGISTERS: u32 = 4;

/// The matrix of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fragment {
    A,
    B,
    Accumulator,
}

/// A wmma fragment.
#[derive(Clone, Copy, Debug)]
struct Layout {
    fragment: Fragment,
    ty: ScalarType,
    shape: MatrixShape,
    /// Numbers in a register.
    per: u32,
}

/// A coordinate of a number in each lane: lane l has it at `first + group · (l div 4) + within · (l
/// mod 4)`.
#[derive(Clone, Copy)]
struct Place {
    first: u32,
    group: u32,
    within: u32,
}

impl Layout {
    /// The number of registers of the fragment.
    fn registers(self) -> u32 {
        let MatrixShape { m, n, k } = self.shape;
        let numbers = match self.fragment {
            Fragment::A => m * k,
            Fragment::B => k * n,
            Fragment::Accumulator => m * n,
        };
        numbers / (LANES * self.per)
    }

    /// Row and column of a number of the fragment, for all lanes.
    fn place(self, number: u32) -> [Place; 2] {
        let (shape, per) = (self.shape, self.per);
        let row_tiles = shape.m / ROWS;
        if self.fragment == Fragment::Accumulator {
            let tile = number / 2;
            let column = Place { first: tile / row_tiles * ROWS + number % 2, group: 0, within: 2 };
            return [Place { first: tile % row_tiles * ROWS, group: 1, within: 0 }, column];
        }
        let (register, place) = (number / per, number % per);
        let along = |k_tile: u32| Place { first: k_tile * ROW_REGISTERS * per + place, group: 0, within: per };
        let across = |tile: u32| Place { first: tile * ROWS, group: 1, within: 0 };
        if self.fragment == Fragment::A {
            [across(register % row_tiles), along(register / row_tiles)]
        } else {
            let k_tiles = shape.k / (ROW_REGISTERS * per);
            [along(register % k_tiles), across(register / k_tiles)]
        }
    }
}

impl Emitter<'_> {
    /// The lane's row within a tile, and its position within the row.
    fn group_and_within(&mut self) -> (Val, Val) {
        let lane = self.lane();
        (self.w.bin_const("lshr", &lane, 2), self.w.bin_const("and", &lane, 3))
    }

    /// The number of matrices that an `.m8n8….b16` instruction moves.
    fn matrices(&self, inst: &Inst) -> Result<u32, LowerError> {
        let count = [("x1", 1), ("x2", 2), ("x4", 4)].into_iter().find(|(word, _)| inst.has(word));
        match count {
            Some((_, count)) if inst.has("m8n8") && inst.has("b16") => Ok(count),
            _ => Err(self.unsupported(inst, "")),
        }
    }

    /// The pointer to a row of a matrix, whose address another lane holds.
    fn row_pointer(&mut self, own: &Val, matrix: u32, row: &Val) -> Val {
        let bits = if own.ty.elem.bits() == 64 { Elem::I64 } else { Elem::I32 };
        let address = self.w.cast("ptrtoint", own, bits);
        let from = self.w.bin_const("add", row, (matrix * ROWS).into());
        let address = self.of_lane(&address, &from);
        self.w.cast("inttoptr", &address, own.ty.elem)
    }

    /// `ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {…}, [a]`: lane 8i + j has the address of
    /// row j of matrix i.
    pub(super) fn load_matrices(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let count = self.matrices(inst)?;
        let own = self.pointer(inst, self.op(inst, 1)?)?;
        let (group, within) = self.group_and_within();
        let mut values = Vec::new();
        for matrix in 0..count {
            values.push(if inst.has("trans") {
                let mut halves = Vec::new();
                for second in 0..2 {
                    let row = self.w.bin_const("shl", &within, 1);
                    let row = self.w.bin_const("add", &row, second);
                    let at = self.row_pointer(&own, matrix, &row);
                    let offset = self.w.bin_const("shl", &group, 1);
                    let at = self.w.offset(&at, &offset);
                    halves.push(self.w.load(Ty::scalar(Elem::I16), &at));
                }
                atoll_emit::Arithmetic(self).join_halves(&halves[0], &halves[1])
            } else {
                let at = self.row_pointer(&own, matrix, &group);
                let offset = self.w.bin_const("shl", &within, 2);
                let at = self.w.offset(&at, &offset);
                self.w.load(I32, &at)
            });
        }
        let registers = self.registers(inst, self.op(inst, 0)?, count)?;
        for (register, value) in registers.iter().zip(&values) {
            self.set_operand(register, value, false);
        }
        Ok(())
    }

    /// `stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [a], {…}`
    pub(super) fn store_matrices(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let count = self.matrices(inst)?;
        let own = self.pointer(inst, self.op(inst, 0)?)?;
        let (group, within) = self.group_and_within();
        let registers = self.registers(inst, self.op(inst, 1)?, count)?.to_vec();
        for (matrix, register) in (0..count).zip(&registers) {
            let value = self.operand(register, Elem::I32);
            let value = if inst.has("trans") { self.transposed(&value) } else { value };
            let at = self.row_pointer(&own, matrix, &group);
            let offset = self.w.bin_const("shl", &within, 2);
            let at = self.w.offset(&at, &offset);
            self.w.store(&value, &at);
        }
        Ok(())
    }

    /// `movmatrix.sync.aligned.m8n8.trans.b16 d, a`
    pub(super) fn transpose_matrix(&mut self, inst: &Inst) -> Result<(), LowerError> {
        if !inst.has("trans") || !inst.has("m8n8") {
            return Err(self.unsupported(inst, ""));
        }
        let value = self.operand(self.op(inst, 1)?, Elem::I32);
        let value = self.transposed(&value);
        self.set_operand(self.op(inst, 0)?, &value, false);
        Ok(())
    }

    /// Transposes an 8 × 8 matrix of 16-bit numbers, two per lane: row r, columns c and c + 1 of a
    /// lane become column r, rows c and c + 1.
    fn transposed(&mut self, matrix: &Val) -> Val {
        let (group, within) = self.group_and_within();
        let column = self.w.bin_const("lshr", &group, 1);
        let odd = self.w.bin_const("and", &group, 1);
        let shift = self.w.bin_const("shl", &odd, 4);
        let mut halves = Vec::new();
        for second in 0..2 {
            let row = self.w.bin_const("shl", &within, 1);
            let row = self.w.bin_const("add", &row, second);
            let from = self.w.bin_const("shl", &row, 2);
            let from = self.w.bin("or", &from, &column);
            let pair = self.of_lane(matrix, &from);
            let half = self.w.bin("lshr", &pair, &shift);
            halves.push(self.w.resize(&half, Elem::I16, false));
        }
        atoll_emit::Arithmetic(self).join_halves(&halves[0], &halves[1])
    }

    /// `wmma.load.a.sync.aligned.layout.shape.space.type {…}, [p], stride`
    pub(super) fn load_fragment(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let layout = self.fragment(inst)?;
        let halves_of_accumulator = layout.fragment == Fragment::Accumulator && layout.ty != ScalarType::F16;
        let layout = Layout { per: if halves_of_accumulator { 1 } else { layout.per }, ..layout };
        let registers = self.registers(inst, self.op(inst, 0)?, 1)?.to_vec();
        let base = self.pointer(inst, self.op(inst, 1)?)?;
        let stride = self.leading_dimension(inst, layout);
        let element = storage(layout.ty);
        let mut loaded = Vec::new();
        for register in 0..layout.registers() {
            let mut sum = None;
            for place in 0..layout.per {
                let at = self.element_pointer(inst, &base, &stride, layout, register * layout.per + place);
                let number = self.w.load(Ty::scalar(element), &at);
                if layout.per == 1 {
                    sum = Some(number);
                    continue;
                }
                let wide = self.w.resize(&number, Elem::I32, false);
                let moved = self.w.bin_const("shl", &wide, (element.bits() * place).into());
                sum = Some(match sum {
                    Some(sum) => self.w.bin("or", &sum, &moved),
                    None => moved,
                });
            }
            loaded.extend(sum);
        }
        // The operand for a fragment of f16 has twice as many registers as the fragment needs.
        for (register, value) in registers.iter().zip(loaded.iter().cycle()) {
            self.set_operand(register, value, false);
        }
        Ok(())
    }

    /// `wmma.store.d.sync.aligned.layout.shape.space.type [p], {…}, stride`
    pub(super) fn store_fragment(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let layout = self.fragment(inst)?;
        let layout = Layout { per: if layout.ty == ScalarType::F16 { 2 } else { 1 }, ..layout };
        let count = layout.registers();
        let registers = self.registers(inst, self.op(inst, 1)?, count)?.to_vec();
        let base = self.pointer(inst, self.op(inst, 0)?)?;
        let stride = self.leading_dimension(inst, layout);
        let bits = layout.ty.bits();
        for (register, operand) in (0..count).zip(&registers) {
            let value = self.operand(operand, Elem::int(bits * layout.per));
            for place in 0..layout.per {
                let number = self.w.bin_const("lshr", &value, (place * bits).into());
                let number = self.w.resize(&number, Elem::int(bits), false);
                let at = self.element_pointer(inst, &base, &stride, layout, register * layout.per + place);
                self.w.store(&number, &at);
            }
        }
        Ok(())
    }

    /// The layout of a `wmma.load` or `wmma.store`.
    fn fragment(&self, inst: &Inst) -> Result<Layout, LowerError> {
        let fragment = match inst.form.modifiers.get(1).map(|m| m.as_str()) {
            Some("a") => Fragment::A,
            Some("b") => Fragment::B,
            Some("c" | "d") => Fragment::Accumulator,
            _ => return Err(self.unsupported(inst, "")),
        };
        let (ty, shape) = (self.ty_of(inst)?, MatrixShape::of(inst));
        let per = per_register(ty);
        match shape {
            Some(s) if s.m % ROWS == 0 && s.n % ROWS == 0 && s.k % (ROW_REGISTERS * per) == 0 && s.m * s.n <= 256 => {
                Ok(Layout { fragment, ty, shape: s, per })
            }
            _ => Err(self.unsupported(inst, "a fragment of this shape and type")),
        }
    }

    /// The distance in elements between rows, or between columns of a `.col` matrix.
    fn leading_dimension(&mut self, inst: &Inst, layout: Layout) -> Val {
        let Layout { fragment, shape, .. } = layout;
        if let Some(stride) = inst.ops.get(2) {
            let stride = self.operand(stride, Elem::I32);
            return self.w.resize(&stride, Elem::I64, false);
        }
        let (rows, columns) = match fragment {
            Fragment::A => (shape.m, shape.k),
            Fragment::B => (shape.k, shape.n),
            Fragment::Accumulator => (shape.m, shape.n),
        };
        constant(I64, if inst.has("row") { columns } else { rows }.into())
    }

    /// The address of a number of the fragment that the lane holds.
    fn element_pointer(&mut self, inst: &Inst, base: &Val, stride: &Val, layout: Layout, number: u32) -> Val {
        let (group, within) = self.group_and_within();
        let [row, column] = layout.place(number).map(|place| {
            let groups = self.w.bin_const("mul", &group, place.group.into());
            let withins = self.w.bin_const("mul", &within, place.within.into());
            let sum = self.w.bin("add", &groups, &withins);
            let sum = self.w.bin_const("add", &sum, place.first.into());
            self.w.resize(&sum, Elem::I64, false)
        });
        let (outer, inner) = if inst.has("row") { (row, column) } else { (column, row) };
        let offset = self.w.bin("mul", &outer, stride);
        let offset = self.w.bin("add", &offset, &inner);
        let offset = self.w.bin_const("mul", &offset, storage(layout.ty).bytes().into());
        self.w.offset(base, &offset)
    }
}
