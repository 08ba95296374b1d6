//! Random control flow, mostly unstructured and often irreducible: a kernel in blocks of one
//! thread, where lanes cannot diverge, must give the same results as in whole warps.

use crate::common;
use crate::common::{Args, Launch, Random, try_compile};
use std::fmt::Write as _;

const THREADS: u32 = 192;

/// A kernel of `blocks` basic blocks on six values. Each block consumes fuel, so that every thread
/// terminates.
fn random_kernel(random: &mut Random, blocks: u32) -> String {
    let mut text = String::from(
        ".visible .entry flow(.param .u64 in, .param .u64 out)
{
  .reg .pred %p<4>; .reg .b32 %v<6>; .reg .b32 %r<12>; .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.u32 %r4, %r2, %r3, %r1;
  mul.wide.u32 %rd3, %r4, 4; add.u64 %rd4, %rd1, %rd3; mul.wide.u32 %rd5, %r4, 8; add.u64 %rd6, %rd2, %rd5;
  ld.global.u32 %v0, [%rd4]; mov.u32 %v1, %r4; mov.u32 %v2, 7; ld.global.u32 %v3, [%rd1]; mov.u32 %v4, 0; \
  mov.u32 %v5, 1;
  mov.u32 %r5, 40;
",
    );
    for block in 0..blocks {
        let _ = writeln!(text, "B{block}:\n  setp.eq.u32 %p1, %r5, 0; @%p1 bra END; sub.u32 %r5, %r5, 1;");
        for _ in 0..random.next_u32() % 4 {
            let [d, a, b] = [0; 3].map(|_| random.next_u32() % 6);
            let guard = if random.next_u32().is_multiple_of(4) { "@%p2 " } else { "" };
            if !guard.is_empty() {
                let _ = writeln!(text, "  and.b32 %r6, %v{a}, 2; setp.eq.u32 %p2, %r6, 0;");
            }
            let op =
                ["add.u32", "sub.u32", "xor.b32", "mul.lo.u32", "max.u32", "and.b32"][random.next_u32() as usize % 6];
            let _ = match random.next_u32() % 5 {
                0 => writeln!(text, "  {guard}add.u32 %v{d}, %v{a}, {};", random.next_u32() % 9),
                1 => writeln!(text, "  {guard}mov.u32 %v{d}, %v{a};"),
                2 => writeln!(
                    text,
                    "  and.b32 %r7, %v{a}, 63; mul.wide.u32 %rd7, %r7, 4; add.u64 %rd7, %rd1, %rd7; \
                     {guard}ld.global.u32 %v{d}, [%rd7];"
                ),
                _ => writeln!(text, "  {guard}{op} %v{d}, %v{a}, %v{b};"),
            };
        }
        let mut target = || match random.next_u32() % (blocks + 1) {
            to if to == blocks => "END".to_owned(),
            to => format!("B{to}"),
        };
        let (first, second) = (target(), target());
        let (value, bit, kind) = (random.next_u32() % 6, 1 << (random.next_u32() % 3), random.next_u32() % 8);
        match kind {
            0 => {
                let _ = writeln!(text, "  bra {first};");
            }
            1 => {
                let _ = writeln!(text, "  and.b32 %r8, %v{value}, 15; setp.eq.u32 %p3, %r8, 3; @%p3 ret;");
            }
            _ => {
                let _ = writeln!(text, "  and.b32 %r8, %v{value}, {bit}; setp.eq.u32 %p3, %r8, 0; @%p3 bra {first};");
                if kind > 4 {
                    let _ = writeln!(text, "  bra {second};");
                }
            }
        }
    }
    text.push_str(
        "END:\n  xor.b32 %r9, %v0, %v1; xor.b32 %r9, %r9, %v3; add.u32 %r10, %v2, %v4; \
    mad.lo.u32 %r10, %v5, 31, %r10;\n",
    );
    text.push_str("  st.global.v2.u32 [%rd6], {%r9, %r10};\n  ret;\n}\n");
    text
}

#[test]
fn warps_compute_the_same_as_single_threads() {
    let level = *common::levels().last().expect("this machine runs no level");
    for seed in 224..238 {
        let mut random = Random::new(seed);
        let blocks = 2 + random.next_u32() % 8;
        let text = random_kernel(&mut random, blocks);
        let mut input: Vec<u32> = (0..THREADS).map(|_| random.next_u32() % 16).collect();
        let mut run = |block: u32| {
            let kernel =
                try_compile(&text, "flow", [block, 1, 1], level).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let mut out = vec![u32::MAX; 2 * THREADS as usize];
            kernel.run(Launch::grid(THREADS / block, 1, 1), Args::new().slice(&mut input).slice(&mut out));
            out
        };
        let expected = run(1);
        for block in [32, 96, 24] {
            let found = run(block);
            let wrong = (0..found.len()).find(|&i| found[i] != expected[i]);
            assert_eq!(wrong.map(|w| (w, found[w], expected[w])), None, "seed {seed}, blocks of {block}:\n{text}");
        }
    }
}
