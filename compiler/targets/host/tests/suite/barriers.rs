//! Blocks of several warps: regions, records, reductions over the block, shared memory.

use crate::common::{Args, Launch, Random, at_every_level};

/// C = A·B with 16×16 tiles in static shared memory; two barriers in the loop over tiles.
const TILED_GEMM: &str = "
.visible .entry gemm(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
  .reg .pred %p<3>; .reg .b32 %r<40>; .reg .f32 %f<8>; .reg .b64 %rd<20>;
  .shared .align 4 .b8 tile_a[1024];
  .shared .align 4 .b8 tile_b[1024];
  ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c]; ld.param.u32 %r1, [n];
  mov.u32 %r2, %tid.x; mov.u32 %r3, %tid.y; mov.u32 %r4, %ctaid.x; mov.u32 %r5, %ctaid.y;
  mad.lo.s32 %r6, %r4, 16, %r2;
  mad.lo.s32 %r7, %r5, 16, %r3;
  mad.lo.s32 %r8, %r3, 16, %r2;
  shl.b32 %r9, %r8, 2;
  mov.u32 %r10, tile_a; mov.u32 %r11, tile_b;
  add.s32 %r12, %r10, %r9; add.s32 %r13, %r11, %r9;
  shl.b32 %r14, %r3, 6; add.s32 %r14, %r14, %r10;
  shl.b32 %r15, %r2, 2; add.s32 %r15, %r15, %r11;
  mov.f32 %f1, 0f00000000;
  mov.u32 %r16, 0;
TILE:
  setp.ge.s32 %p1, %r16, %r1;
  @%p1 bra STORE;
  add.s32 %r17, %r16, %r2; mad.lo.s32 %r18, %r7, %r1, %r17;
  mul.wide.s32 %rd4, %r18, 4; add.s64 %rd5, %rd1, %rd4; ld.global.f32 %f2, [%rd5];
  st.shared.f32 [%r12], %f2;
  add.s32 %r19, %r16, %r3; mad.lo.s32 %r20, %r19, %r1, %r6;
  mul.wide.s32 %rd6, %r20, 4; add.s64 %rd7, %rd2, %rd6; ld.global.f32 %f3, [%rd7];
  st.shared.f32 [%r13], %f3;
  bar.sync 0;
  mov.u32 %r21, 0; mov.u32 %r22, %r14; mov.u32 %r23, %r15;
INNER:
  ld.shared.f32 %f4, [%r22]; ld.shared.f32 %f5, [%r23];
  fma.rn.f32 %f1, %f4, %f5, %f1;
  add.s32 %r22, %r22, 4; add.s32 %r23, %r23, 64;
  add.s32 %r21, %r21, 1;
  setp.lt.s32 %p2, %r21, 16;
  @%p2 bra INNER;
  bar.sync 0;
  add.s32 %r16, %r16, 16;
  bra TILE;
STORE:
  mad.lo.s32 %r24, %r7, %r1, %r6;
  mul.wide.s32 %rd8, %r24, 4; add.s64 %rd9, %rd3, %rd8;
  st.global.f32 [%rd9], %f1;
  ret;
}";

#[test]
fn tiled_gemm_with_barriers_in_a_loop() {
    at_every_level(TILED_GEMM, "gemm", [16, 16, 1], |kernel| {
        assert_eq!(kernel.facts.shared_static_bytes, 2048);
        let n = 48usize;
        let mut random = Random::new(1);
        let (mut a, mut b, mut c) = (random.floats(n * n), random.floats(n * n), vec![0f32; n * n]);
        kernel.run(Launch::grid(3, 3, 1), Args::new().slice(&mut a).slice(&mut b).slice(&mut c).u32(n as u32));
        for row in 0..n {
            for column in 0..n {
                let expected = (0..n).fold(0f32, |s, k| a[row * n + k].mul_add(b[k * n + column], s));
                assert_eq!(c[row * n + column], expected, "{row}, {column}");
            }
        }
    });
}

/// Threads with a negative input exit before the barrier; the others count each other, and reduce
/// by `and` and `or` whether inputs are large.
const REDUCTIONS: &str = "
.visible .entry reduce(.param .u64 in, .param .u64 out, .param .u32 limit)
{
  .reg .pred %p<8>; .reg .b32 %r<16>; .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out]; ld.param.u32 %r1, [limit];
  mov.u32 %r2, %tid.x;
  mul.wide.u32 %rd3, %r2, 4; add.u64 %rd4, %rd1, %rd3; add.u64 %rd5, %rd2, %rd3;
  ld.global.s32 %r3, [%rd4];
  setp.lt.s32 %p1, %r3, 0;
  @%p1 exit;
  setp.gt.s32 %p2, %r3, %r1;
  bar.red.popc.u32 %r4, 0, %p2;
  bar.red.or.pred %p3, 0, %p2;
  bar.red.and.pred %p4, 0, !%p2;
  selp.u32 %r5, 1000, 0, %p3;
  selp.u32 %r6, 10000, 0, %p4;
  add.u32 %r7, %r4, %r5; add.u32 %r7, %r7, %r6;
  st.global.u32 [%rd5], %r7;
  ret;
}";

