//! Matrix transfers between memory and the registers of a warp: `ldmatrix`, `stmatrix`,
//! `movmatrix`, `wmma.load` and `wmma.store`.
//!
//! PTX requires that all lanes of the warp execute them; inactive lanes are not detected.

use super::access::{Address, Guarded};
use super::*;
use atoll_emit::matrix::{MatrixShape, per_register};
use atoll_emit::writer::intrinsics;
use atoll_kgraph::host_abi::AccessKind;
use atoll_lower::program::storage;
use atoll_ptx::ScalarType;

/// Rows of the matrices that `ldmatrix` moves, and 16-bit numbers per row.
const ROWS: u32 = 8;
/// Registers per row.
const ROW_REGISTERS: u32 = 4;
/// Bytes per row.
const ROW_BYTES: u32 = 16;

/// The matrix that a fragment belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fragment {
    A,
    B,
    Accumulator,
}

impl Emitter<'_> {
    /// `ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {…}, [a]`: lane 8i + j provides the address
    /// of row j of matrix i.
    pub(super) fn load_matrices(&mut self, inst: &Inst) -> Result<(), HostError> {
        let count = self.matrices(inst)?;
        let pointers = self.row_pointers(inst, 1, AccessKind::Read, count)?;
        let row = Ty { elem: Elem::I32, lanes: ROW_REGISTERS };
        let mut values = Vec::new();
        for matrix in 0..count {
            let rows = (0..ROWS)
                .map(|j| {
                    let at = self.w.extract(&pointers, &constant(I32, (matrix * ROWS + j).into()));
                    self.w.value(row, format_args!("load {row}, {at}, align {ROW_BYTES}"))
                })
                .collect();
            let whole = self.join(rows);
            values.push(if inst.has("trans") { self.transposed(&whole) } else { whole });
        }
        let registers = self.registers(inst, self.op(inst, 0)?, count)?;
        for (register, value) in registers.iter().zip(&values) {
            self.set_operand(register, value, false);
        }
        Ok(())
    }

    /// `stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [a], {…}`
    pub(super) fn store_matrices(&mut self, inst: &Inst) -> Result<(), HostError> {
        let count = self.matrices(inst)?;
        let pointers = self.row_pointers(inst, 0, AccessKind::Write, count)?;
        let registers = self.registers(inst, self.op(inst, 1)?, count)?.to_vec();
        for (matrix, register) in registers.iter().enumerate().take(count as usize) {
            let value = self.get(register, Elem::I32, LANES);
            let value = if inst.has("trans") { self.transposed(&value) } else { value };
            for j in 0..ROWS {
                let part: Vec<u32> = (0..ROW_REGISTERS).map(|i| j * ROW_REGISTERS + i).collect();
                let row = self.w.shuffle(&value, &part);
                let at = self.w.extract(&pointers, &constant(I32, (matrix as u32 * ROWS + j).into()));
                self.w.effect(format_args!("store {row}, {at}, align {ROW_BYTES}"));
            }
        }
        Ok(())
    }

    /// `movmatrix.sync.aligned.m8n8.trans.b16 d, a`
    pub(super) fn transpose_matrix(&mut self, inst: &Inst) -> Result<(), HostError> {
        if !inst.has("trans") || !inst.has("m8n8") {
            return Err(self.unsupported(inst, ""));
        }
        let value = self.get(self.op(inst, 1)?, Elem::I32, LANES);
        let value = self.transposed(&value);
        self.set_operand(&inst.ops[0], &value, false);
        Ok(())
    }

    /// The addresses of the rows; only lanes that provide a row make an access.
    fn row_pointers(&mut self, inst: &Inst, operand: usize, kind: AccessKind, matrices: u32) -> Result<Val, HostError> {
        let around = self.mask.clone();
        if matrices * ROWS < LANES {
            let lanes: Vec<String> = (0..LANES).map(|lane| format!("i1 {}", lane < matrices * ROWS)).collect();
            let naming = Val { ty: MASK, text: format!("<{}>", lanes.join(", ")).into() };
            self.mask = Some(match &around {
                Some(around) => self.w.bin("and", around, &naming),
                None => naming,
            });
        }
        let address = self.address(inst, self.op(inst, operand)?, kind, ROW_BYTES);
        self.mask = around;
        Ok(self.lane_pointers(&address?))
    }

    /// The number of matrices that a `.m8n8….b16` instruction moves.
    fn matrices(&self, inst: &Inst) -> Result<u32, HostError> {
        let count = [("x1", 1), ("x2", 2), ("x4", 4)].into_iter().find(|(word, _)| inst.has(word));
        match count {
            Some((_, count)) if inst.has("m8n8") && inst.has("b16") => Ok(count),
            _ => Err(self.unsupported(inst, "")),
        }
    }

    /// Transposes an 8 × 8 matrix of 16-bit numbers, two per lane.
    fn transposed(&mut self, matrix: &Val) -> Val {
        let halves = Ty { elem: Elem::I16, lanes: 2 * LANES };
        let numbers = self.w.value(halves, format_args!("bitcast {matrix} to {halves}"));
        let pattern: Vec<u32> = (0..halves.lanes).map(|i| i % ROWS * ROWS + i / ROWS).collect();
        let turned = self.w.shuffle(&numbers, &pattern);
        self.w.value(matrix.ty, format_args!("bitcast {turned} to {}", matrix.ty))
    }

    /// `wmma.load.a.sync.aligned.layout.shape.space.type {…}, [p], stride`
    pub(super) fn load_fragment(&mut self, inst: &Inst) -> Result<(), HostError> {
        let (fragment, ty, shape) = self.fragment(inst)?;
        let registers = self.registers(inst, self.op(inst, 0)?, 1)?.to_vec();
        let element = storage(ty);
        let address = self.address(inst, self.op(inst, 1)?, AccessKind::Read, element.bytes())?;
        let base = self.first_pointer(&address);
        let stride = self.leading_dimension(inst, 2, fragment, shape)?;
        let per = if fragment == Fragment::Accumulator && ty != ScalarType::F16 { 1 } else { per_register(ty) };
        let mut loaded = Vec::new();
        for register in 0..registers_of(fragment, shape, per) {
            let mut numbers = Vec::new();
            for place in 0..per {
                let at =
                    self.element_pointers(inst, &base, &stride, fragment, shape, per, register * per + place, element);
                self.check_elements(inst, 1, AccessKind::Read, element, &at);
                let mask = self.mask_value();
                numbers.push(intrinsics::gather(&mut self.w, element, &at, element.bytes(), &mask));
            }
            loaded.push(self.joined_numbers(&numbers));
        }
        // The operand for a fragment of f16 has twice as many registers as the fragment needs.
        for (register, value) in registers.iter().zip(loaded.iter().cycle()) {
            self.set_operand(register, value, false);
        }
        Ok(())
    }

    /// `wmma.store.d.sync.aligned.layout.shape.space.type [p], {…}, stride`
    pub(super) fn store_fragment(&mut self, inst: &Inst) -> Result<(), HostError> {
        let (fragment, ty, shape) = self.fragment(inst)?;
        let per = if ty == ScalarType::F16 { 2 } else { 1 };
        let count = registers_of(fragment, shape, per);
        let registers = self.registers(inst, self.op(inst, 1)?, count)?.to_vec();
        let element = storage(ty);
        let address = self.address(inst, self.op(inst, 0)?, AccessKind::Write, element.bytes())?;
        let base = self.first_pointer(&address);
        let stride = self.leading_dimension(inst, 2, fragment, shape)?;
        for register in 0..count {
            let value = self.get(&registers[register as usize], Elem::int(ty.bits() * per), LANES);
            for place in 0..per {
                let number = self.w.bin_const("lshr", &value, (place * ty.bits()).into());
                let number = self.w.resize(&number, Elem::int(ty.bits()), false);
                let at =
                    self.element_pointers(inst, &base, &stride, fragment, shape, per, register * per + place, element);
                self.check_elements(inst, 0, AccessKind::Write, element, &at);
                let mask = self.mask_value();
                intrinsics::scatter(&mut self.w, &number, &at, element.bytes(), &mask);
            }
        }
        Ok(())
    }

    /// The fragment, element type and shape of a `wmma.load` or `wmma.store`.
    fn fragment(&self, inst: &Inst) -> Result<(Fragment, ScalarType, MatrixShape), HostError> {
        let fragment = match inst.form.modifiers.get(1).map(|m| m.as_str()) {
            Some("a") => Fragment::A,
            Some("b") => Fragment::B,
            Some("c" | "d") => Fragment::Accumulator,
            _ => return Err(self.unsupported(inst, "")),
        };
        let (ty, shape) = (self.ty_of(inst)?, MatrixShape::of(inst));
        let is_known = shape.is_some_and(|s| {
            s.m % ROWS == 0 && s.n % ROWS == 0 && s.k % (ROW_REGISTERS * per_register(ty)) == 0 && s.m * s.n <= 256
        });
        match shape {
            Some(shape) if is_known => Ok((fragment, ty, shape)),
            _ => Err(self.unsupported(inst, "a fragment of this shape and type")),
        }
    }

    /// The distance between rows (of a `.col` matrix: columns), in elements.
    fn leading_dimension(
        &mut self,
        inst: &Inst,
        index: usize,
        fragment: Fragment,
        shape: MatrixShape,
    ) -> Result<Val, HostError> {
        match inst.ops.get(index) {
            Some(stride) if self.is_uniform(stride) => {
                let stride = self.get(stride, Elem::I32, 1);
                Ok(self.w.resize(&stride, Elem::I64, false))
            }
            Some(_) => Err(self.unsupported(inst, "a stride that differs between lanes")),
            None => {
                let (rows, columns) = match fragment {
                    Fragment::A => (shape.m, shape.k),
                    Fragment::B => (shape.k, shape.n),
                    Fragment::Accumulator => (shape.m, shape.n),
                };
                Ok(constant(I64, if inst.has("row") { columns } else { rows }.into()))
            }
        }
    }

    /// Lane 0's pointer, which is the same for all lanes.
    fn first_pointer(&mut self, address: &Address) -> Val {
        match address {
            Address::Uniform(pointer) | Address::Strided(pointer, _) => pointer.clone(),
            Address::Each(pointers) => self.w.extract(pointers, &constant(I32, 0)),
        }
    }

    /// The addresses in memory of the numbers that the lanes hold at one position of a fragment.
    #[expect(clippy::too_many_arguments, reason = "a place in a fragment has as many coordinates")]
    fn element_pointers(
        &mut self,
        inst: &Inst,
        base: &Val,
        stride: &Val,
        fragment: Fragment,
        shape: MatrixShape,
        per: u32,
        number: u32,
        element: Elem,
    ) -> Val {
        let offsets: Vec<Val> = [true, false]
            .into_iter()
            .map(|of_row| {
                let lanes: Vec<String> = (0..LANES)
                    .map(|lane| {
                        let (row, column) = place(fragment, shape, per, number, lane);
                        format!("i64 {}", if of_row { row } else { column })
                    })
                    .collect();
                Val { ty: Ty { elem: Elem::I64, lanes: LANES }, text: format!("<{}>", lanes.join(", ")).into() }
            })
            .collect();
        let (outer, inner) = if inst.has("row") { (&offsets[0], &offsets[1]) } else { (&offsets[1], &offsets[0]) };
        let stride = self.w.splat(stride, LANES);
        let offset = self.w.bin("mul", outer, &stride);
        let offset = self.w.bin("add", &offset, inner);
        let offset = self.w.bin_const("mul", &offset, element.bytes().into());
        self.w.value(Ty { elem: Elem::Ptr, lanes: LANES }, format_args!("getelementptr i8, {base}, {offset}"))
    }

    /// In checked code, checks the elements one by one; the operand itself gives only the address
    /// of the first one.
    fn check_elements(&mut self, inst: &Inst, operand: usize, kind: AccessKind, element: Elem, at: &Val) {
        if let (true, Some(base)) = (self.check, inst.ops.get(operand)) {
            let sum = constant(at.ty.with(Elem::I64), 0);
            let access = Guarded { kind, bytes: element.bytes(), space: inst.form.space(), base, offset: 0, sum };
            self.guard_access(&access, &Address::Each(at.clone()));
        }
    }

    /// Packs numbers into a register, side by side.
    fn joined_numbers(&mut self, numbers: &[Val]) -> Val {
        if let [one] = numbers {
            return one.clone();
        }
        let bits = numbers[0].ty.elem.bits();
        let mut sum = constant(numbers[0].ty.with(Elem::I32), 0);
        for (index, number) in numbers.iter().enumerate() {
            let wide = self.w.resize(number, Elem::I32, false);
            let moved = self.w.bin_const("shl", &wide, i128::from(bits) * index as i128);
            sum = self.w.bin("or", &sum, &moved);
        }
        sum
    }
}

