//! LDS instructions, and the lane permutations that use its crossbar.

use crate::access::{self, Atomic, LdsAction as Action};
use crate::atomics;
use crate::fault::FaultKind;
use crate::op::{Inst, Machine, Op, Row};
use crate::operand::Ty;
use crate::space::Place;
use crate::transfer::{self, Places};
use crate::wave::{Bits, unsupported};

/// The operation that a mnemonic names.
pub(crate) fn find(mnemonic: &str) -> Option<Action> {
    let rest = mnemonic.strip_prefix("ds_")?;
    let pairs = [
        ("read2st64_", 64, true),
        ("load_2addr_stride64_", 64, true),
        ("read2_", 1, true),
        ("load_2addr_", 1, true),
        ("write2st64_", 64, false),
        ("store_2addr_stride64_", 64, false),
        ("write2_", 1, false),
        ("store_2addr_", 1, false),
    ];
    for (prefix, stride, load) in pairs {
        if let Some(name) = rest.strip_prefix(prefix) {
            let t = access::transfer(name).filter(|t| matches!(t.bytes, 4 | 8))?;
            return Some(if load { Action::Load2(t, stride) } else { Action::Store2(t, stride) });
        }
    }
    for (prefix, load) in [("read_", true), ("load_", true), ("write_", false), ("store_", false)] {
        if let Some(t) = rest.strip_prefix(prefix).and_then(access::transfer) {
            return Some(if load { Action::Load(t) } else { Action::Store(t) });
        }
    }
    let returns = rest.contains("_rtn");
    let name = rest.replacen("_rtn", "", 1);
    let atomic = atomics::find(&name)?;
    // `ds_cmpst` has the value to compare before the new value, `ds_cmpstore` after it.
    Some(Action::Atomic { atomic, returns, compared_first: name.starts_with("cmpst_") })
}

fn places(machine: &Machine, inst: &Inst, operand: usize, offset: u64) -> Result<Places, FaultKind> {
    let addresses = machine.wave.source(inst.operand(operand)?, Ty::B32, false)?;
    let mut places: Places = [None; 64];
    for lane in Bits(machine.wave.exec()) {
        // The sum has 32 bits: from GFX7 on, LLVM also adds offsets to negative addresses.
        let address = (addresses[lane as usize] as u32).wrapping_add(offset as u32);
        places[lane as usize] = Some(Place::Lds(address.into()));
    }
    Ok(places)
}

/// Executes a load, store or atomic of LDS.
pub(crate) fn execute(machine: &mut Machine, inst: &Inst, action: Action) -> Result<(), FaultKind> {
    let (offset, [first, second]) = (inst.mods.offset as u64, inst.mods.offsets);
    let result = match action {
        Action::Load(t) => {
            let places = places(machine, inst, 1, offset)?;
            transfer::load(machine, inst.operand(0)?, 0, t, &places)
        }
        Action::Store(t) => {
            let places = places(machine, inst, 0, offset)?;
            transfer::store(machine, inst.operand(1)?, 0, t, &places)
        }
        Action::Load2(t, stride) => {
            let unit = stride * u64::from(t.bytes);
            let [a, b] = [places(machine, inst, 1, first * unit)?, places(machine, inst, 1, second * unit)?];
            transfer::load(machine, inst.operand(0)?, 0, t, &a)
                .and_then(|()| transfer::load(machine, inst.operand(0)?, t.bytes / 4, t, &b))
        }
        Action::Store2(t, stride) => {
            let unit = stride * u64::from(t.bytes);
            let [a, b] = [places(machine, inst, 0, first * unit)?, places(machine, inst, 0, second * unit)?];
            transfer::store(machine, inst.operand(1)?, 0, t, &a)
                .and_then(|()| transfer::store(machine, inst.operand(2)?, 0, t, &b))
        }
        Action::Atomic { atomic, returns, compared_first } => {
            let address = usize::from(returns);
            let places = places(machine, inst, address, offset)?;
            let operands = if compared_first { [address + 2, address + 1] } else { [address + 1, address + 2] };
            update(machine, inst, atomic, returns, operands, &places)
        }
    };
    if result.is_ok() {
        machine.wave.lane = None;
    }
    result
}