#[test]
fn block_reductions_count_the_threads_alive() {
    for threads in [32u32, 40, 128, 200] {
        at_every_level(REDUCTIONS, "reduce", [threads, 1, 1], |kernel| {
            for limit in [5u32, 1000] {
                let mut random = Random::new(threads.into());
                let mut input: Vec<i32> = (0..threads).map(|_| random.next_u32() as i32 % 50).collect();
                input[0] = 40;
                let mut out = vec![77u32; threads as usize];
                kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut input).slice(&mut out).u32(limit));
                let large = input.iter().filter(|v| **v >= 0 && **v > limit as i32).count() as u32;
                let expected = large + if large > 0 { 1000 } else { 10000 };
                for (i, found) in out.iter().enumerate() {
                    assert_eq!(*found, if input[i] < 0 { 77 } else { expected }, "thread {i} of {threads}");
                }
            }
        });
    }
}

/// Sums a block's values by halving in dynamic shared memory; the warps of the upper half only wait
/// at the barriers.
const TREE: &str = "
.extern .shared .align 16 .b8 space[];
.visible .entry tree(.param .u64 in, .param .u64 out)
{
  .reg .pred %p<4>; .reg .b32 %r<16>; .reg .f32 %f<4>; .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %ctaid.x;
  mad.lo.u32 %r4, %r3, %r2, %r1;
  mul.wide.u32 %rd3, %r4, 4; add.u64 %rd4, %rd1, %rd3;
  ld.global.f32 %f1, [%rd4];
  mov.u32 %r5, space; shl.b32 %r6, %r1, 2; add.u32 %r7, %r5, %r6;
  st.shared.f32 [%r7], %f1;
  shr.u32 %r8, %r2, 1;
STEP:
  setp.eq.u32 %p1, %r8, 0;
  @%p1 bra OUT;
  bar.sync 0;
  setp.ge.u32 %p2, %r1, %r8;
  @%p2 bra NEXT;
  shl.b32 %r9, %r8, 2; add.u32 %r10, %r7, %r9;
  ld.shared.f32 %f2, [%r7]; ld.shared.f32 %f3, [%r10];
  add.f32 %f2, %f2, %f3;
  st.shared.f32 [%r7], %f2;
NEXT:
  shr.u32 %r8, %r8, 1;
  bra STEP;
OUT:
  setp.ne.u32 %p3, %r1, 0;
  @%p3 ret;
  mul.wide.u32 %rd5, %r3, 4; add.u64 %rd6, %rd2, %rd5;
  ld.shared.f32 %f2, [space];
  st.global.f32 [%rd6], %f2;
  ret;
}";

#[test]
fn tree_reduction_in_dynamic_shared_memory() {
    for threads in [64u32, 256, 1024] {
        at_every_level(TREE, "tree", [threads, 1, 1], |kernel| {
            let mut input: Vec<f32> = (0..3 * threads).map(|i| (i % 13) as f32).collect();
            let mut out = vec![0f32; 3];
            kernel.run(Launch::grid(3, 1, 1).shared(4 * threads), Args::new().slice(&mut input).slice(&mut out));
            for (block, found) in out.iter().enumerate() {
                let part = &input[block * threads as usize..][..threads as usize];
                assert_eq!(*found, part.iter().sum::<f32>(), "block {block} of {threads} threads");
            }
        });
    }
}

