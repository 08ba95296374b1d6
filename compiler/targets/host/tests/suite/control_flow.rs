//! Guards, divergent branches and loops, early exits, barriers.

use crate::common;
use crate::common::{Args, Launch, Random, at_every_level};

const VECTOR_ADD: &str = "
.visible .entry vadd(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
  .reg .pred %p<2>; .reg .b32 %r<6>; .reg .f32 %f<4>; .reg .b64 %rd<12>;
  ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c]; ld.param.u32 %r1, [n];
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.s32 %p1, %r5, %r1;
  @%p1 bra DONE;
  cvta.to.global.u64 %rd4, %rd1; cvta.to.global.u64 %rd5, %rd2; cvta.to.global.u64 %rd6, %rd3;
  mul.wide.s32 %rd7, %r5, 4;
  add.s64 %rd8, %rd4, %rd7; add.s64 %rd9, %rd5, %rd7; add.s64 %rd10, %rd6, %rd7;
  ld.global.f32 %f1, [%rd8]; ld.global.f32 %f2, [%rd9];
  add.f32 %f3, %f1, %f2;
  st.global.f32 [%rd10], %f3;
DONE:
  ret;
}";

#[test]
fn vector_add_stops_at_its_tail_guard() {
    for block in [32, 96, 100, 256] {
        at_every_level(VECTOR_ADD, "vadd", [block, 1, 1], |kernel| {
            for n in [0usize, 1, 31, 32, 33, 1000, 1024] {
                let mut random = Random::new(n as u64);
                let (mut a, mut b) = (random.floats(n), random.floats(n));
                let mut c = vec![-7.0f32; n + 64];
                let args = Args::new().slice(&mut a).slice(&mut b).slice(&mut c).u32(n as u32);
                kernel.run(Launch::grid((n as u32).div_ceil(block), 1, 1), args);
                for i in 0..n {
                    assert_eq!(c[i], a[i] + b[i], "element {i} of {n}, block {block}");
                }
                assert!(c[n..].iter().all(|v| *v == -7.0), "wrote behind the end");
            }
        });
    }
}

#[test]
fn only_the_blocks_asked_for_run() {
    at_every_level(VECTOR_ADD, "vadd", [32, 1, 1], |kernel| {
        let (mut a, mut b, mut c) = (vec![1f32; 320], vec![2f32; 320], vec![0f32; 320]);
        let args =
            |a: &mut Vec<f32>, b: &mut Vec<f32>, c: &mut Vec<f32>| Args::new().slice(a).slice(b).slice(c).u32(320);
        kernel.run(Launch::grid(10, 1, 1).blocks(3, 5), args(&mut a, &mut b, &mut c));
        let written: Vec<usize> = (0..320).filter(|i| c[*i] != 0.0).collect();
        assert_eq!(written, (96..160).collect::<Vec<_>>());
        let stopped = Launch { stop: 1, ..Launch::grid(10, 1, 1) };
        c.fill(0.0);
        kernel.run(stopped, args(&mut a, &mut b, &mut c));
        assert!(c.iter().all(|v| *v == 0.0), "a stopped compute unit ran a block");
    });
}

#[test]
fn lanes_leave_a_loop_in_different_iterations() {
    let text = "
.visible .entry collatz(.param .u64 out, .param .u32 n)
{
  .reg .pred %p<6>; .reg .b32 %r<12>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [n];
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
  mad.lo.u32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra DONE;
  add.u32 %r6, %r5, 1;
  mov.u32 %r7, 0;
LOOP:
  setp.eq.u32 %p2, %r6, 1;
  @%p2 bra OUT;
  and.b32 %r8, %r6, 1;
  setp.ne.u32 %p3, %r8, 0;
  @%p3 bra ODD;
  shr.u32 %r6, %r6, 1;
  bra NEXT;
ODD:
  mad.lo.u32 %r6, %r6, 3, 1;
NEXT:
  add.u32 %r7, %r7, 1;
  bra LOOP;
OUT:
  mul.wide.u32 %rd2, %r5, 4;
  add.u64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3], %r7;
DONE:
  ret;
}";
    let steps = |n: u32| {
        let (mut x, mut count) = (n + 1, 0u32);
        while x != 1 {
            x = if x % 2 == 1 { 3 * x + 1 } else { x / 2 };
            count += 1;
        }
        count
    };
    for block in [32, 64, 50] {
        at_every_level(text, "collatz", [block, 1, 1], |kernel| {
            let mut out = vec![u32::MAX; 1000];
            kernel.run(Launch::grid(1000u32.div_ceil(block), 1, 1), Args::new().slice(&mut out).u32(1000));
            for (i, found) in out.iter().enumerate() {
                assert_eq!(*found, steps(i as u32), "of {i}, block {block}");
            }
        });
    }
}

