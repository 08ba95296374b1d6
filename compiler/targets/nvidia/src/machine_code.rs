//! Statistics of assembled machine code: the length of a kernel, and the contents of its inner
//! loops.
//!
//! Only the operation of each instruction and the target of each branch are decoded. An instruction
//! has 16 bytes on Volta and every later architecture.

use crate::Architecture;
use object::{Object, ObjectSection};
use std::collections::BTreeMap;

/// The code of one kernel, with the functions that the assembler placed after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineCode {
    /// Number of instructions, without padding at the end of the section.
    pub instructions: u32,
    /// Its innermost loops, in code order.
    pub inner_loops: Vec<InnerLoop>,
}

/// The instructions from the target of a backward branch up to the branch, if no other backward
/// branch lies in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InnerLoop {
    /// Number of instructions.
    pub instructions: u32,
    /// The useful instructions among them: floating-point and matrix operations, and accesses to
    /// memory. If the assembler unrolls a loop, it repeats the useful instructions in every copy
    /// but saves address computations, conditions and register copies.
    pub work: u32,
}

/// The file is not an object with machine code.
#[derive(Debug, thiserror::Error)]
#[error("the assembler's output is not an object of machine code: {0}")]
pub struct NoMachineCode(#[from] object::Error);

/// Bytes per instruction.
const INSTRUCTION_BYTES: usize = 16;

/// The operation is in the lowest nine bits of an instruction; the next three bits encode the form
/// of an operand.
const OPERATION: u64 = 0x1ff;

const BRA: u64 = 0x147;
const NOP: u64 = 0x118;

/// Useful operations of a loop.
const WORK: [u64; 26] = [
    0x020, // FMUL
    0x021, // FADD
    0x023, // FFMA
    0x028, // DMUL
    0x029, // DADD
    0x02b, // DFMA
    0x030, // HADD2
    0x031, // HFMA2
    0x032, // HMUL2
    0x037, // IMMA
    0x03b, // LDSM
    0x03c, // HMMA
    0x03f, // DMMA
    0x108, // MUFU
    0x181, // LDG
    0x183, // LDL
    0x184, // LDS
    0x185, // ST
    0x186, // STG
    0x187, // STL
    0x188, // STS
    0x180, // LD
    0x18c, // ATOMS
    0x18e, // RED
    0x1a8, // ATOMG
    0x1ae, // LDGSTS
];

/// `HFMA2` with constants, which assemblers use as a copy if the integer units are busy.
const CONSTANT_HFMA2: u64 = 0x431;
const OPERATION_AND_FORM: u64 = 0xfff;

/// The code of each kernel of a cubin, by name.
///
/// # Errors
/// [`NoMachineCode`], if the bytes are not an object file.
pub fn machine_code(cubin: &[u8], architecture: Architecture) -> Result<BTreeMap<String, MachineCode>, NoMachineCode> {
    let file = object::File::parse(cubin)?;
    let mut kernels = BTreeMap::new();
    for section in file.sections() {
        if let Some(kernel) = section.name()?.strip_prefix(".text.") {
            kernels.insert(kernel.to_owned(), MachineCode::of(section.data()?, architecture));
        }
    }
    Ok(kernels)
}

impl MachineCode {
    fn of(section: &[u8], architecture: Architecture) -> MachineCode {
        // The lower half of an instruction holds its operation and the distance of a branch.
        let lower = section
            .chunks_exact(INSTRUCTION_BYTES)
            .filter_map(|bytes| bytes.first_chunk().copied().map(u64::from_le_bytes));
        let mut code: Vec<u64> = lower.collect();
        let end = code.iter().rposition(|&word| word & OPERATION != NOP).map_or(0, |last| last + 1);
        code.truncate(end);
        // A branch to itself follows the last exit; it is only reached by prefetching.
        if code.last().is_some_and(|&word| branch_distance(word, architecture) == Some(-1)) {
            code.pop();
        }
        MachineCode { instructions: code.len() as u32, inner_loops: inner_loops(&code, architecture) }
    }
}

fn inner_loops(code: &[u64], architecture: Architecture) -> Vec<InnerLoop> {
    let back = |(at, &word): (usize, &u64)| {
        let distance = branch_distance(word, architecture).filter(|&distance| distance < -1)?;
        Some((usize::try_from(at as i64 + 1 + distance).ok()?, at))
    };
    let spans: Vec<(usize, usize)> = code.iter().enumerate().filter_map(back).collect();
    let is_inner = |&(first, last): &(usize, usize)| {
        !spans.iter().any(|&(a, b)| (a, b) != (first, last) && first <= a && b <= last)
    };
    let describe = |(first, last): (usize, usize)| {
        let body = &code[first..=last];
        InnerLoop { instructions: body.len() as u32, work: body.iter().filter(|&&word| is_work(word)).count() as u32 }
    };
    spans.iter().copied().filter(is_inner).map(describe).collect()
}

fn is_work(word: u64) -> bool {
    WORK.contains(&(word & OPERATION)) && word & OPERATION_AND_FORM != CONSTANT_HFMA2
}

/// The distance of a branch in instructions, counted from the next instruction; `None` if it is not
/// a branch with a fixed target.
fn branch_distance(word: u64, architecture: Architecture) -> Option<i64> {
    if word & OPERATION != BRA {
        return None;
    }
    // In units of four bytes, from bit 34 on. From Hopper on its lowest eight bits are at bit 16.
    let high = (word as i64) >> 34;
    let words = if architecture.sm() < 90 { high } else { (high << 8) | ((word >> 16) & 0xff) as i64 };
    Some(words / (INSTRUCTION_BYTES as i64 / 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn architecture(name: &str) -> Architecture {
        name.parse().unwrap()
    }

    fn section(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|&word| [word.to_le_bytes(), [0; 8]].concat()).collect()
    }

    /// Distances as decoded by `nvdisasm`.
    #[test]
    fn branches_go_where_the_disassembler_says() {
        let goes =
            |name, at: i64, word| branch_distance(word, architecture(name)).map(|distance| at + 16 + 16 * distance);
        assert_eq!(goes("sm_80", 0xa0, 0x0000_0260_0000_0947), Some(0x310));
        assert_eq!(goes("sm_80", 0x300, 0xffff_fe40_0000_8947), Some(0x150));
        assert_eq!(goes("sm_90", 0xb0, 0x0000_0000_00a0_0947), Some(0x340));
        assert_eq!(goes("sm_90", 0x330, 0xffff_fffc_0094_8947), Some(0x190));
        assert_eq!(goes("sm_120", 0x3a0, 0xffff_fffd_0838_7547), Some(0x90));
        assert_eq!(goes("sm_90", 0x3c0, 0xffff_fffc_00fc_7947), Some(0x3c0));
        assert_eq!(goes("sm_90", 0, 0x0000_0000_0000_794d), None);
    }

    #[test]
    fn padding_is_not_counted_and_only_inner_loops_are_listed() {
        const FFMA: u64 = 0x7223;
        const EXIT: u64 = 0x794d;
        // Backwards over `count` instructions and the branch itself.
        let back = |count: i64| ((-16 * (count + 1)) as u64) << 32 | 0x7947;
        let words = [FFMA, FFMA, FFMA, back(2), FFMA, back(5), EXIT, back(0), NOP, NOP];
        let code = MachineCode::of(&section(&words), architecture("sm_75"));
        assert_eq!(code, MachineCode { instructions: 7, inner_loops: vec![InnerLoop { instructions: 3, work: 2 }] });
        assert_eq!(MachineCode::of(&[], architecture("sm_75")), MachineCode::default());
    }
}
