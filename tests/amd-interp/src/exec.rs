//! Executes one instruction: reads its operands, calls its function, writes its results.

use crate::dpp::From;
use crate::fault::FaultKind;
use crate::mode::{Mode, format_of};
use crate::op::{CarryFn, Inst, LaneFn, Machine, Op, ScalarFn};
use crate::operand::{Kind, Operand, Ty, VCC};
use crate::soft::{F16, F32, Format};
use crate::text::Part;
use crate::wave::{Bits, Lanes, Wave, unsupported};
use crate::{flat, lds, matrix, smem};

/// The result of a vector instruction before it is written.
struct Outcome {
    lanes: Lanes,
    mask: u64,
    ty: Ty,
    /// The half of a register that a 16-bit result is written to, if the operation fixes it.
    half: Option<bool>,
}

/// Executes an instruction. The program counter already points to the next one.
pub(crate) fn execute(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    if let Some(second) = &inst.second {
        let first = evaluate(machine.wave, inst)?;
        let other = evaluate(machine.wave, second)?;
        commit(machine.wave, inst, first)?;
        return commit(machine.wave, second, other);
    }
    match inst.op {
        Op::Whole(f) => f(machine, inst),
        Op::Memory(space, action) => flat::execute(machine, inst, space, action),
        Op::Lds(action) => lds::execute(machine, inst, action),
        Op::ScalarLoad(load) => smem::execute(machine, inst, load),
        Op::Matrix(shape) => matrix::execute(machine, inst, shape),
        Op::Scalar { dst, src, f } => scalar(machine.wave, inst, dst, src, f),
        Op::ScalarFloat { dst, src, accumulate, f } => scalar_float(machine.wave, inst, (dst, src, accumulate), f),
        Op::ScalarCompare { src, f } => scalar_compare(machine.wave, inst, src, f),
        Op::ScalarK { dst, f } => scalar_constant(machine.wave, inst, dst, f),
        Op::Compare { src, f, exec } => compare(machine.wave, inst, src, f, exec),
        Op::Carry { src, dst, carry_in, f } => carry(machine.wave, inst, (src, dst, carry_in), f),
        _ => {
            let result = evaluate(machine.wave, inst)?;
            commit(machine.wave, inst, result)
        }
    }
}

fn scalar(wave: &mut Wave, inst: &Inst, dst: Option<Ty>, src: &[Ty], f: ScalarFn) -> Result<(), FaultKind> {
    let first = usize::from(dst.is_some());
    let mut values = [0; 3];
    for (at, &ty) in src.iter().enumerate() {
        // A source that is not printed is the old value of the destination.
        let operand = inst.operands.get(first + at).map_or_else(|| inst.operand(0), Ok)?;
        values[at] = wave.uniform(operand, ty)?;
    }
    let value = f(&mut wave.scc, values);
    match dst {
        Some(ty) => wave.set_uniform(inst.operand(0)?, value, ty),
        None => Ok(()),
    }
}

/// A source in a scalar register with its modifiers applied and the bits beyond its type cleared.
fn number(wave: &Wave, operand: &Operand, ty: Ty) -> Result<u64, FaultKind> {
    let sign = 1u64 << (ty.bits() - 1);
    let value = wave.uniform(operand, ty)? & (sign | (sign - 1));
    let value = if operand.abs { value & !sign } else { value };
    Ok(if operand.neg { value ^ sign } else { value })
}

fn scalar_float(
    wave: &mut Wave,
    inst: &Inst,
    (dst, src, accumulate): (Ty, &[Ty], bool),
    f: LaneFn,
) -> Result<(), FaultKind> {
    let mut values = [0; 3];
    for (at, &ty) in src.iter().enumerate() {
        values[at] = number(wave, inst.operand(1 + at)?, ty)?;
    }
    if accumulate {
        values[src.len()] = number(wave, inst.operand(0)?, dst)?;
    }
    let value = f(wave.mode, values) & u64::MAX >> (64 - dst.bits());
    wave.set_uniform(inst.operand(0)?, value, Ty::B32)
}

fn scalar_compare(wave: &mut Wave, inst: &Inst, src: [Ty; 2], f: fn(Mode, [u64; 2]) -> bool) -> Result<(), FaultKind> {
    let values = [number(wave, inst.operand(0)?, src[0])?, number(wave, inst.operand(1)?, src[1])?];
    wave.scc = f(wave.mode, values);
    Ok(())
}

