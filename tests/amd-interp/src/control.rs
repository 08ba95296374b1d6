//! Branches, calls, barriers, waits, hardware registers and the EXEC mask.

use crate::fault::FaultKind;
use crate::op::{Inst, Machine, Op, Row};
use crate::operand::{FLAT_SCRATCH, Kind, Ty};
use crate::target::Generation;
use crate::wave::{State, unsupported};

const fn whole(f: crate::op::WholeFn) -> Op {
    Op::Whole(f)
}

/// No effect here: caches, counters and clocks of the hardware.
fn nothing(_: &mut Machine, _: &Inst) -> Result<(), FaultKind> {
    Ok(())
}

fn branch(machine: &mut Machine, inst: &Inst, taken: bool) -> Result<(), FaultKind> {
    if taken {
        machine.wave.pc = machine.wave.pc.wrapping_add_signed(4 * inst.simm16());
    }
    Ok(())
}

fn end(machine: &mut Machine, _: &Inst) -> Result<(), FaultKind> {
    machine.wave.state = State::Ended;
    Ok(())
}

fn barrier(machine: &mut Machine, _: &Inst) -> Result<(), FaultKind> {
    machine.wave.state = State::Barrier;
    Ok(())
}

/// Checks the barrier of gfx12: the workgroup's has number -1; others are refused.
fn only_workgroup_barrier(inst: &Inst) -> Result<(), FaultKind> {
    let number = inst.operands.first().map(|o| &o.kind);
    match number {
        Some(Kind::Int(-1) | Kind::Literal(0xffff | 0xffff_ffff)) => Ok(()),
        _ => unsupported("a barrier that is not the workgroup's"),
    }
}

fn barrier_signal(_: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    only_workgroup_barrier(inst)
}

fn barrier_wait(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    only_workgroup_barrier(inst)?;
    barrier(machine, inst)
}

fn trap(_: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    Err(FaultKind::Trap(inst.raw as u32 & 0xffff))
}

fn send_message(_: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    if inst.text.contains("MSG_DEALLOC_VGPRS") { Ok(()) } else { unsupported("this message") }
}

/// A message with an answer: the counter of constant frequency.
fn ask(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    if inst.text.contains("MSG_RTN_GET_REALTIME") { time(machine, inst) } else { unsupported("this message") }
}

fn get_pc(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    let pc = machine.wave.pc;
    machine.wave.set_uniform(inst.operand(0)?, pc, Ty::B64)
}

fn set_pc(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    machine.wave.pc = machine.wave.uniform(inst.operand(0)?, Ty::B64)?;
    Ok(())
}

fn swap_pc(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    let (target, back) = (machine.wave.uniform(inst.operand(1)?, Ty::B64)?, machine.wave.pc);
    machine.wave.set_uniform(inst.operand(0)?, back, Ty::B64)?;
    machine.wave.pc = target;
    Ok(())
}

fn call(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    get_pc(machine, inst)?;
    branch(machine, inst, true)
}

fn time(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    let clock = machine.clock;
    machine.wave.set_uniform(inst.operand(0)?, clock, Ty::B64)
}

/// Number, first bit and number of bits of a hardware register operand.
fn field(inst: &Inst) -> (u32, u32, u32) {
    let code = inst.raw as u32;
    (code & 63, code >> 6 & 31, (code >> 11 & 31) + 1)
}

const MODE: u32 = 1;
/// The counter of cycles: 20 bits, or the lower word of 64 bits from gfx12 on.
const SHADER_CYCLES: u32 = 29;
const SHADER_CYCLES_HIGH: u32 = 30;

fn get_register(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    let (number, low, count) = field(inst);
    let value = match number {
        MODE => machine.wave.mode.0,
        SHADER_CYCLES if machine.target.generation == Generation::Gfx12 => machine.clock as u32,
        SHADER_CYCLES_HIGH if machine.target.generation == Generation::Gfx12 => (machine.clock >> 32) as u32,
        SHADER_CYCLES if machine.target.generation >= Generation::Gfx10 => machine.clock as u32 & 0xf_ffff,
        _ => return unsupported(format!("hardware register {number}")),
    };
    let mask = (1u64 << count) - 1;
    machine.wave.set_uniform(inst.operand(0)?, u64::from(value >> low) & mask, Ty::B32)
}

fn set_register(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    let (number, low, count) = field(inst);
    let value = machine.wave.uniform(inst.operand(1)?, Ty::B32)? as u32;
    let mask = (((1u64 << count) - 1) << low) as u32;
    let register = match number {
        MODE => &mut machine.wave.mode.0,
        20 | 21 if machine.target.generation == Generation::Gfx10 => {
            &mut machine.wave.scalar[FLAT_SCRATCH as usize + number as usize - 20]
        }
        _ => return unsupported(format!("hardware register {number}")),
    };
    *register = *register & !mask | value << low & mask;
    Ok(())
}

fn mode_field(machine: &mut Machine, inst: &Inst, low: u32) -> Result<(), FaultKind> {
    let mode = &mut machine.wave.mode.0;
    *mode = *mode & !(15 << low) | (inst.raw as u32 & 15) << low;
    Ok(())
}

/// Writes the old EXEC to the destination and sets EXEC to a function of the source and the old
/// EXEC.
fn save_exec(machine: &mut Machine, inst: &Inst, f: fn(u64, u64) -> u64) -> Result<(), FaultKind> {
    let wave = &mut *machine.wave;
    let ty = wave.mask_type();
    let (source, old) = (wave.uniform(inst.operand(1)?, ty)?, wave.exec());
    wave.set_uniform(inst.operand(0)?, old, ty)?;
    wave.set_exec(f(source, old) & wave.all());
    wave.scc = wave.exec() != 0;
    Ok(())
}

