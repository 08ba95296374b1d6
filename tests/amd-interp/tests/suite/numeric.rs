//! Runs kernels of one operation each on random and special operands, in vector and scalar
//! registers.

use std::fmt::Write;

use atoll_amd_interp::Memory;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::tools::{Arguments, compiled, cpus, launch, line, seed};

/// An operation: IR that computes `%r` from `%a`, `%b` and `%c`, and the same in Rust.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Type of the operands.
    pub(crate) input: &'static str,
    /// Type of the result.
    pub(crate) output: &'static str,
    pub(crate) body: &'static str,
    pub(crate) f: fn([u64; 3]) -> u64,
    /// Whether two results count as equal.
    pub(crate) same: fn(u64, u64) -> bool,
}

/// Bytes of an IR type.
fn size(ty: &str) -> usize {
    match ty {
        "i8" => 1,
        "i16" | "half" | "bfloat" => 2,
        "i64" | "double" | "<2 x float>" | "<4 x i16>" => 8,
        _ => 4,
    }
}

const VECTOR_LANES: u32 = 64;

fn kernel(case: &Case, scalar: bool, out: &mut String) {
    let (input, output) = (case.input, case.output);
    let (suffix, space) = if scalar { ("_s", 4) } else { ("_v", 1) };
    let index = if scalar {
        "  %i = call i32 @llvm.amdgcn.workgroup.id.x()\n".to_owned()
    } else {
        "  %t = call i32 @llvm.amdgcn.workitem.id.x()\n  %g = call i32 @llvm.amdgcn.workgroup.id.x()\n  \
         %s = mul i32 %g, 64\n  %i = add i32 %s, %t\n"
            .to_owned()
    };
    let _ = write!(
        out,
        "define amdgpu_kernel void @{}{suffix}(ptr addrspace({space}) noalias readonly %pa, \
         ptr addrspace({space}) noalias readonly %pb, ptr addrspace({space}) noalias readonly %pc, \
         ptr addrspace(1) noalias %po) {{\n{index}",
        case.name
    );
    for name in ["a", "b", "c"] {
        let _ = write!(
            out,
            "  %q{name} = getelementptr {input}, ptr addrspace({space}) %p{name}, i32 %i\n  \
             %{name} = load {input}, ptr addrspace({space}) %q{name}\n"
        );
    }
    for line in case.body.split(';') {
        let _ = writeln!(out, "  {}", line.trim());
    }
    let _ = write!(
        out,
        "  %qo = getelementptr {output}, ptr addrspace(1) %po, i32 %i\n  \
         store {output} %r, ptr addrspace(1) %qo\n  ret void\n}}\n"
    );
}

fn bytes(values: &[u64], size: usize) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()[..size].to_vec()).collect()
}

/// Operands: all triples of some special values, and random ones.
fn operands(special: &[u64], input: &str) -> [Vec<u64>; 3] {
    let mut random = SplitMix64::seed_from_u64(seed());
    let mask = u64::MAX >> (64 - 8 * size(input));
    let mut columns: [Vec<u64>; 3] = Default::default();
    for (at, &a) in special.iter().enumerate() {
        for &b in special {
            columns[0].push(a);
            columns[1].push(b);
            columns[2].push(special[(at + columns[0].len()) % special.len()]);
        }
    }
    let total = (columns[0].len() + 512).next_multiple_of(VECTOR_LANES as usize);
    while columns[0].len() < total {
        // Numbers of similar magnitude, so that sums and quotients are not trivial.
        let near = random.next_u64();
        let close = random.next_u32() & 1 == 0;
        for column in &mut columns {
            let other = random.next_u64();
            let low = other & (mask >> 4);
            column.push(if close { near & !(mask >> 4) | low } else { other });
        }
    }
    columns.map(|c| c.into_iter().map(|v| v & mask).collect())
}

/// Runs all cases on every architecture.
pub(crate) fn check(declarations: &str, cases: &[Case], special: fn(&str) -> Vec<u64>) {
    let mut module = format!(
        "target triple = \"amdgcn-amd-amdhsa\"\ndeclare i32 @llvm.amdgcn.workitem.id.x()\n\
         declare i32 @llvm.amdgcn.workgroup.id.x()\n{declarations}\n"
    );
    for case in cases {
        kernel(case, false, &mut module);
        kernel(case, true, &mut module);
    }
    for cpu in cpus() {
        let Some(program) = compiled(&module, cpu) else { return };
        for case in cases {
            let columns = operands(&special(case.input), case.input);
            for (suffix, grid, block) in [("_v", columns[0].len() as u32 / 64, 64), ("_s", 256, 1)] {
                let mut memory = Memory::new();
                let mut arguments = Arguments::default();
                for column in &columns {
                    arguments = arguments.pointer(memory.add("operand", bytes(column, size(case.input))));
                }
                let count = (grid * block) as usize;
                let out = memory.add("out", vec![0; count * size(case.output)]);
                let name = format!("{}{suffix}", case.name);
                let shape = line(grid, block, arguments.pointer(out));
                launch(&program, &name, &shape, &mut memory).unwrap_or_else(|e| panic!("{cpu} {name}: {e}"));
                let results = memory.bytes(out).unwrap().chunks_exact(size(case.output));
                for (at, result) in results.enumerate() {
                    let mut wide = [0; 8];
                    wide[..result.len()].copy_from_slice(result);
                    let (got, values) = (u64::from_le_bytes(wide), [0, 1, 2].map(|c| columns[c][at]));
                    let mask = u64::MAX >> (64 - 8 * size(case.output));
                    let expected = (case.f)(values) & mask;
                    assert!(
                        (case.same)(got, expected),
                        "{cpu} {name} of {values:#x?}: {got:#x} instead of {expected:#x}"
                    );
                }
            }
        }
    }
}
