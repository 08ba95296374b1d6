//! Elements on their way from global to shared memory, directly or by registers.

use crate::target::GemmTile;
use crate::writer::{LANES, Writer, mem};
use atoll_kgraph::DType;
use atoll_ptx::{Name, Operand, ScalarType};

/// An element that a lane stages.
pub(super) struct Element {
    /// Whether it exists; `None` if it always does. Otherwise it is 0.
    pub(super) guard: Option<Name>,
    pub(super) address: Name,
    pub(super) offset: i64,
    /// Its offset from the lane's place in shared memory.
    pub(super) to: i64,
}

impl Element {
    /// Loads the element and stores it at once.
    pub(super) fn stage(&self, w: &mut Writer, dtype: DType, place: &Name) {
        let value = load_guarded(w, dtype, self.guard.as_ref(), &self.address, self.offset);
        w.emit("st.shared.f32", [mem(place, self.to), value]);
    }
}

/// The elements that a lane loads a round before they are staged. Each round uses the same registers.
#[derive(Default)]
pub(super) struct Ahead {
    /// Register of each element's bits, and its offset from the lane's place in shared memory.
    elements: Vec<(Name, i64)>,
    loaded: usize,
}

impl Ahead {
    /// Begins the loads of a round.
    pub(super) fn begin(&mut self) {
        self.loaded = 0;
    }

    /// Loads the next element of the round.
    pub(super) fn load(&mut self, w: &mut Writer, dtype: DType, element: &Element) {
        if self.loaded == self.elements.len() {
            self.elements.push((w.reg(bits_type(dtype)), element.to));
        }
        let (bits, _) = &self.elements[self.loaded];
        load_bits(w, dtype, element.guard.as_ref(), &element.address, element.offset, bits);
        self.loaded += 1;
    }

    /// Stores the elements of a round in shared memory.
    pub(super) fn store(&self, w: &mut Writer, dtype: DType, place: &Name) {
        for (bits, to) in &self.elements {
            let value = as_f32(w, dtype, bits);
            w.emit("st.shared.f32", [mem(place, *to), value]);
        }
    }
}

/// Largest number of elements that a lane loads ahead: with the sums, they fit into registers.
const ELEMENTS_MAX: u32 = 48;

/// Whether a tile's operands can be loaded ahead: all warps stage equally many lines, and not too
/// many.
pub(super) fn is_possible(tile: &GemmTile) -> bool {
    let rows = tile.rows / tile.slices * (tile.depth / LANES);
    let warps = tile.warps_in_all();
    tile.depth.is_multiple_of(warps) && rows + tile.columns * (tile.depth / warps) <= ELEMENTS_MAX
}

/// Loads an element as f32; 0 if the guard is false.
pub(in crate::kernels) fn load_guarded(
    w: &mut Writer,
    dtype: DType,
    guard: Option<&Name>,
    address: &Name,
    offset: i64,
) -> Operand {
    if guard.is_none() {
        return w.load_f32(dtype, address, offset);
    }
    let bits = w.reg(bits_type(dtype));
    load_bits(w, dtype, guard, address, offset, &bits);
    as_f32(w, dtype, &bits)
}

/// The type of a register for the bits of an element.
fn bits_type(dtype: DType) -> ScalarType {
    if dtype == DType::F32 { ScalarType::F32 } else { ScalarType::B16 }
}

/// Loads the bits of an element into a register; 0 if the guard is false.
fn load_bits(w: &mut Writer, dtype: DType, guard: Option<&Name>, address: &Name, offset: i64, to: &Name) {
    let (load, clear, zero) = match dtype {
        DType::F32 => ("ld.global.f32", "mov.f32", Operand::from(0.0)),
        _ => ("ld.global.b16", "mov.b16", Operand::from(0)),
    };
    let operands = [to.into(), mem(address, offset)];
    match guard {
        None => w.emit(load, operands),
        Some(guard) => {
            w.emit(clear, [to.into(), zero]);
            w.emit_if(guard, load, operands);
        }
    }
}

/// The value of an element whose bits are in a register.
fn as_f32(w: &mut Writer, dtype: DType, bits: &Name) -> Operand {
    match dtype {
        DType::F32 => bits.into(),
        DType::F16 => w.f32("cvt.f32.f16", [bits.into()]),
        _ => {
            let wide = w.make(ScalarType::U32, "cvt.u32.u16", [bits.into()]);
            let wide = w.make(ScalarType::B32, "shl.b32", [wide.into(), 16.into()]);
            w.f32("mov.b32", [wide.into()])
        }
    }
}