#[test]
fn nested_divergence_keeps_lanes_apart() {
    // Triangle loops: lane l sums j over j < i for i < l % 7, and odd lanes skip i = 3 by
    // `continue`; lanes above 20 leave by `ret` inside.
    let text = "
.visible .entry nest(.param .u64 out)
{
  .reg .pred %p<9>; .reg .b32 %r<20>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x; mov.u32 %r19, %ctaid.x; mov.u32 %r18, %ntid.x;
  mad.lo.u32 %r2, %r19, %r18, %r1;
  mul.wide.u32 %rd2, %r2, 4; add.u64 %rd3, %rd1, %rd2;
  rem.u32 %r3, %r1, 7; and.b32 %r4, %r1, 1;
  mov.u32 %r5, 0; mov.u32 %r6, 0;
OUTER:
  setp.ge.u32 %p1, %r6, %r3;
  @%p1 bra DONE;
  setp.eq.u32 %p2, %r6, 3;
  setp.eq.u32 %p3, %r4, 1;
  and.pred %p4, %p2, %p3;
  @%p4 bra NEXT;
  mov.u32 %r7, 0;
INNER:
  setp.ge.u32 %p5, %r7, %r6;
  @%p5 bra NEXT;
  add.u32 %r5, %r5, %r7;
  add.u32 %r7, %r7, 1;
  setp.gt.u32 %p6, %r1, 20;
  setp.eq.u32 %p7, %r7, 2;
  and.pred %p8, %p6, %p7;
  @%p8 ret;
  bra INNER;
NEXT:
  add.u32 %r6, %r6, 1;
  bra OUTER;
DONE:
  st.global.u32 [%rd3], %r5;
  ret;
}";
    let expected = |lane: u32| {
        let mut sum = 0;
        for i in 0..lane % 7 {
            if i == 3 && lane % 2 == 1 {
                continue;
            }
            for j in 0..i {
                sum += j;
                if lane > 20 && j == 1 {
                    return u32::MAX;
                }
            }
        }
        sum
    };
    for block in [32, 64, 17] {
        at_every_level(text, "nest", [block, 1, 1], |kernel| {
            let mut out = vec![u32::MAX; 2 * block as usize];
            kernel.run(Launch::grid(2, 1, 1), Args::new().slice(&mut out));
            for (i, found) in out.iter().enumerate() {
                assert_eq!(*found, expected(i as u32 % block), "thread {i}, block {block}");
            }
        });
    }
}

#[test]
fn uniform_loops_under_a_divergent_guard() {
    let text = "
.visible .entry rowsum(.param .u64 in, .param .u64 out, .param .u32 rows, .param .u32 columns)
{
  .reg .pred %p<4>; .reg .b32 %r<12>; .reg .f32 %f<4>; .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out]; ld.param.u32 %r1, [rows]; ld.param.u32 %r2, [columns];
  mov.u32 %r3, %ctaid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r5, %r3, 32, %r4;
  setp.lt.u32 %p1, %r5, %r1;
  mov.f32 %f1, 0f00000000;
  @!%p1 bra STORE;
  mov.u32 %r6, 0;
LOOP:
  setp.ge.u32 %p2, %r6, %r2;
  @%p2 bra STORE;
  mad.lo.u32 %r7, %r6, %r1, %r5;
  mul.wide.u32 %rd3, %r7, 4; add.u64 %rd4, %rd1, %rd3;
  ld.global.f32 %f2, [%rd4];
  add.f32 %f1, %f1, %f2;
  add.u32 %r6, %r6, 1;
  bra LOOP;
STORE:
  mul.wide.u32 %rd5, %r5, 4; add.u64 %rd6, %rd2, %rd5;
  st.global.f32 [%rd6], %f1;
  ret;
}";
    at_every_level(text, "rowsum", [32, 1, 1], |kernel| {
        let (rows, columns) = (70usize, 9usize);
        let mut input = Random::new(5).floats(rows * columns);
        let mut out = vec![9f32; 96];
        kernel.run(
            Launch::grid(3, 1, 1),
            Args::new().slice(&mut input).slice(&mut out).u32(rows as u32).u32(columns as u32),
        );
        for r in 0..96 {
            let expected = if r < rows { (0..columns).fold(0f32, |s, c| s + input[c * rows + r]) } else { 0.0 };
            assert_eq!(out[r], expected, "row {r}");
        }
    });
}