/// Like `save_exec`, but the destination gets the new EXEC.
fn write_exec(machine: &mut Machine, inst: &Inst, f: fn(u64, u64) -> u64) -> Result<(), FaultKind> {
    save_exec(machine, inst, f)?;
    let wave = &mut *machine.wave;
    let (ty, exec) = (wave.mask_type(), wave.exec());
    wave.set_uniform(inst.operand(0)?, exec, ty)
}

fn conditional_move(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    if !machine.wave.scc {
        return Ok(());
    }
    let value = machine.wave.uniform(inst.operand(1)?, Ty::B64)?;
    machine.wave.set_uniform(inst.operand(0)?, value, Ty::B64)
}

/// Instructions without effect here. Neither have those whose names begin with `s_wait`.
const NOTHING: &[&str] = &[
    "s_nop",
    "v_nop",
    "s_sleep",
    "s_sleep_var",
    "s_delay_alu",
    "s_clause",
    "s_inst_prefetch",
    "s_setprio",
    "s_set_inst_prefetch_distance",
    "s_icache_inv",
    "s_dcache_inv",
    "s_dcache_inv_vol",
    "s_dcache_wb",
    "s_dcache_wb_vol",
    "s_gl1_inv",
    "s_dcache_discard",
    "s_prefetch_inst",
    "s_prefetch_data",
    "s_prefetch_inst_pc_rel",
    "s_prefetch_data_pc_rel",
    "buffer_gl0_inv",
    "buffer_gl1_inv",
    "buffer_wbinvl1",
    "buffer_wbinvl1_vol",
    "buffer_wbl2",
    "buffer_invl2",
    "buffer_inv",
    "global_inv",
    "global_wb",
    "global_wbinv",
    "s_ttracedata",
    "s_ttracedata_imm",
];

/// The operation of an instruction that only waits or controls caches.
pub(crate) fn find_nothing(mnemonic: &str) -> Option<Op> {
    (mnemonic.starts_with("s_wait") || NOTHING.contains(&mnemonic)).then_some(whole(nothing))
}

/// The table.
pub(crate) const TABLE: &[Row] = &[
    ("s_endpgm", whole(end)),
    ("s_branch", whole(|m, i| branch(m, i, true))),
    ("s_cbranch_scc0", whole(|m, i| branch(m, i, !m.wave.scc))),
    ("s_cbranch_scc1", whole(|m, i| branch(m, i, m.wave.scc))),
    ("s_cbranch_vccz", whole(|m, i| branch(m, i, m.wave.vcc() == 0))),
    ("s_cbranch_vccnz", whole(|m, i| branch(m, i, m.wave.vcc() != 0))),
    ("s_cbranch_execz", whole(|m, i| branch(m, i, m.wave.exec() == 0))),
    ("s_cbranch_execnz", whole(|m, i| branch(m, i, m.wave.exec() != 0))),
    ("s_barrier", whole(barrier)),
    ("s_barrier_signal", whole(barrier_signal)),
    ("s_barrier_wait", whole(barrier_wait)),
    ("s_trap", whole(trap)),
    ("s_sendmsg", whole(send_message)),
    ("s_sendmsg_rtn_b64", whole(ask)),
    ("s_getpc_b64", whole(get_pc)),
    ("s_setpc_b64", whole(set_pc)),
    ("s_swappc_b64", whole(swap_pc)),
    ("s_call_b64", whole(call)),
    ("s_memtime", whole(time)),
    ("s_memrealtime", whole(time)),
    ("s_getreg_b32", whole(get_register)),
    ("s_setreg_b32", whole(set_register)),
    ("s_setreg_imm32_b32", whole(set_register)),
    ("s_round_mode", whole(|m, i| mode_field(m, i, 0))),
    ("s_denorm_mode", whole(|m, i| mode_field(m, i, 4))),
    ("s_cmov_b64", whole(conditional_move)),
    ("s_and_saveexec", whole(|m, i| save_exec(m, i, |s, e| s & e))),
    ("s_or_saveexec", whole(|m, i| save_exec(m, i, |s, e| s | e))),
    ("s_xor_saveexec", whole(|m, i| save_exec(m, i, |s, e| s ^ e))),
    ("s_nand_saveexec", whole(|m, i| save_exec(m, i, |s, e| !(s & e)))),
    ("s_nor_saveexec", whole(|m, i| save_exec(m, i, |s, e| !(s | e)))),
    ("s_xnor_saveexec", whole(|m, i| save_exec(m, i, |s, e| !(s ^ e)))),
    ("s_andn1_saveexec", whole(|m, i| save_exec(m, i, |s, e| !s & e))),
    ("s_andn2_saveexec", whole(|m, i| save_exec(m, i, |s, e| s & !e))),
    ("s_orn1_saveexec", whole(|m, i| save_exec(m, i, |s, e| !s | e))),
    ("s_orn2_saveexec", whole(|m, i| save_exec(m, i, |s, e| s | !e))),
    ("s_andn1_wrexec", whole(|m, i| write_exec(m, i, |s, e| !s & e))),
    ("s_andn2_wrexec", whole(|m, i| write_exec(m, i, |s, e| s & !e))),
];
