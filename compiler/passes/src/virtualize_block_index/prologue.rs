//! The code at the entry of a kernel that computes virtual indices and exits blocks and threads
//! beyond the virtual launch.

use super::*;

// Registers of the prologue.
const THREAD: &str = "%atoll_thread";
const CTA: &str = "%atoll_cta";
const SIZE: &str = "%atoll_size";
const REST: &str = "%atoll_rest";
const SURPLUS: &str = "%atoll_surplus";

/// Computes the virtual indices, and exits blocks and threads beyond the virtual launch.
pub(super) fn prologue(kernel: &str, plan: &Plan, needs: &BTreeSet<&'static str>) -> Code {
    let mut code = Code::default();
    let grid = AXES.map(|axis| register_of(&format!("%nctaid.{axis}")));
    let block = AXES.map(|axis| register_of(&format!("%ntid.{axis}")));
    let needs_count = plan.threads().is_none() && !plan.counted.is_empty();
    let mut registers: BTreeSet<Name> = grid.iter().chain(&block).cloned().collect();
    registers.extend(needs.iter().map(|special| register_of(special)));
    registers.extend([THREAD, CTA, SIZE, REST].map(Name::new));
    registers.extend(needs_count.then(|| Name::new(COUNT)));
    code.registers(ScalarType::B32, &registers.iter().map(Name::as_str).collect::<Vec<_>>());
    code.registers(ScalarType::Pred, &[SURPLUS]);
    if plan.surplus.is_some() {
        surplus_lanes::declare(&mut code);
    }

    let names = parameter_names(kernel, plan.launch.block);
    code.emit("mov.u32", [CTA.into(), "%ctaid.x".into()]);
    code.emit("ld.param.u32", [REST.into(), at(&names[0])]);
    code.emit("sub.s32", [CTA.into(), CTA.into(), REST.into()]);
    for (register, name) in grid.iter().zip(&names[1..]) {
        code.emit("ld.param.u32", [register.into(), at(name)]);
    }
    product(&mut code, &grid);
    // Compared as unsigned numbers, blocks before the base are beyond the grid too.
    code.emit("setp.ge.u32", [SURPLUS.into(), CTA.into(), SIZE.into()]);
    code.emit_if(SURPLUS, "ret", []);

    for (axis, register) in block.iter().enumerate() {
        match plan.launch.block {
            Some(shape) => code.emit("mov.u32", [register.into(), i64::from(shape[axis]).into()]),
            None => code.emit("ld.param.u32", [register.into(), at(&names[4 + axis])]),
        }
    }
    code.emit("mov.u32", [THREAD.into(), "%tid.x".into()]);
    leave_surplus_threads(&mut code, plan, &block, needs_count);
    split(&mut code, needs, "tid", THREAD, plan.launch.block);
    split(&mut code, needs, "ctaid", CTA, None);
    if needs.contains("%nwarpid") {
        product(&mut code, &block);
        code.emit("add.s32", [SIZE.into(), SIZE.into(), i64::from(WARP_THREADS - 1).into()]);
        code.emit("shr.u32", [register_of("%nwarpid").into(), SIZE.into(), 5.into()]);
    }
    code
}

/// Exits the threads beyond the virtual block, except lanes that barriers need.
fn leave_surplus_threads(code: &mut Code, plan: &Plan, block: &[Name; 3], needs_count: bool) {
    let (threads, count): (Operand, Operand) = match plan.threads() {
        Some(threads) => (i64::from(threads).into(), plan.count()),
        None => {
            product(code, block);
            if needs_count {
                code.emit("add.s32", [COUNT.into(), SIZE.into(), i64::from(WARP_THREADS - 1).into()]);
                code.emit("and.b32", [COUNT.into(), COUNT.into(), (-i64::from(WARP_THREADS)).into()]);
            }
            (SIZE.into(), COUNT.into())
        }
    };
    let beyond = if plan.surplus.is_some() { count } else { threads.clone() };
    code.emit("setp.ge.u32", [SURPLUS.into(), THREAD.into(), beyond]);
    code.emit_if(SURPLUS, "ret", []);
    if plan.surplus.is_some() {
        code.emit("setp.lt.u32", [surplus_lanes::ACTIVE.into(), THREAD.into(), threads]);
    }
}

/// Multiplies three extents into [`SIZE`].
fn product(code: &mut Code, extents: &[Name; 3]) {
    code.emit("mul.lo.s32", [SIZE.into(), (&extents[0]).into(), (&extents[1]).into()]);
    code.emit("mul.lo.s32", [SIZE.into(), SIZE.into(), (&extents[2]).into()]);
}

/// Splits a linear index into the components that are needed. If the extents are known, an axis of
/// extent 1 costs nothing; the thread index of a one-dimensional block then stays a progression
/// over the lanes.
fn split(code: &mut Code, needs: &BTreeSet<&'static str>, what: &str, linear: &str, known: Option<[u32; 3]>) {
    let component = |axis: usize| Some(register_of(virtual_register(&format!("%{what}.{}", AXES[axis]))?));
    let is_needed = |axis: usize| needs.contains(format!("%{what}.{}", AXES[axis]).as_str());
    let extent = |axis: usize| register_of(&format!("%n{what}.{}", AXES[axis]));
    let is_flat_behind = |axis: usize| known.is_some_and(|extents| extents[axis + 1..].iter().all(|&e| e == 1));
    code.emit("mov.u32", [REST.into(), linear.into()]);
    for axis in 0..3 {
        if !(axis..3).any(is_needed) {
            return;
        }
        let Some(register) = component(axis) else { return };
        let is_one = known.is_some_and(|extents| extents[axis] == 1);
        if is_needed(axis) {
            match () {
                () if axis == 2 || is_flat_behind(axis) => code.emit("mov.u32", [(&register).into(), REST.into()]),
                () if is_one => code.emit("mov.u32", [(&register).into(), 0.into()]),
                () => code.emit("rem.u32", [(&register).into(), REST.into(), (&extent(axis)).into()]),
            }
        }
        if axis < 2 && is_flat_behind(axis) {
            // Nothing remains for the axes after it. Surplus lanes that stay have no valid index
            // anyway.
            for behind in (axis + 1..3).filter(|&behind| is_needed(behind)) {
                if let Some(register) = component(behind) {
                    code.emit("mov.u32", [(&register).into(), 0.into()]);
                }
            }
            return;
        }
        if axis < 2 && !is_one {
            code.emit("div.u32", [REST.into(), REST.into(), (&extent(axis)).into()]);
        }
    }
}