#[test]
fn lanes_diverge_at_an_indexed_branch() {
    let text = "
.visible .entry table(.param .u64 out)
{
  .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2;
  and.b32 %r2, %r1, 3;
  mov.u32 %r3, 100;
  setp.lt.u32 %p1, %r1, 20;
TARGETS: .branchtargets A, B, C, D;
  @%p1 brx.idx %r2, TARGETS;
  bra D;
A:
  mov.u32 %r3, 1;
B:
  add.u32 %r3, %r3, 10;
  bra D;
C:
  mov.u32 %r3, 5;
D:
  st.global.u32 [%rd3], %r3;
  ret;
}";
    at_every_level(text, "table", [64, 1, 1], |kernel| {
        let mut out = vec![0u32; 64];
        kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut out));
        for (i, found) in out.iter().enumerate() {
            let expected = if i < 20 { [11, 110, 5, 100][i % 4] } else { 100 };
            assert_eq!(*found, expected, "thread {i}");
        }
    });
}

#[test]
fn a_loop_whose_way_out_is_the_end_reconverges_inside() {
    // Every warp sums rows; lanes diverge at the tail of a row, and the loop over rows is left only
    // by the end of the kernel.
    let text = "
.visible .entry rows(.param .u64 in, .param .u64 out)
{
  .reg .pred %p<5>; .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<4>;
  ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, 0;
LOOP:
  add.u32 %r4, %r2, %r3;
  setp.lt.u32 %p1, %r4, 10;
  @!%p1 bra NEXT;
  mul.lo.u32 %r5, %r4, 20;
  mov.f32 %f1, 0f00000000;
  setp.lt.u32 %p2, %r1, 20;
  @!%p2 bra JOIN;
  add.u32 %r6, %r5, %r1; mul.wide.u32 %rd3, %r6, 4; add.u64 %rd4, %rd1, %rd3;
  ld.global.f32 %f1, [%rd4];
JOIN:
  mov.b32 %r7, %f1;
  shfl.sync.bfly.b32 %r8, %r7, 16, 31, -1;
  mov.b32 %f2, %r8; add.f32 %f3, %f1, %f2;
  shl.b32 %r7, %r4, 5; add.u32 %r7, %r7, %r1; mul.wide.u32 %rd5, %r7, 4; add.u64 %rd6, %rd2, %rd5;
  st.global.f32 [%rd6], %f3;
NEXT:
  add.u32 %r3, %r3, 4;
  setp.lt.u32 %p3, %r3, 64;
  @%p3 bra LOOP;
  ret;
}";
    at_every_level(text, "rows", [32, 4, 1], |kernel| {
        let mut random = Random::new(9);
        let mut input = random.floats(200);
        let mut out = vec![0f32; 320];
        kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut input).slice(&mut out));
        for (row, found) in out.chunks(32).enumerate() {
            let at = |lane: usize| if lane < 20 { input[row * 20 + lane] } else { 0.0 };
            let expected: Vec<f32> = (0..32).map(|lane| at(lane) + at(lane ^ 16)).collect();
            assert_eq!(found, expected, "row {row}");
        }
    });
}

