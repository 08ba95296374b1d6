//! Operations between the lanes of a wave, and moves between register files.

use crate::fault::FaultKind;
use crate::op::{Inst, Machine, Op, Row};
use crate::operand::Ty;
use crate::wave::{Bits, unsupported};

fn read_first_lane(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    let wave = &mut *machine.wave;
    let value = wave.source(inst.operand(1)?, Ty::B32, false)?;
    let lane = if wave.exec() == 0 { 0 } else { wave.exec().trailing_zeros() };
    wave.set_uniform(inst.operand(0)?, value[lane as usize], Ty::B32)
}

fn read_lane(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    let wave = &mut *machine.wave;
    let value = wave.source(inst.operand(1)?, Ty::B32, false)?;
    let lane = wave.uniform(inst.operand(2)?, Ty::B32)? as usize % wave.size as usize;
    wave.set_uniform(inst.operand(0)?, value[lane], Ty::B32)
}

fn write_lane(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    let wave = &mut *machine.wave;
    let value = wave.uniform(inst.operand(1)?, Ty::B32)?;
    let lane = wave.uniform(inst.operand(2)?, Ty::B32)? as usize % wave.size as usize;
    wave.vector_mut(inst.operand(0)?, 0)?[lane] = value as u32;
    Ok(())
}

/// Counts for each lane the set bits below it in the lower or upper half of a 64-bit mask.
fn masked_count(machine: &mut Machine, inst: &Inst, high: bool) -> Result<(), FaultKind> {
    let wave = &mut *machine.wave;
    let masks = wave.source(inst.operand(1)?, Ty::B32, false)?;
    let mut lanes = wave.source(inst.operand(2)?, Ty::B32, false)?;
    for lane in 0..64 {
        let below = match (high, lane) {
            (false, 0..32) => (1u64 << lane) - 1,
            (false, _) => 0xffff_ffff,
            (true, 0..32) => 0,
            (true, _) => (1u64 << (lane - 32)) - 1,
        };
        lanes[lane] += u64::from((masks[lane] & below).count_ones());
    }
    let exec = wave.exec();
    wave.write(inst.operand(0)?, Ty::B32, exec, &lanes)
}

/// Each lane reads a lane of its row or of the neighbouring row. Two registers have the 4-bit lane
/// numbers.
fn permute_row(machine: &mut Machine, inst: &Inst, flip: u32) -> Result<(), FaultKind> {
    let wave = &mut *machine.wave;
    let data = wave.source(inst.operand(1)?, Ty::B32, false)?;
    let select = wave.uniform(inst.operand(2)?, Ty::B32)? | wave.uniform(inst.operand(3)?, Ty::B32)? << 32;
    let (fetch_inactive, bound_control) = (inst.mods.op_sel & 1 == 1, inst.mods.op_sel & 2 == 2);
    let (exec, mut mask, mut lanes) = (wave.exec(), wave.exec(), [0; 64]);
    for lane in Bits(exec) {
        let from = (lane & !15 ^ flip) | (select >> (4 * (lane & 15)) & 15) as u32;
        if fetch_inactive || exec >> from & 1 == 1 {
            lanes[lane as usize] = data[from as usize];
        } else if !bound_control {
            mask &= !(1 << lane);
        }
    }
    wave.write(inst.operand(0)?, Ty::B32, mask, &lanes)
}

fn permute_halves(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    let wave = &mut *machine.wave;
    let data = wave.source(inst.operand(1)?, Ty::B32, false)?;
    let lanes = std::array::from_fn(|lane| if wave.size == 64 { data[lane ^ 32] } else { data[lane] });
    let exec = wave.exec();
    wave.write(inst.operand(0)?, Ty::B32, exec, &lanes)
}

fn copy(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    let wave = &mut *machine.wave;
    let (lanes, exec) = (wave.source(inst.operand(1)?, Ty::B32, false)?, wave.exec());
    wave.write(inst.operand(0)?, Ty::B32, exec, &lanes)
}

fn swap(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    let wave = &mut *machine.wave;
    let [a, b] = [inst.operand(0)?, inst.operand(1)?];
    let (first, second, exec) = (wave.source(a, Ty::B32, false)?, wave.source(b, Ty::B32, false)?, wave.exec());
    wave.write(a, Ty::B32, exec, &second)?;
    wave.write(b, Ty::B32, exec, &first)
}

/// Moves one register of each source pair into a destination pair.
fn move_pair(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    let wave = &mut *machine.wave;
    let mut lanes = [0u64; 64];
    for part in 0..2 {
        let operand = inst.operand(1 + part)?;
        // The first source gives the low register, the second the high one; `op_sel` selects the
        // register of each pair.
        let high = inst.mods.op_sel >> part & 1;
        let value = match operand.registers() {
            2 => wave.source(operand, Ty::B64, false)?.map(|v| v >> (32 * high) & 0xffff_ffff),
            _ if high == 0 => wave.source(operand, Ty::B32, false)?,
            _ => return unsupported("the upper half of a constant"),
        };
        lanes.iter_mut().zip(value).for_each(|(l, v)| *l |= v << (32 * part));
    }
    let exec = wave.exec();
    wave.write(inst.operand(0)?, Ty::B64, exec, &lanes)
}

/// The table.
pub(crate) const TABLE: &[Row] = &[
    ("v_readfirstlane_b32", Op::Whole(read_first_lane)),
    ("v_readlane_b32", Op::Whole(read_lane)),
    ("v_writelane_b32", Op::Whole(write_lane)),
    ("v_mbcnt_lo_u32_b32", Op::Whole(|m, i| masked_count(m, i, false))),
    ("v_mbcnt_hi_u32_b32", Op::Whole(|m, i| masked_count(m, i, true))),
    ("v_permlane16_b32", Op::Whole(|m, i| permute_row(m, i, 0))),
    ("v_permlanex16_b32", Op::Whole(|m, i| permute_row(m, i, 16))),
    ("v_permlane64_b32", Op::Whole(permute_halves)),
    ("v_accvgpr_read_b32", Op::Whole(copy)),
    ("v_accvgpr_write_b32", Op::Whole(copy)),
    ("v_accvgpr_mov_b32", Op::Whole(copy)),
    ("v_swap_b32", Op::Whole(swap)),
    ("v_pk_mov_b32", Op::Whole(move_pair)),
    ("v_cndmask_b32", Op::Select { ty: Ty::B32 }),
    ("v_cndmask_b16", Op::Select { ty: Ty::B16 }),
];
