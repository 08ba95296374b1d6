//! Recognises the checks that trap on an address out of bounds, and turns each into one
//! instruction.
//!
//! The pass `fence_memory` puts before an access through `a`
//!
//! ```text
//! sub.s64 t, a, start;    setp.gt.u64 p, t, limit;     // or setp.gt.and.u64 p, t, limit, guard;
//! // For loads that may read a second range:
//! sub.s64 u, a, start2;   setp.gt.and.u64 q, u, limit2, p;
//! @q trap;
//! ```
//!
//! Comparing lane by lane costs several times as much as the access itself. It also prevents the
//! analysis from keeping progressions that are only valid for addresses
//! ([`crate::shape::Shape::assumed`]). A target lowers [`BOUND`] like an access: if the lanes form
//! a progression, it compares only the first and the last lane. The match is by form alone, because
//! code of this form has the same meaning wherever it comes from.

use crate::program::{Block, Inst, Opnd, Program, Reg};
use atoll_ptx::Instruction;

/// The opcode; it cannot be spelled in PTX. Operands: the address, then start and limit of each
/// range. Traps if the distance of the address from the start of every range exceeds its limit.
pub const BOUND: &str = "bound address";

/// The comparisons that decide about a trap.
struct Chain {
    /// Their positions in the block.
    comparisons: Vec<usize>,
    address: Reg,
    /// Start and limit of each range, in reverse order of the comparisons.
    ranges: Vec<(Opnd, Opnd)>,
    /// The guard of the access: only lanes that perform it are checked.
    guard: Option<(Reg, bool)>,
}

/// Replaces comparisons and their traps by [`BOUND`]. Registers must be webs already.
pub(crate) fn join(program: &mut Program) {
    let mut uses = vec![0_u32; program.regs.len()];
    let read = program.blocks.iter().flat_map(|b| b.insts.iter().flat_map(Inst::uses).chain(b.term.uses()));
    read.for_each(|reg| uses[reg] += 1);
    program.blocks.iter_mut().for_each(|block| join_in(block, &uses));
}

fn join_in(block: &mut Block, uses: &[u32]) {
    let mut is_gone = vec![false; block.insts.len()];
    for at in 0..block.insts.len() {
        let Some(chain) = chain(&block.insts, at, uses) else { continue };
        let mut ops = vec![Opnd::Addr(Box::new(Opnd::Reg(chain.address)), 0)];
        ops.extend(chain.ranges.into_iter().rev().flat_map(|(start, limit)| [start, limit]));
        let line = block.insts[at].line;
        block.insts[at] =
            Inst { form: Instruction::new(BOUND, Vec::new()), guard: chain.guard, ops, line, tied: false };
        chain.comparisons.into_iter().for_each(|comparison| is_gone[comparison] = true);
    }
    let mut is_gone = is_gone.into_iter();
    block.insts.retain(|_| is_gone.next() != Some(true));
}

/// The comparisons before a trap, if all compare one address and have no other use.
fn chain(insts: &[Inst], trap: usize, uses: &[u32]) -> Option<Chain> {
    let (mut wanted, negated) = insts[trap].guard.filter(|_| insts[trap].form.opcode == "trap")?;
    if negated || uses[wanted] != 1 {
        return None;
    }
    let mut found: Option<Chain> = None;
    let mut at = trap;
    loop {
        at = at.checked_sub(2)?;
        let (address, start, limit, combined) = comparison(&insts[at], &insts[at + 1], wanted)?;
        let chain = found.get_or_insert(Chain { comparisons: Vec::new(), address, ranges: Vec::new(), guard: None });
        if chain.address != address {
            return None;
        }
        chain.comparisons.push(at + 1);
        chain.ranges.push((start, limit));
        match combined {
            None => return found,
            // Either the comparison with another range, or the guard of the access.
            Some((reg, false))
                if uses[reg] == 1
                    && at >= 2
                    && comparison(&insts[at - 2], &insts[at - 1], reg).is_some_and(|c| c.0 == address) =>
            {
                wanted = reg;
            }
            Some(guard) => {
                chain.guard = Some(guard);
                return found;
            }
        }
    }
}

type Comparison = (Reg, Opnd, Opnd, Option<(Reg, bool)>);

/// `sub.s64 t, address, start; setp.gt[.and].u64 wanted, t, limit[, combined];`
fn comparison(sub: &Inst, setp: &Inst, wanted: Reg) -> Option<Comparison> {
    if sub.guard.is_some() || setp.guard.is_some() || sub.form.dotted() != "sub.s64" {
        return None;
    }
    let (distance, limit, combined) = match (setp.form.dotted().as_str(), setp.ops.as_slice()) {
        ("setp.gt.u64", [Opnd::Reg(to), distance, limit]) if *to == wanted => (distance, limit, None),
        ("setp.gt.and.u64", [Opnd::Reg(to), distance, limit, Opnd::Reg(reg)]) if *to == wanted => {
            (distance, limit, Some((*reg, false)))
        }
        ("setp.gt.and.u64", [Opnd::Reg(to), distance, limit, Opnd::Not(reg)]) if *to == wanted => {
            (distance, limit, Some((*reg, true)))
        }
        _ => return None,
    };
    match sub.ops.as_slice() {
        [to, Opnd::Reg(address), start] if to == distance => Some((*address, start.clone(), limit.clone(), combined)),
        _ => None,
    }
}