#[test]
fn lanes_outside_a_mask_read_nothing() {
    // A mask that is partly known at compile time.
    let text = "
.visible .entry masked(.param .u64 in, .param .u64 out, .param .u32 n)
{
  .reg .pred %p<4>; .reg .b32 %r<4>; .reg .b64 %rd<6>; .reg .f32 %f<2>;
  ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out]; ld.param.u32 %r1, [n];
  mov.u32 %r2, %tid.x; mul.wide.u32 %rd3, %r2, 4; add.u64 %rd4, %rd1, %rd3; add.u64 %rd5, %rd2, %rd3;
  setp.lt.u32 %p1, %r2, 20;
  setp.gt.u32 %p2, %r1, 7;
  and.pred %p3, %p1, %p2;
  mov.f32 %f1, 0f00000000;
  @%p3 ld.global.f32 %f1, [%rd4];
  st.global.f32 [%rd5], %f1;
  ret;
}";
    at_every_level(text, "masked", [32, 1, 1], |kernel| {
        let (mut input, mut out) = (vec![3f32; 32], vec![9f32; 32]);
        kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut input).slice(&mut out).u32(8));
        let expected: Vec<f32> = (0..32).map(|lane| if lane < 20 { 3.0 } else { 0.0 }).collect();
        assert_eq!(out, expected);
    });
}

/// Inline assembly that a compiler duplicates is enclosed in braces, with its own labels and
/// tables.
#[test]
fn labels_belong_to_their_braces() {
    let part = |number: u32| {
        format!(
            "{{ .reg .pred %q; and.b32 %r1, %r0, {number}; setp.eq.u32 %q, %r1, 0; @%q bra done; \
             add.u32 %r2, %r2, {number};\n\
             ts: .branchtargets done, more; and.b32 %r1, %r0, 1; brx.idx %r1, ts; more: add.u32 %r2, %r2, 100; \
             done: }}\n"
        )
    };
    let text = format!(
        ".visible .entry k(.param .u64 o) {{ .reg .b32 %r<4>; .reg .b64 %x<2>; mov.u32 %r0, %tid.x; \
         mov.u32 %r2, 0;\n{}{}\
         ld.param.u64 %x0, [o]; mad.wide.u32 %x0, %r0, 4, %x0; st.global.u32 [%x0], %r2; bra done; trap; done: ret; }}",
        part(4),
        part(8)
    );
    at_every_level(&text, "k", [32, 1, 1], |kernel| {
        let mut out = vec![0u32; 32];
        kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut out));
        for (thread, found) in out.iter().enumerate() {
            let part = |bit: u32| if thread as u32 & bit == 0 { 0 } else { bit + 100 * (thread as u32 & 1) };
            assert_eq!(*found, part(4) + part(8), "thread {thread}");
        }
    });
}

#[test]
fn a_label_inside_braces_is_not_seen_from_outside() {
    let text = ".visible .entry k() { bra inside; { inside: } ret; }";
    let error = common::try_compile(text, "k", [32, 1, 1], common::levels()[0]).err().map(|e| e.to_string());
    assert_eq!(error.as_deref(), Some("kernel `k`, line 4: label `inside` does not exist"));
}

/// CUB's scans carry such a register from one pass to the next. Only threads read it that have written
/// it in the same pass.
#[test]
fn a_register_that_has_no_value_in_the_first_round_differs_between_threads() {
    let text = "
.visible .entry carry(.param .u64 out)
{
  .reg .pred %p<4>; .reg .b32 %r<7>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, 0;
ROUND:
  setp.eq.u32 %p1, %r1, 3;
  selp.b32 %r3, 7, %r4, %p1;
  setp.ne.u32 %p2, %r1, 3;
  selp.b32 %r4, %r1, %r3, %p2;
  add.u32 %r5, %r4, %r1;
  add.u32 %r2, %r2, 1;
  setp.lt.u32 %p3, %r2, 3;
  @%p3 bra ROUND;
  mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3], %r5;
  ret;
}";
    at_every_level(text, "carry", [64, 1, 1], |kernel| {
        let mut out = vec![0u32; 64];
        kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut out));
        let wanted: Vec<u32> = (0..64).map(|thread| if thread == 3 { 10 } else { 2 * thread }).collect();
        assert_eq!(out, wanted);
    });
}