fn scalar_constant(wave: &mut Wave, inst: &Inst, dst: bool, f: ScalarFn) -> Result<(), FaultKind> {
    let operand = inst.operand(0)?;
    let old = wave.uniform(operand, Ty::B32)?;
    let value = f(&mut wave.scc, [old, inst.simm16() as u64, 0]);
    if dst { wave.set_uniform(operand, value, Ty::B32) } else { Ok(()) }
}

fn select_part(lanes: &mut Lanes, part: Part, sext: bool) {
    if part.bits == 0 {
        return;
    }
    for lane in lanes.iter_mut() {
        let value = *lane >> part.shift & ((1 << part.bits) - 1);
        let shift = 64 - u32::from(part.bits);
        *lane = if sext { ((value << shift) as i64 >> shift) as u64 & 0xffff_ffff } else { value };
    }
}

/// Selects and negates the halves of a packed source.
fn packed_source(inst: &Inst, lanes: &mut Lanes, index: u32) {
    let mods = &inst.mods;
    let (low, high) = (mods.op_sel >> index & 1, mods.op_sel_hi.unwrap_or(7) >> index & 1);
    let flip = u64::from(mods.neg_lo >> index & 1) << 15 | u64::from(mods.neg_hi >> index & 1) << 31;
    if low == 0 && high == 1 && flip == 0 {
        return;
    }
    for lane in lanes.iter_mut() {
        let half = |which: u32| *lane >> (16 * which) & 0xffff;
        *lane = (half(low) | half(high) << 16) ^ flip;
    }
}

/// A source with all modifiers of its encoding applied.
fn source(wave: &Wave, inst: &Inst, operand: &Operand, index: usize, ty: Ty) -> Result<Lanes, FaultKind> {
    let mods = &inst.mods;
    if let Some(sdwa) = mods.sdwa.filter(|_| index < 2) {
        let whole = Operand::plain(operand.kind.clone());
        let mut lanes = wave.source(&whole, Ty::B32, false)?;
        select_part(&mut lanes, sdwa.src[index], operand.sext);
        if ty.bits() == 16 {
            lanes.iter_mut().for_each(|l| *l &= 0xffff);
        }
        let sign = 1u64 << (ty.bits() - 1);
        lanes.iter_mut().for_each(|l| {
            *l = if operand.abs { *l & !sign } else { *l };
            *l ^= if operand.neg { sign } else { 0 };
        });
        return Ok(lanes);
    }
    let mut lanes = wave.source(operand, ty, mods.op_sel >> index & 1 == 1)?;
    if matches!(ty, Ty::P16 | Ty::PF16) {
        packed_source(inst, &mut lanes, index as u32);
    } else if mods.neg_lo >> index & 1 == 1 {
        return unsupported("neg_lo of a source that is not packed");
    }
    Ok(lanes)
}

/// The sources from operand `first` on, and the mask of the lanes that take part.
fn sources(wave: &Wave, inst: &Inst, first: usize, types: &[Ty]) -> Result<([Lanes; 3], u64), FaultKind> {
    let (mut values, mut mask) = ([[0; 64]; 3], wave.exec());
    for (at, &ty) in types.iter().enumerate() {
        values[at] = source(wave, inst, inst.operand(first + at)?, at, ty)?;
    }
    if let Some(dpp) = inst.mods.dpp {
        let old = values[0];
        for lane in Bits(mask) {
            match dpp.from(lane, wave.size, wave.exec()) {
                From::Lane(other) => values[0][lane as usize] = old[other as usize],
                From::Zero => values[0][lane as usize] = 0,
                From::Nothing => mask &= !(1 << lane),
            }
        }
    }
    Ok((values, mask))
}

fn map(mode: Mode, mask: u64, values: &[Lanes; 3], f: LaneFn) -> Lanes {
    let mut lanes = [0; 64];
    for lane in Bits(mask) {
        let at = lane as usize;
        lanes[at] = f(mode, [values[0][at], values[1][at], values[2][at]]);
    }
    lanes
}