fn update(
    machine: &mut Machine,
    inst: &Inst,
    atomic: Atomic,
    returns: bool,
    [value, compared]: [usize; 2],
    places: &Places,
) -> Result<(), FaultKind> {
    let values = transfer::data(machine, inst.operand(value)?, 0, atomic.bytes)?;
    let compared = match atomic.compares {
        true => transfer::data(machine, inst.operand(compared)?, 0, atomic.bytes)?,
        false => [0; 64],
    };
    let mask = if atomic.bytes == 4 { 0xffff_ffff } else { u64::MAX };
    let f = |lane: usize, old| (atomic.update)(old, values[lane], compared[lane]) & mask;
    let old = transfer::atomic(machine, atomic.bytes, places, f)?;
    if !returns {
        return Ok(());
    }
    let ty = if atomic.bytes == 4 { Ty::B32 } else { Ty::B64 };
    machine.wave.write(inst.operand(0)?, ty, machine.wave.exec(), &old)
}

/// Each lane reads the register of the lane that its address names. Inactive lanes read as zero.
fn bpermute(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    let wave = &mut *machine.wave;
    let (exec, size) = (wave.exec(), wave.size);
    let addresses = wave.source(inst.operand(1)?, Ty::B32, false)?;
    let data = wave.source(inst.operand(2)?, Ty::B32, false)?;
    let mut lanes = [0; 64];
    for lane in Bits(exec) {
        let from = ((addresses[lane as usize] + inst.mods.offset as u64) / 4) as u32 % size;
        lanes[lane as usize] = if exec >> from & 1 == 1 { data[from as usize] } else { 0 };
    }
    wave.write(inst.operand(0)?, Ty::B32, exec, &lanes)
}

/// Each lane sends its register to the lane that its address names. If several name one lane, the
/// highest sender wins.
fn permute(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    let wave = &mut *machine.wave;
    let (exec, size) = (wave.exec(), wave.size);
    let addresses = wave.source(inst.operand(1)?, Ty::B32, false)?;
    let data = wave.source(inst.operand(2)?, Ty::B32, false)?;
    let mut lanes = [0; 64];
    for lane in Bits(exec) {
        let to = ((addresses[lane as usize] + inst.mods.offset as u64) / 4) as u32 % size;
        lanes[to as usize] = data[lane as usize];
    }
    wave.write(inst.operand(0)?, Ty::B32, exec, &lanes)
}

/// A fixed permutation of four lanes, or of 32 lanes by AND, OR and XOR masks.
fn swizzle(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    let wave = &mut *machine.wave;
    let (exec, pattern) = (wave.exec(), inst.raw as u32 & 0xffff);
    if pattern >= 0xc000 {
        return unsupported("this swizzle pattern");
    }
    let data = wave.source(inst.operand(1)?, Ty::B32, false)?;
    let mut lanes = [0; 64];
    for lane in Bits(exec) {
        let from = if pattern & 0x8000 != 0 {
            lane & !3 | pattern >> (2 * (lane & 3)) & 3
        } else {
            let (and, or, xor) = (pattern & 31, pattern >> 5 & 31, pattern >> 10 & 31);
            lane & 32 | (lane & and | or) ^ xor
        };
        lanes[lane as usize] = if exec >> from & 1 == 1 { data[from as usize] } else { 0 };
    }
    wave.write(inst.operand(0)?, Ty::B32, exec, &lanes)
}

/// Instructions that are not loads, stores or atomics.
pub(crate) const TABLE: &[Row] = &[
    ("ds_bpermute_b32", Op::Whole(bpermute)),
    ("ds_permute_b32", Op::Whole(permute)),
    ("ds_swizzle_b32", Op::Whole(swizzle)),
    ("ds_nop", Op::Whole(|_, _| Ok(()))),
];