/// The number of registers that a fragment fills.
fn registers_of(fragment: Fragment, shape: MatrixShape, per: u32) -> u32 {
    let numbers = match fragment {
        Fragment::A => shape.m * shape.k,
        Fragment::B => shape.k * shape.n,
        Fragment::Accumulator => shape.m * shape.n,
    };
    numbers / (LANES * per)
}

/// Row and column of a lane's number.
fn place(fragment: Fragment, shape: MatrixShape, per: u32, number: u32, lane: u32) -> (u32, u32) {
    let (group, within) = (lane / ROW_REGISTERS, lane % ROW_REGISTERS);
    if fragment == Fragment::Accumulator {
        let (tile, row_tiles) = (number / 2, shape.m / ROWS);
        return (tile % row_tiles * ROWS + group, tile / row_tiles * ROWS + 2 * within + number % 2);
    }
    let (register, place) = (number / per, number % per);
    let along = |k_tile: u32| (k_tile * ROW_REGISTERS + within) * per + place;
    if fragment == Fragment::A {
        let row_tiles = shape.m / ROWS;
        (register % row_tiles * ROWS + group, along(register / row_tiles))
    } else {
        let k_tiles = shape.k / (ROW_REGISTERS * per);
        (along(register % k_tiles), register / k_tiles * ROWS + group)
    }
}