fn evaluate(wave: &Wave, inst: &Inst) -> Result<Outcome, FaultKind> {
    let done = |lanes, mask, ty| Ok(Outcome { lanes, mask, ty, half: None });
    match inst.op {
        Op::Lane { dst, src, f } => {
            let (values, mask) = sources(wave, inst, 1, src)?;
            done(map(wave.mode, mask, &values, f), mask, dst)
        }
        Op::Accumulate { dst, src, f } => {
            let (mut values, mask) = sources(wave, inst, 1, src)?;
            let high = inst.mods.op_sel >> src.len() & 1 == 1;
            values[src.len()] = wave.source(inst.operand(0)?, dst, high)?;
            done(map(wave.mode, mask, &values, f), mask, dst)
        }
        Op::Select { ty } => {
            let (values, mask) = sources(wave, inst, 1, &[ty, ty])?;
            let select = match inst.operands.get(3) {
                Some(operand) => wave.uniform(operand, wave.mask_type())?,
                None => wave.mask(VCC),
            };
            let mut lanes = values[0];
            Bits(select & wave.all()).for_each(|l| lanes[l as usize] = values[1][l as usize]);
            done(lanes, mask, ty)
        }
        Op::Packed { half: Ty::F32 | Ty::B32, sources, f } => packed_pairs(wave, inst, sources, f),
        Op::Packed { half, sources, f } => packed(wave, inst, half, sources, f),
        Op::Mix { dst, high, f } => mix(wave, inst, (dst, high), f),
        _ => unsupported("this operation in a dual instruction"),
    }
}

fn packed(wave: &Wave, inst: &Inst, half: Ty, count: usize, f: LaneFn) -> Result<Outcome, FaultKind> {
    let ty = if half == Ty::F16 { Ty::PF16 } else { Ty::P16 };
    let (values, mask) = sources(wave, inst, 1, &[ty; 3][..count])?;
    let mut lanes = [0; 64];
    for lane in Bits(mask) {
        let parts = |shift: u32| values.map(|v| v[lane as usize] >> shift & 0xffff);
        let [low, high] = [0, 16].map(|shift| {
            let result = f(wave.mode, parts(shift));
            if half == Ty::F16 { output(wave.mode, inst, F16, result) } else { result & 0xffff }
        });
        lanes[lane as usize] = low | high << 16;
    }
    Ok(Outcome { lanes, mask, ty: Ty::B32, half: None })
}

/// Arithmetic of packed f32. Each source is a pair of registers.
fn packed_pairs(wave: &Wave, inst: &Inst, count: usize, f: LaneFn) -> Result<Outcome, FaultKind> {
    let (mask, mods) = (wave.exec(), &inst.mods);
    let high_bits = mods.op_sel_hi.unwrap_or(7);
    let [mut lower, mut upper] = [[[0u64; 64]; 3]; 2];
    for (index, (low_part, high_part)) in lower.iter_mut().zip(&mut upper).take(count).enumerate() {
        let operand = inst.operand(1 + index)?;
        let (low, high) = (mods.op_sel >> index & 1, high_bits >> index & 1);
        let pair = operand.registers() == 2;
        if !pair && (low, high) != (0, 0) {
            return unsupported("a constant as a pair of f32");
        }
        let value = wave.source(operand, if pair { Ty::B64 } else { Ty::F32 }, false)?;
        for (part, select, neg) in [(low_part, low, mods.neg_lo), (high_part, high, mods.neg_hi)] {
            let flip = u64::from(neg >> index & 1) << 31;
            for (to, &from) in part.iter_mut().zip(&value) {
                *to = from >> (32 * select) & 0xffff_ffff ^ flip;
            }
        }
    }
    let [low, high] = [lower, upper].map(|values| map(wave.mode, mask, &values, f));
    let mut lanes = [0; 64];
    for lane in Bits(mask) {
        let [low, high] = [low, high].map(|v| output(wave.mode, inst, F32, v[lane as usize]) & 0xffff_ffff);
        lanes[lane as usize] = low | high << 32;
    }
    Ok(Outcome { lanes, mask, ty: Ty::B64, half: None })
}

fn mix(wave: &Wave, inst: &Inst, (dst, high): (Ty, bool), f: LaneFn) -> Result<Outcome, FaultKind> {
    let mut values = [[0; 64]; 3];
    let halves = inst.mods.op_sel_hi.unwrap_or(0);
    for (index, value) in values.iter_mut().enumerate() {
        let operand = inst.operand(1 + index)?;
        if halves >> index & 1 == 1 {
            let half = wave.source(operand, Ty::F16, inst.mods.op_sel >> index & 1 == 1)?;
            *value = half.map(|v| wave.mode.convert(F16, F32, v));
        } else {
            *value = wave.source(operand, Ty::F32, false)?;
        }
    }
    let mask = wave.exec();
    let half = (dst == Ty::F16).then_some(high);
    Ok(Outcome { lanes: map(wave.mode, mask, &values, f), mask, ty: dst, half })
}