/// The form that the preemption pass gives a kernel: agree on the epoch, run, write the progress
/// byte after a barrier.
const PREEMPTIBLE: &str = "
.visible .entry work(.param .u64 out, .param .u32 n, .param .u64 epoch, .param .u64 evicted, .param .u64 progress, \
    .param .u32 issued)
{
  .reg .pred %p<8>; .reg .b32 %r<16>; .reg .b64 %rd<12>;
  ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [n];
  ld.param.u64 %rd2, [epoch]; ld.param.u64 %rd3, [evicted]; ld.param.u64 %rd4, [progress]; ld.param.u32 %r2, [issued];
  mov.u32 %r3, %tid.x;
  mov.u32 %r5, %ctaid.x;
  setp.eq.u32 %p1, %r3, 0;
  mov.u32 %r4, 0;
  @%p1 ld.relaxed.sys.global.u32 %r4, [%rd2];
  sub.s32 %r6, %r4, %r2;
  setp.gt.s32 %p2, %r6, 0;
  and.pred %p2, %p2, %p1;
  bar.red.or.pred %p3, 0, %p2;
  @%p3 bra LEAVE;
  mov.u32 %r7, %ntid.x; mad.lo.u32 %r8, %r5, %r7, %r3;
  setp.ge.u32 %p4, %r8, %r1;
  @%p4 bra EPILOGUE;
  mul.wide.u32 %rd5, %r8, 4; add.u64 %rd6, %rd1, %rd5;
  st.global.u32 [%rd6], %r8;
EPILOGUE:
  bar.sync 0;
  cvt.u64.u32 %rd7, %r5; add.u64 %rd8, %rd4, %rd7;
  mov.u32 %r9, 1;
  @%p1 st.global.u8 [%rd8], %r9;
  ret;
LEAVE:
  @%p1 st.global.u32 [%rd3], 1;
  ret;
}";

#[test]
fn a_block_is_all_or_nothing_under_its_epoch() {
    for threads in [32u32, 96] {
        at_every_level(PREEMPTIBLE, "work", [threads, 1, 1], |kernel| {
            let n = 4 * threads - 5;
            for (word, issued, runs) in [(3u32, 3u32, true), (4, 3, false), (3, 4, true), (0, u32::MAX, false)] {
                let (mut out, mut epoch, mut evicted) = (vec![u32::MAX; 4 * threads as usize], vec![word], vec![0u32]);
                let mut progress = vec![0u8; 4];
                let args = Args::new()
                    .slice(&mut out)
                    .u32(n)
                    .slice(&mut epoch)
                    .slice(&mut evicted)
                    .slice(&mut progress)
                    .u32(issued);
                kernel.run(Launch::grid(4, 1, 1), args);
                assert_eq!(evicted[0], u32::from(!runs));
                assert!(progress.iter().all(|p| *p == u8::from(runs)));
                for (i, found) in out.iter().enumerate() {
                    let expected = if runs && (i as u32) < n { i as u32 } else { u32::MAX };
                    assert_eq!(*found, expected, "thread {i} of {threads}");
                }
            }
        });
    }
}

/// Threads beyond the end count themselves as finished in shared memory and exit; the others
/// synchronise at a barrier in which the exited threads take no part.
const COUNTED_EXIT: &str = "
.visible .entry counted(.param .u64 out, .param .u32 n, .param .u64 progress)
{
  .reg .pred %p<8>; .reg .b32 %r<16>; .reg .b64 %rd<12>;
  .shared .align 4 .b8 finished[4];
  .shared .align 4 .b8 sums[4096];
  ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [n]; ld.param.u64 %rd2, [progress];
  mov.u32 %r2, %tid.x; mov.u32 %r3, %ntid.x;
  setp.ne.u32 %p1, %r2, 0;
  @!%p1 st.shared.u32 [finished], 0;
  bar.sync 0;
  mov.u32 %r12, 5;
  setp.ge.u32 %p2, %r2, %r1;
  @%p2 bra EPILOGUE;
  mov.u32 %r4, sums; shl.b32 %r5, %r2, 2; add.u32 %r6, %r4, %r5;
  st.shared.u32 [%r6], %r2;
  bar.sync 0;
  sub.u32 %r7, %r1, %r2; sub.u32 %r7, %r7, 1;
  shl.b32 %r8, %r7, 2; add.u32 %r9, %r4, %r8;
  ld.shared.u32 %r10, [%r9];
  mul.wide.u32 %rd3, %r2, 4; add.u64 %rd4, %rd1, %rd3;
  st.global.u32 [%rd4], %r10;
  mov.u32 %r12, 7;
EPILOGUE:
  atom.shared.add.u32 %r11, [finished], 1;
  add.u32 %r11, %r11, 1;
  setp.ne.u32 %p3, %r11, %r3;
  @%p3 ret;
  st.global.u32 [%rd2], %r12;
  ret;
}";

#[test]
fn threads_may_exit_through_an_epilogue_before_a_barrier() {
    for (threads, n) in [(64u32, 64u32), (64, 20), (128, 70), (96, 96), (40, 33)] {
        at_every_level(COUNTED_EXIT, "counted", [threads, 1, 1], |kernel| {
            let (mut out, mut progress) = (vec![u32::MAX; threads as usize], vec![0u32]);
            kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut out).u32(n).slice(&mut progress));
            for i in 0..threads {
                let expected = if i < n { n - 1 - i } else { u32::MAX };
                assert_eq!(out[i as usize], expected, "thread {i} of {threads}, {n}");
            }
            assert_eq!(progress[0], 7, "the last thread was not found: {threads}, {n}");
        });
    }
}
