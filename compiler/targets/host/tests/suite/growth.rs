//! The generated code grows linearly with the kernel: twice the instructions give less than three
//! times the lines of LLVM IR.

use crate::common::{Args, Launch, at_every_level, try_compile};
use atoll_target_host::CpuLevel;

/// The code of a kernel with a number of parts.
type Family = fn(usize) -> String;

/// Families of kernels with a variable number of parts, each of a few instructions.
const FAMILIES: &[(&str, Family)] = &[
    ("instructions one after the other", |parts| {
        repeat(parts, |_| "add.u32 %r1, %r1, %r2; xor.b32 %r2, %r2, %r1;".into())
    }),
    ("branches that whole blocks take", |parts| {
        repeat(parts, |n| format!("setp.eq.u32 %p, %r3, {n}; @%p bra L{n}; add.u32 %r1, %r1, {n}; L{n}:"))
    }),
    ("branches that part lanes", |parts| {
        repeat(parts, |n| format!("setp.eq.u32 %p, %r0, {n}; @%p bra L{n}; add.u32 %r1, %r1, {n}; L{n}:"))
    }),
    ("a chain of branches that part lanes, with one end", |parts| {
        let tests = repeat(parts, |n| format!("setp.eq.u32 %p, %r0, {n}; @%p bra C{n};"));
        tests
            + "bra END;"
            + &repeat(parts, |n| format!("C{n}: add.u32 %r1, %r1, {n}; xor.b32 %r2, %r2, %r1; bra END;"))
            + "END:"
    }),
    ("loops that lanes leave apart", |parts| {
        repeat(parts, |n| format!("mov.u32 %r2, 0; L{n}: add.u32 %r2, %r2, 1; setp.lt.u32 %p, %r2, %r0; @%p bra L{n};"))
    }),
    ("exits of single lanes", |parts| {
        repeat(parts, |n| format!("setp.eq.u32 %p, %r1, {n}; @%p exit; add.u32 %r1, %r1, {n};"))
    }),
    ("barriers", |parts| repeat(parts, |n| format!("add.u32 %r1, %r1, %r2; bar.sync 0; xor.b32 %r2, %r1, {n};"))),
];

const PARTS: usize = 100;

fn repeat(parts: usize, part: impl Fn(usize) -> String) -> String {
    (0..parts).map(part).collect::<Vec<_>>().join("\n")
}

/// Each thread starts with its index in `%r0` and `%r1` and with 7 in `%r2`, and stores the sum of
/// `%r1` and `%r2`.
fn kernel(code: &str) -> String {
    format!(
        ".visible .entry k(.param .u64 p) {{ .reg .b32 %r<4>; .reg .b64 %d<3>; .reg .pred %p;\nmov.u32 %r0, %tid.x; \
         mov.u32 %r1, %r0; mov.u32 %r2, 7; mov.u32 %r3, %ctaid.x;\n\
         {code}\nld.param.u64 %d0, [p]; mul.wide.u32 %d1, %r0, 4; add.u64 %d0, %d0, %d1; add.u32 %r1, %r1, %r2; \
         st.global.u32 [%d0], %r1; ret; }}"
    )
}

/// Lines of the generated IR.
fn lines(code: &str) -> usize {
    let loaded = try_compile(&kernel(code), "k", [64, 1, 1], CpuLevel::V3).unwrap_or_else(|e| panic!("{e}"));
    loaded.facts.ir.unwrap_or_default().lines().count()
}

fn family(what: &str) -> Family {
    FAMILIES.iter().find(|(name, _)| name.contains(what)).unwrap_or_else(|| panic!("no family is about {what}")).1
}

/// Checks the output of each thread of a block.
fn check(code: &str, expected: impl Fn(u32) -> u32) {
    at_every_level(&kernel(code), "k", [64, 1, 1], |loaded| {
        let mut out = vec![0u32; 64];
        loaded.run(Launch::grid(1, 1, 1), Args::new().slice(&mut out));
        assert_eq!(out, (0..64).map(&expected).collect::<Vec<_>>());
    });
}

#[test]
fn twice_the_instructions_make_less_than_three_times_the_code() {
    for (what, family) in FAMILIES {
        let (once, twice) = (lines(&family(PARTS)), lines(&family(2 * PARTS)));
        assert!(twice < 3 * once, "{what}: {once} lines, and {twice} for twice as many");
    }
}

#[test]
fn long_chains_and_many_loops_compute_what_short_ones_do() {
    // More influences than are copied for warps whose lanes agree.
    check(&family("chain")(2 * PARTS), |t| {
        let r1 = 2 * t;
        r1 + (7 ^ r1)
    });
    check(&family("chain")(40), |t| if t < 40 { 2 * t + (7 ^ (2 * t)) } else { t + 7 });
    // More blocks than the limit for unrolling.
    check(&family("loops")(3 * PARTS), |t| t + t.max(1));
}
