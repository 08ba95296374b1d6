//! Global, flat, scratch and buffer instructions.

use crate::access::{self, Action, Atomic, Space};
use crate::atomics;
use crate::fault::FaultKind;
use crate::op::{Inst, Machine};
use crate::operand::{Kind, Operand, Ty};
use crate::space::{Place, flat, private};
use crate::transfer::{self, Places};
use crate::wave::{Bits, Lanes, unsupported};

/// The address space and the operation that a mnemonic names.
pub(crate) fn find(mnemonic: &str) -> Option<(Space, Action)> {
    let spaces =
        [("global_", Space::Global), ("flat_", Space::Flat), ("scratch_", Space::Scratch), ("buffer_", Space::Buffer)];
    let (rest, space) = spaces.iter().find_map(|&(prefix, space)| Some((mnemonic.strip_prefix(prefix)?, space)))?;
    let action = if let Some(name) = rest.strip_prefix("load_") {
        Action::Load(access::transfer(name)?)
    } else if let Some(name) = rest.strip_prefix("store_") {
        Action::Store(access::transfer(name)?)
    } else {
        Action::Atomic(atomics::find(rest.strip_prefix("atomic_")?)?)
    };
    (space != Space::Scratch || !matches!(action, Action::Atomic(_))).then_some((space, action))
}

/// Executes a global, flat, scratch or buffer instruction.
pub(crate) fn execute(machine: &mut Machine, inst: &Inst, space: Space, action: Action) -> Result<(), FaultKind> {
    let expected = match space {
        Space::Global | Space::Scratch => 3,
        Space::Flat => 2,
        Space::Buffer => 4,
    };
    let returns = matches!(action, Action::Atomic(_)) && inst.operands.len() == expected + 1;
    // The operand indices of data and address, which are printed in this order.
    let (data, address) = match (space, action) {
        (Space::Buffer, _) | (_, Action::Load(_)) => (0, 1),
        (_, Action::Store(_)) => (1, 0),
        (_, Action::Atomic(_)) if returns => (2, 1),
        (_, Action::Atomic(_)) => (1, 0),
    };
    let places = match space {
        Space::Buffer => buffer_places(machine, inst)?,
        _ => places(machine, inst, space, address, if data < address { 2 } else { data + 1 })?,
    };
    let result = match action {
        Action::Load(t) => transfer::load(machine, inst.operand(data)?, 0, t, &places),
        Action::Store(t) => transfer::store(machine, inst.operand(data)?, 0, t, &places),
        Action::Atomic(atomic) => {
            let buffer_returns = space == Space::Buffer && inst.text.split_whitespace().any(is_return);
            let dst = if returns || buffer_returns { Some(inst.operand(0)?) } else { None };
            update(machine, inst.operand(data)?, dst, atomic, &places)
        }
    };
    if result.is_ok() {
        machine.wave.lane = None;
    }
    result
}

fn is_return(word: &str) -> bool {
    matches!(word, "glc" | "sc0" | "th:TH_ATOMIC_RETURN")
}

fn update(
    machine: &mut Machine,
    data: &Operand,
    dst: Option<&Operand>,
    atomic: Atomic,
    places: &Places,
) -> Result<(), FaultKind> {
    let words = atomic.bytes / 4;
    let values = transfer::data(machine, data, 0, atomic.bytes)?;
    let compared = if atomic.compares { transfer::data(machine, data, words, atomic.bytes)? } else { [0; 64] };
    let mask = if atomic.bytes == 4 { 0xffff_ffff } else { u64::MAX };
    let f = |lane: usize, old| (atomic.update)(old, values[lane], compared[lane]) & mask;
    let old = transfer::atomic(machine, atomic.bytes, places, f)?;
    let Some(dst) = dst else { return Ok(()) };
    let ty = if atomic.bytes == 4 { Ty::B32 } else { Ty::B64 };
    machine.wave.write(dst, ty, machine.wave.exec(), &old)
}

/// A vector address of 32 or 64 bits, or zeros for `off`.
fn vector_address(machine: &Machine, operand: &Operand) -> Result<Lanes, FaultKind> {
    match operand.kind {
        Kind::Off => Ok([0; 64]),
        _ => machine.wave.source(operand, if operand.registers() == 2 { Ty::B64 } else { Ty::B32 }, false),
    }
}

fn places(
    machine: &mut Machine,
    inst: &Inst,
    space: Space,
    address: usize,
    scalar: usize,
) -> Result<Places, FaultKind> {
    let vector = vector_address(machine, inst.operand(address)?)?;
    let base = match inst.operands.get(scalar).map(|o| &o.kind) {
        None | Some(Kind::Off) => None,
        Some(_) if space == Space::Scratch => Some(machine.wave.uniform(inst.operand(scalar)?, Ty::B32)?),
        Some(_) => Some(machine.wave.uniform(inst.operand(scalar)?, Ty::B64)?),
    };
    let offset = inst.mods.offset as u64;
    let mut places: Places = [None; 64];
    for lane in Bits(machine.wave.exec()) {
        machine.wave.lane = Some(lane);
        let address = vector[lane as usize].wrapping_add(base.unwrap_or(0)).wrapping_add(offset);
        places[lane as usize] = Some(match space {
            Space::Flat => flat(machine, lane, address)?,
            Space::Scratch => private(machine, lane, address & 0xffff_ffff)?,
            _ => Place::Global(address),
        });
    }
    Ok(places)
}

/// Addresses of buffer instructions: raw and structured buffers, and the swizzled buffer of
/// scratch.
fn buffer_places(machine: &mut Machine, inst: &Inst) -> Result<Places, FaultKind> {
    let Kind::Scalar { first, count: 4 } = inst.operand(2)?.kind else { return unsupported("this buffer descriptor") };
    let mut words = [0u32; 4];
    for (at, word) in words.iter_mut().enumerate() {
        *word = machine.wave.scalar_word(first + at as u8)?;
    }
    let base = u64::from(words[0]) | u64::from(words[1] & 0xffff) << 32;
    let (stride, records) = (u64::from(words[1] >> 16 & 0x3fff), u64::from(words[2]));
    let (swizzle, add_lane) = (words[1] >> 31 == 1, words[3] >> 23 & 1 == 1);
    let scalar = machine.wave.uniform(inst.operand(3)?, Ty::B32)?;
    let address = vector_address(machine, inst.operand(1)?)?;
    let mut places: Places = [None; 64];
    for lane in Bits(machine.wave.exec()) {
        let vector = address[lane as usize];
        let (index, offset) = match (inst.mods.idxen, inst.mods.offen) {
            (true, true) => (vector & 0xffff_ffff, vector >> 32),
            (true, false) => (vector & 0xffff_ffff, 0),
            (false, true) => (0, vector & 0xffff_ffff),
            (false, false) => (0, 0),
        };
        let offset = (offset + inst.mods.offset as u64) & 0xffff_ffff;
        places[lane as usize] = Some(match (swizzle, add_lane) {
            (true, true) if index == 0 => {
                let behind = base.wrapping_add(scalar).wrapping_sub(machine.wave.scratch_base);
                let offset = (behind / u64::from(machine.wave.size)).wrapping_add(offset);
                Place::Private { lane, offset }
            }
            (false, false) if stride == 0 && offset + scalar >= records => Place::Dropped,
            (false, false) if stride != 0 && index >= records => Place::Dropped,
            (false, false) => Place::Global(base + scalar + index * stride + offset),
            _ => return unsupported("this swizzled buffer"),
        });
    }
    Ok(places)
}