/// Applies the output modifiers to a floating-point result.
fn output(mode: Mode, inst: &Inst, format: Format, bits: u64) -> u64 {
    let (mods, one) = (&inst.mods, (format.nan() >> format.fraction >> 1) << format.fraction);
    let scale = |power: i32| ((one >> format.fraction) as i32 + power) as u64;
    let mut bits = bits;
    if mods.omod != 0 {
        bits = mode.mul(format, [bits, scale(mods.omod) << format.fraction]);
    }
    if mods.clamp {
        let negative = format.is_negative(bits) && !format.is_nan(bits);
        bits = match format.is_nan(bits) {
            true if mode.dx10_clamp() => 0,
            true => bits,
            false if negative => 0,
            false => bits.min(one),
        };
    }
    bits
}

fn commit(wave: &mut Wave, inst: &Inst, mut result: Outcome) -> Result<(), FaultKind> {
    let mods = &inst.mods;
    if result.ty.is_float() && (mods.clamp || mods.omod != 0) {
        let (format, mode) = (format_of(result.ty.bits()), wave.mode);
        result.lanes.iter_mut().for_each(|l| *l = output(mode, inst, format, *l));
    }
    let operand = inst.operand(0)?;
    if let Some(sdwa) = mods.sdwa.filter(|s| s.dst.bits != 0) {
        let width = u32::from(sdwa.dst.bits);
        let (field, shift) = (((1u64 << width) - 1) << sdwa.dst.shift, 64 - width);
        let old = *wave.vector(operand, 0)?;
        for lane in Bits(result.mask) {
            let value = result.lanes[lane as usize];
            let placed = value << sdwa.dst.shift & field;
            let extended = ((value << shift) as i64 >> shift) as u64;
            result.lanes[lane as usize] = match (sdwa.preserve, sdwa.sext) {
                (true, _) => u64::from(old[lane as usize]) & !field | placed,
                (false, true) => extended << sdwa.dst.shift,
                (false, false) => placed,
            };
        }
        return wave.write(operand, Ty::B32, result.mask, &result.lanes);
    }
    if result.ty.bits() != 16 {
        return wave.write(operand, result.ty, result.mask, &result.lanes);
    }
    let sources = inst.operands.len() as u32 - 1;
    let high = result.half.unwrap_or(mods.op_sel >> sources & 1 == 1);
    let zero = mods.sdwa.is_some() || inst.zero_upper && result.half.is_none();
    wave.write_half(operand, (high, zero), result.mask, &result.lanes)
}

fn compare(
    wave: &mut Wave,
    inst: &Inst,
    src: [Ty; 2],
    f: fn(Mode, [u64; 2]) -> bool,
    exec: bool,
) -> Result<(), FaultKind> {
    let first = inst.operands.len().saturating_sub(2);
    let (values, mask) = sources(wave, inst, first, &src)?;
    let mut result = 0;
    for lane in Bits(mask) {
        let at = lane as usize;
        result |= u64::from(f(wave.mode, [values[0][at], values[1][at]])) << lane;
    }
    if first == 1 {
        let ty = wave.mask_type();
        wave.set_uniform(inst.operand(0)?, result, ty)?;
    }
    if exec {
        wave.set_exec(result);
    }
    Ok(())
}

fn carry(wave: &mut Wave, inst: &Inst, (src, dst, carry_in): (&[Ty], Ty, bool), f: CarryFn) -> Result<(), FaultKind> {
    let (values, mask) = sources(wave, inst, 2, src)?;
    let ty = wave.mask_type();
    let input = if carry_in { wave.uniform(inst.operand(2 + src.len())?, ty)? } else { 0 };
    let (mut lanes, mut output) = ([0; 64], 0);
    for lane in Bits(mask) {
        let at = lane as usize;
        let (value, carry) = f([values[0][at], values[1][at], values[2][at]], input >> lane & 1 == 1);
        lanes[at] = value;
        output |= u64::from(carry) << lane;
    }
    let operand = inst.operand(0)?;
    if matches!(operand.kind, Kind::Half { .. }) {
        return unsupported("a 16-bit destination with carry");
    }
    wave.write(operand, dst, mask, &lanes)?;
    wave.set_uniform(inst.operand(1)?, output, ty)
}
