//! The analyses of a whole kernel, as a target runs them: the steps grow with the size of the
//! kernel, and a kernel that would take too many is refused.

use super::{STEP, module};
use crate::limits::{Budget, MAX_STEPS};
use crate::shape::BlockShape;
use crate::{Kernel, LowerError};
use std::fmt::Write as _;

/// Analyses a kernel whose branches diverge, for a block of two warps. Returns the kernel and the
/// steps that this took.
fn kernel(code: &str, steps: usize) -> Result<(Kernel, usize), LowerError> {
    let module = module(&format!("mov.u32 %r, %tid.x; ld.param.u64 %d0, [at];\n{code}"));
    let mut budget = Budget::new(steps);
    let block = BlockShape { dims: [64, 1, 1] };
    let kernel = Kernel::within(&module, module.kernels().next().unwrap(), block, "test", &mut budget)?;
    Ok((kernel, steps - budget.left()))
}

fn is_refused(code: &str) -> bool {
    const FEW: usize = 1 << 20;
    match kernel(code, FEW) {
        Err(LowerError::Unsupported { what, .. }) => what.contains(&format!("takes more than {MAX_STEPS} steps")),
        _ => false,
    }
}

/// Loops in each other; lanes leave each in different iterations.
fn nested(count: usize) -> String {
    let mut code = String::new();
    (0..count).for_each(|n| writeln!(code, "L{n}: {STEP}").unwrap());
    (0..count).rev().for_each(|n| writeln!(code, "{STEP} @%p bra L{n};").unwrap());
    code += "st.global.u32 [%d0], %r;\n";
    code
}

/// Loops in a row.
fn row(count: usize) -> String {
    let mut code = String::new();
    (0..count).for_each(|n| writeln!(code, "L{n}: {STEP} @%p bra L{n};").unwrap());
    code
}

/// Branches in a row, each around one instruction.
fn diamonds(count: usize) -> String {
    let mut code = String::new();
    (0..count)
        .for_each(|n| writeln!(code, "{STEP} @%p bra E{n}; add.u32 %r, %r, 2; E{n}: xor.b32 %r, %r, 3;").unwrap());
    code
}

/// Lanes that store and leave before a barrier, again and again.
fn exits(count: usize) -> String {
    let mut code = String::new();
    (0..count).for_each(|n| writeln!(code, "{STEP} @%p bra E{n}; bar.sync 0;").unwrap());
    code += "ret;\n";
    (0..count).for_each(|n| writeln!(code, "E{n}: st.global.u32 [%d0], {n}; ret;").unwrap());
    code
}

/// A branch that the compiler finds to diverge only after it has found the branch before it.
fn chain(count: usize) -> String {
    let mut code = String::from("setp.lt.u32 %p, %r, 9;\n");
    for n in 0..count {
        let value = "mov.u32 %r, 0;";
        writeln!(code, "{value} @%p bra E{n}; mov.u32 %r, 1; E{n}: setp.eq.u32 %p, %r, 0;").unwrap();
    }
    code
}

/// Loops that wait for a lock, which is released after the loop.
fn locks(count: usize) -> String {
    let mut code = String::new();
    for n in 0..count {
        writeln!(code, "L{n}: atom.global.cas.b32 %r, [%d0], 0, 1; setp.ne.u32 %p, %r, 0; @%p bra L{n};").unwrap();
        writeln!(code, "atom.global.exch.b32 %r, [%d0], 0;").unwrap();
    }
    code
}

/// Both sides of every rung can be entered: one component with many entries.
fn ladder(count: usize) -> String {
    let mut code = String::from("setp.lt.u32 %p, %r, 9; @%p bra B0;\n");
    for n in 0..count {
        let (up, down) = ((n + 1) % count, n.saturating_sub(1));
        writeln!(code, "A{n}: {STEP} @%p bra B{down}; bra A{up};\nB{n}: {STEP} @%p bra A{n}; bra B{up};").unwrap();
    }
    code
}

#[test]
fn twice_the_code_takes_twice_the_steps() {
    for shape in [row, diamonds] {
        let steps = |count: usize| kernel(&shape(count), MAX_STEPS).unwrap().1;
        let (few, many) = (steps(1_000), steps(2_000));
        assert!(many <= 2 * few + few / 10, "{few} steps, then {many}");
    }
}

#[test]
fn kernels_of_some_hundred_nested_or_chained_branches_are_analysed() {
    let (found, _) = kernel(&nested(500), MAX_STEPS).unwrap();
    assert_eq!(found.analysis.divergent_loops.len(), 500);
    let (found, _) = kernel(&chain(200), MAX_STEPS).unwrap();
    assert_eq!(found.analysis.blend.iter().filter(|blends| **blends).count(), 200);
    assert!(kernel(&ladder(100), MAX_STEPS).is_ok());
}

#[test]
fn all_exits_before_barriers_are_found_at_once() {
    // One round finds the exits, and one checks that no barrier is reached separately any more.
    let (found, steps) = kernel(&exits(1_000), MAX_STEPS).unwrap();
    assert_eq!(found.analysis.exit_side.iter().flatten().count(), 1_000);
    assert!(!found.analysis.scheduled);
    assert!(steps < 10_000_000, "{steps} steps");
}

#[test]
fn all_spinning_loops_are_extended_at_once() {
    let (found, steps) = kernel(&locks(300), MAX_STEPS).unwrap();
    assert_eq!(found.analysis.spins.len(), 300);
    assert!(steps < 3_000_000, "{steps} steps");
}

#[test]
fn kernels_that_take_too_many_steps_are_refused() {
    for code in [nested(2_000), exits(2_000), chain(1_000), locks(1_000), ladder(1_000)] {
        assert!(is_refused(&code), "{}", &code[..200]);
    }
}

#[test]
fn thirty_thousand_exchanges_in_a_row_become_as_many_blocks() {
    let exchanges = "shfl.sync.down.b32 %r, %r, 1, 31, -1;\n".repeat(30_000);
    let (found, _) = kernel(&format!("{}{exchanges}", locks(1)), MAX_STEPS).unwrap();
    assert!(found.program.blocks.len() > 30_000);
}

#[test]
fn twenty_thousand_address_checks_in_a_row() {
    let check = "sub.s64 %d1, %d0, %d2; setp.gt.u64 %p, %d1, %d3; @%p trap;\n";
    let (found, _) = kernel(&check.repeat(20_000), MAX_STEPS).unwrap();
    let insts = found.program.blocks.iter().flat_map(|block| &block.insts);
    assert_eq!(insts.filter(|inst| inst.form.opcode == crate::bounds::BOUND).count(), 20_000);
}

#[test]
fn compiled_kernels_take_less_than_a_hundredth_of_the_limit() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/kernels/ptx");
    let (mut count, mut most) = (0, 0);
    for file in std::fs::read_dir(folder).unwrap() {
        let module = atoll_ptx::parse(&std::fs::read_to_string(file.unwrap().path()).unwrap()).unwrap();
        for kernel in module.kernels() {
            let mut budget = Budget::new(MAX_STEPS);
            let block = BlockShape { dims: [256, 1, 1] };
            // Some kernels use what no target supports.
            if Kernel::within(&module, kernel, block, "test", &mut budget).is_ok() {
                count += 1;
                most = most.max(MAX_STEPS - budget.left());
            }
        }
    }
    assert!(count > 100, "{count} kernels");
    assert!(most < MAX_STEPS / 100, "{most} steps");
}
