//! Shuffles, votes, atomics, thread indices, and per-thread memory.

use crate::common::{Args, Launch, Random, at_every_level};

/// A kernel on one value `%r1` per thread of one or more warps, whose code leaves its result in
/// `%r2`; the lane is in `%r3`.
fn warp_kernel(code: &str) -> String {
    format!(
        ".visible .entry op(.param .u64 in, .param .u64 out, .param .u32 by)
{{
  .reg .pred %p<6>; .reg .b32 %r<24>; .reg .f32 %f<8>; .reg .b64 %rd<12>;
  ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out]; ld.param.u32 %r4, [by];
  mov.u32 %r5, %tid.x; mov.u32 %r3, %laneid;
  mul.wide.u32 %rd3, %r5, 4; add.u64 %rd4, %rd1, %rd3; add.u64 %rd5, %rd2, %rd3;
  ld.global.u32 %r1, [%rd4];
  {code}
  st.global.u32 [%rd5], %r2;
  ret;
}}"
    )
}

fn check(code: &str, by: u32, threads: u32, expected: impl Fn(&[u32], usize) -> u32) {
    at_every_level(&warp_kernel(code), "op", [threads, 1, 1], |kernel| {
        let mut random = Random::new(by.into());
        let mut input: Vec<u32> = (0..threads).map(|_| random.next_u32() % 1000).collect();
        let mut out = vec![0u32; threads as usize];
        kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut input).slice(&mut out).u32(by));
        for (i, found) in out.iter().enumerate() {
            let warp = &input[i / 32 * 32..(i / 32 * 32 + 32).min(input.len())];
            assert_eq!(*found, expected(warp, i % 32), "{code}, by {by}, thread {i}");
        }
    });
}

#[test]
fn shuffles() {
    for by in [0u32, 1, 5, 16, 31] {
        for operand in ["%r4".to_owned(), by.to_string()] {
            let by_lane = by as usize;
            check(&format!("shfl.sync.bfly.b32 %r2, %r1, {operand}, 31, -1;"), by, 64, |w, l| w[l ^ by_lane]);
            check(&format!("shfl.sync.down.b32 %r2, %r1, {operand}, 31, -1;"), by, 32, |w, l| {
                *w.get(l + by_lane).unwrap_or(&w[l])
            });
            check(
                &format!("shfl.sync.up.b32 %r2|%p1, %r1, {operand}, 0, -1; @!%p1 mov.u32 %r2, 7;"),
                by,
                32,
                |w, l| {
                    if l >= by_lane { w[l - by_lane] } else { 7 }
                },
            );
            check(&format!("shfl.sync.idx.b32 %r2, %r1, {operand}, 31, -1;"), by, 64, |w, _| w[by_lane]);
            // Segments of eight lanes.
            check(&format!("shfl.sync.idx.b32 %r2, %r1, {operand}, 0x181f, -1;"), by, 32, |w, l| {
                w[(l & 24) | (by_lane & 7)]
            });
            check(&format!("shfl.sync.down.b32 %r2, %r1, {operand}, 0x1807, -1;"), by, 32, |w, l| {
                if (l & 7) + by_lane < 8 { w[l + by_lane] } else { w[l] }
            });
        }
    }
    check("xor.b32 %r6, %r3, %r4; shfl.sync.idx.b32 %r2, %r1, %r6, 31, -1;", 9, 32, |w, l| w[l ^ 9]);
}

#[test]
fn a_shuffle_reduction_in_a_loop() {
    let code = "mov.u32 %r2, %r1; mov.u32 %r6, 16;
LOOP:
  shfl.sync.bfly.b32 %r7, %r2, %r6, 31, -1;
  add.u32 %r2, %r2, %r7;
  shr.u32 %r6, %r6, 1;
  setp.ne.u32 %p1, %r6, 0;
  @%p1 bra LOOP;";
    check(code, 0, 128, |w, _| w.iter().sum());
}

#[test]
fn votes_and_masks() {
    let big = "setp.gt.u32 %p1, %r1, %r4; ";
    let ballot = |w: &[u32]| w.iter().enumerate().map(|(l, v)| u32::from(*v > 500) << l).sum::<u32>();
    check(&format!("{big} vote.sync.ballot.b32 %r2, %p1, -1;"), 500, 64, |w, _| ballot(w));
    check(&format!("{big} vote.sync.any.pred %p2, %p1, -1; selp.u32 %r2, 1, 0, %p2;"), 998, 64, |w, _| {
        u32::from(w.iter().any(|v| *v > 998))
    });
    check(&format!("{big} vote.sync.all.pred %p2, !%p1, -1; selp.u32 %r2, 1, 0, %p2;"), 998, 64, |w, _| {
        u32::from(w.iter().all(|v| *v <= 998))
    });
    check("activemask.b32 %r2;", 0, 40, |w, _| if w.len() == 32 { u32::MAX } else { 255 });
    // Prefix count: the number of lower lanes with a large value.
    let prefix = format!(
        "{big} vote.sync.ballot.b32 %r6, %p1, -1; mov.u32 %r7, %lanemask_lt; and.b32 %r6, %r6, %r7; popc.b32 %r2, %r6;"
    );
    check(&prefix, 500, 32, |w, l| (ballot(w) & ((1u32 << l) - 1)).count_ones());
    // Only odd lanes vote.
    let odd = format!(
        "{big} mov.u32 %r2, 0; and.b32 %r6, %r3, 1; setp.eq.u32 %p2, %r6, 0; @%p2 bra OUT; \
         vote.sync.ballot.b32 %r2, %p1, 0xaaaaaaaa;\nOUT:"
    );
    check(&odd, 500, 32, |w, l| if l % 2 == 1 { ballot(w) & 0xaaaa_aaaa } else { 0 });
    check("redux.sync.max.u32 %r2, %r1, -1;", 0, 64, |w, _| w.iter().copied().max().unwrap_or(0));
    check("redux.sync.add.s32 %r2, %r1, -1;", 0, 32, |w, _| w.iter().sum());
}

/// The lanes of a warp run an instruction together, with the mask of their own tile of 16 lanes.
#[test]
fn tiles_have_results_of_their_own() {
    const TILE: &str = "and.b32 %r6, %r3, 16; shl.b32 %r6, 0xffff, %r6; setp.gt.u32 %p1, %r1, %r4;";
    let tile = |w: &[u32], l: usize| w[l & 16..][..16].to_vec();
    let mask = |w: &[u32], l: usize, holds: &dyn Fn(u32) -> bool| {
        tile(w, l).iter().enumerate().map(|(at, v)| u32::from(holds(*v)) << (l & 16) << at).sum::<u32>()
    };
    let of_tile = |code: &str, by: u32, expected: &dyn Fn(&[u32], usize) -> u32| {
        check(&format!("{TILE} {code}"), by, 64, expected);
    };
    of_tile("vote.sync.ballot.b32 %r2, %p1, %r6;", 500, &|w, l| mask(w, l, &|v| v > 500));
    of_tile("vote.sync.any.pred %p2, %p1, %r6; selp.u32 %r2, 1, 0, %p2;", 960, &|w, l| {
        tile(w, l).iter().any(|v| *v > 960).into()
    });
    of_tile("vote.sync.all.pred %p2, !%p1, %r6; selp.u32 %r2, 1, 0, %p2;", 960, &|w, l| {
        tile(w, l).iter().all(|v| *v <= 960).into()
    });
    of_tile("and.b32 %r7, %r1, 3; match.any.sync.b32 %r2, %r7, %r6;", 0, &|w, l| mask(w, l, &|v| v % 4 == w[l] % 4));
    of_tile("selp.b32 %r7, 1, 0, %p1; match.all.sync.b32 %r2|%p2, %r7, %r6;", 960, &|w, l| {
        let agree = tile(w, l).iter().all(|v| (*v > 960) == (w[l] > 960));
        if agree { 0xffff << (l & 16) } else { 0 }
    });
    of_tile("redux.sync.add.s32 %r2, %r1, %r6;", 0, &|w, l| tile(w, l).iter().sum());
    // Destination and mask, or source, may be one register; lanes that do not run keep theirs.
    of_tile("vote.sync.ballot.b32 %r6, %p1, %r6; mov.b32 %r2, %r6;", 500, &|w, l| mask(w, l, &|v| v > 500));
    of_tile(
        "vote.sync.ballot.b32 %r6, %p1, %r6; mov.b32 %r2, 7; @%p1 redux.sync.min.u32 %r2, %r1, %r6;",
        500,
        &|w, l| {
            if w[l] > 500 { tile(w, l).into_iter().filter(|v| *v > 500).min().unwrap_or(0) } else { 7 }
        },
    );
}

const HISTOGRAM: &str = "
.visible .entry histogram(.param .u64 in, .param .u64 out, .param .u32 n)
{
  .reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %rd<12>;
  .shared .align 4 .b8 bins[64];
  ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out]; ld.param.u32 %r1, [n];
  mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mad.lo.u32 %r5, %r3, %r4, %r2;
  mov.u32 %r6, bins; shl.b32 %r7, %r2, 2; add.u32 %r8, %r6, %r7;
  setp.lt.u32 %p1, %r2, 16;
  @%p1 st.shared.u32 [%r8], 0;
  bar.sync 0;
  setp.lt.u32 %p2, %r5, %r1;
  @!%p2 bra MEET;
  mul.wide.u32 %rd3, %r5, 4; add.u64 %rd4, %rd1, %rd3;
  ld.global.u32 %r9, [%rd4];
  and.b32 %r9, %r9, 15; shl.b32 %r10, %r9, 2; add.u32 %r11, %r6, %r10;
  red.shared.add.u32 [%r11], 1;
MEET:
  bar.sync 0;
  @!%p1 ret;
  ld.shared.u32 %r12, [%r8];
  mul.wide.u32 %rd5, %r2, 4; add.u64 %rd6, %rd2, %rd5;
  red.global.add.u32 [%rd6], %r12;
  atom.global.max.u32 %r13, [%rd2+64], %r12;
  ret;
}";

#[test]
fn histogram_by_atomics() {
    for threads in [32u32, 64, 100] {
        at_every_level(HISTOGRAM, "histogram", [threads, 1, 1], |kernel| {
            let mut random = Random::new(9);
            let mut input: Vec<u32> = (0..1000).map(|_| random.next_u32()).collect();
            let mut out = vec![0u32; 17];
            kernel.run(
                Launch::grid(1000u32.div_ceil(threads), 1, 1),
                Args::new().slice(&mut input).slice(&mut out).u32(1000),
            );
            let mut most = 0;
            for bin in 0..16u32 {
                let count = |part: &[u32]| part.iter().filter(|v| *v & 15 == bin).count() as u32;
                assert_eq!(out[bin as usize], count(&input), "bin {bin}, {threads} threads");
                most = most.max(input.chunks(threads as usize).map(count).max().unwrap_or(0));
            }
            assert_eq!(out[16], most);
        });
    }
}

#[test]
fn atomics_return_what_was_there() {
    let code = "atom.global.add.u32 %r6, [%rd2+256], 1; mov.u32 %r2, %r6;";
    at_every_level(&warp_kernel(code), "op", [64, 1, 1], |kernel| {
        let (mut input, mut out) = (vec![0u32; 64], vec![0u32; 65]);
        kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut input).slice(&mut out).u32(0));
        let mut tickets = out[..64].to_vec();
        tickets.sort_unstable();
        assert_eq!(tickets, (0..64).collect::<Vec<_>>());
        assert_eq!(out[64], 64);
    });
    let code = "mov.u32 %r2, 0; setp.eq.u32 %p1, %r3, 5; @%p1 atom.global.cas.b32 %r2, [%rd5], 0, 77; \
    @%p1 atom.global.exch.b32 %r2, [%rd5], 3; @%p1 atom.global.inc.u32 %r2, [%rd5], 3;";
    check(code, 0, 32, |_, l| if l == 5 { 3 } else { 0 });
}

#[test]
fn thread_indices_of_every_block_shape() {
    let text = "
.visible .entry indices(.param .u64 out)
{
  .reg .b32 %r<24>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z;
  mov.u32 %r4, %ntid.x; mov.u32 %r5, %ntid.y; mov.u32 %r6, %ntid.z;
  mov.u32 %r7, %ctaid.x; mov.u32 %r8, %ctaid.y; mov.u32 %r9, %ctaid.z;
  mov.u32 %r10, %nctaid.x; mov.u32 %r11, %nctaid.y;
  mad.lo.u32 %r12, %r3, %r5, %r2; mad.lo.u32 %r12, %r12, %r4, %r1;
  mad.lo.u32 %r13, %r9, %r11, %r8; mad.lo.u32 %r13, %r13, %r10, %r7;
  mul.lo.u32 %r14, %r4, %r5; mul.lo.u32 %r14, %r14, %r6;
  mad.lo.u32 %r15, %r13, %r14, %r12;
  mul.wide.u32 %rd2, %r15, 4; add.u64 %rd3, %rd1, %rd2;
  shl.b32 %r16, %r3, 20; shl.b32 %r17, %r2, 10; or.b32 %r16, %r16, %r17; or.b32 %r16, %r16, %r1;
  mad.lo.u32 %r16, %r13, 16777216, %r16;
  st.global.u32 [%rd3], %r16;
  ret;
}";
    for block in [
        [32, 1, 1],
        [64, 1, 1],
        [33, 1, 1],
        [32, 4, 1],
        [64, 2, 2],
        [16, 16, 1],
        [8, 3, 5],
        [1, 40, 1],
        [96, 1, 3],
        [1, 1, 64],
        [32, 3, 2],
    ] {
        at_every_level(text, "indices", block, |kernel| {
            let threads = (block[0] * block[1] * block[2]) as usize;
            let mut out = vec![0u32; threads * 12];
            kernel.run(Launch::grid(2, 3, 2), Args::new().slice(&mut out));
            for (i, found) in out.iter().enumerate() {
                let (cta, t) = ((i / threads) as u32, (i % threads) as u32);
                let (x, y, z) = (t % block[0], t / block[0] % block[1], t / block[0] / block[1]);
                assert_eq!(*found, (cta << 24) + (z << 20 | y << 10 | x), "block {block:?}, thread {i}");
            }
        });
    }
}

#[test]
fn accesses_in_every_layout() {
    // Reversed, strided, vectors of two and four, bytes, and a table indexed by data; through a
    // local array in between.
    let text = "
.const .align 4 .u32 table[4] = {10, 20, 30, 40};
.global .align 4 .u32 counter;
.visible .entry forms(.param .u64 in, .param .u64 out, .param .u32 n)
{
  .reg .pred %p<4>; .reg .b16 %h<8>; .reg .b32 %r<32>; .reg .b64 %rd<32>;
  .local .align 4 .b8 mine[16];
  ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out]; ld.param.u32 %r1, [n];
  mov.u32 %r2, %tid.x; mov.u32 %r3, %ntid.x; mov.u32 %r30, %ctaid.x;
  setp.ge.u32 %p1, %r2, %r1;
  @%p1 ret;
  sub.u32 %r4, %r1, %r2; sub.u32 %r4, %r4, 1;
  mul.wide.u32 %rd3, %r4, 4; add.u64 %rd4, %rd1, %rd3; ld.global.u32 %r5, [%rd4];
  mul.wide.u32 %rd5, %r2, 12; add.u64 %rd6, %rd1, %rd5; ld.global.u32 %r6, [%rd6+4];
  mul.wide.u32 %rd7, %r2, 16; add.u64 %rd8, %rd1, %rd7; ld.global.v4.u32 {%r7, %r8, %r9, %r10}, [%rd8];
  mul.wide.u32 %rd9, %r2, 8; add.u64 %rd10, %rd1, %rd9; ld.global.v2.u32 {%r11, %r12}, [%rd10];
  cvt.u64.u32 %rd11, %r2; add.u64 %rd12, %rd1, %rd11; ld.global.u8 %r13, [%rd12];
  ld.global.s8 %r14, [%rd12];
  and.b32 %r15, %r5, 3; mul.wide.u32 %rd13, %r15, 4; mov.u64 %rd14, table; add.u64 %rd15, %rd14, %rd13; \
  ld.const.u32 %r16, [%rd15];
  and.b32 %r17, %r6, 3; shl.b32 %r18, %r17, 2; mov.u32 %r19, mine;
  st.local.u32 [mine], 1; st.local.u32 [mine+4], 2; st.local.u32 [mine+8], 3; st.local.u32 [mine+12], 4;
  add.u32 %r20, %r19, %r18; ld.local.u32 %r21, [%r20];
  cvta.local.u64 %rd20, 0; mov.u64 %rd21, mine; cvta.local.u64 %rd22, %rd21; cvt.u64.u32 %rd23, %r18; \
  add.u64 %rd24, %rd22, %rd23; ld.u32 %r22, [%rd24];
  mov.u64 %rd25, counter; red.global.add.u32 [%rd25], 1; 
  add.u32 %r5, %r5, %r6; xor.b32 %r7, %r7, %r8; add.u32 %r9, %r9, %r10; xor.b32 %r11, %r11, %r12;
  mul.wide.u32 %rd16, %r2, 32; add.u64 %rd17, %rd2, %rd16;
  st.global.v4.u32 [%rd17], {%r5, %r7, %r9, %r11};
  add.u32 %r21, %r21, %r22;
  st.global.v2.u32 [%rd17+16], {%r13, %r14};
  st.global.u32 [%rd17+24], %r16;
  st.global.u32 [%rd17+28], %r21;
  ret;
}";
    for (threads, n) in [(32u32, 32u32), (64, 64), (64, 45)] {
        at_every_level(text, "forms", [threads, 1, 1], |kernel| {
            let mut random = Random::new(4);
            let mut input: Vec<u32> = (0..threads * 4).map(|_| random.next_u32()).collect();
            let bytes: Vec<u8> = input.iter().flat_map(|v| v.to_le_bytes()).collect();
            let mut out = vec![0u32; threads as usize * 8];
            kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut input).slice(&mut out).u32(n));
            for t in 0..threads as usize {
                let found = &out[t * 8..t * 8 + 8];
                if t >= n as usize {
                    assert_eq!(found, [0; 8], "thread {t} wrote");
                    continue;
                }
                let (first, second) = (input[n as usize - 1 - t], input[3 * t + 1]);
                let quad = &input[4 * t..4 * t + 4];
                let pair = &input[2 * t..2 * t + 2];
                let local = (second & 3) + 1;
                let expected = [
                    first.wrapping_add(second),
                    quad[0] ^ quad[1],
                    quad[2].wrapping_add(quad[3]),
                    pair[0] ^ pair[1],
                    bytes[t].into(),
                    bytes[t] as i8 as i32 as u32,
                    (first & 3) * 10 + 10,
                    2 * local,
                ];
                assert_eq!(found, expected, "thread {t} of {threads}, {n}");
            }
        });
    }
}

#[test]
fn indices_that_run_below_zero_are_masked_not_wrapped() {
    // out[i] = in[i - 5] where that exists: a u32 index that wraps in the first lanes, as in a
    // padded convolution.
    let text = "
.visible .entry padded(.param .u64 in, .param .u64 out, .param .u32 n, .param .u32 pad)
{
  .reg .pred %p<4>; .reg .b32 %r<16>; .reg .f32 %f<4>; .reg .b64 %rd<12>;
  ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out]; ld.param.u32 %r1, [n]; ld.param.u32 %r6, [pad];
  mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mad.lo.u32 %r5, %r3, %r4, %r2;
  sub.u32 %r7, %r5, %r6;
  setp.lt.u32 %p1, %r7, %r1;
  mov.f32 %f1, 0f00000000;
  mul.wide.u32 %rd3, %r7, 4; add.u64 %rd4, %rd1, %rd3;
  @%p1 ld.global.f32 %f1, [%rd4];
  mul.wide.u32 %rd5, %r5, 4; add.u64 %rd6, %rd2, %rd5;
  st.global.f32 [%rd6], %f1;
  ret;
}";
    at_every_level(text, "padded", [64, 1, 1], |kernel| {
        let mut input: Vec<f32> = (0..100).map(|i| i as f32 + 1.0).collect();
        let mut out = vec![-1f32; 128];
        kernel.run(Launch::grid(2, 1, 1), Args::new().slice(&mut input).slice(&mut out).u32(100).u32(5));
        for (i, found) in out.iter().enumerate() {
            let expected = if (5..105).contains(&i) { (i - 4) as f32 } else { 0.0 };
            assert_eq!(*found, expected, "element {i}");
        }
    });
}

#[test]
fn a_trap_is_reported_with_its_line() {
    let text = ".visible .entry bad(.param .u64 out)\n{\n  .reg .pred %p<2>; \
    .reg .b32 %r<3>;\n  mov.u32 %r1, %tid.x;\n  setp.eq.u32 %p1, %r1, 40;\n  @%p1 trap;\n  ret;\n}";
    at_every_level(text, "bad", [64, 1, 1], |kernel| {
        let mut out = [0u32; 1];
        assert_eq!(kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut out)), Some((1, 9)));
    });
}

#[test]
fn match_finds_lanes_with_the_same_value() {
    let text = "
.visible .entry op(.param .u64 in, .param .u64 out)
{
  .reg .b32 %r<8>; .reg .b64 %x<8>; .reg .pred %p<3>;
  ld.param.u64 %x1, [in]; ld.param.u64 %x2, [out]; mov.u32 %r0, %tid.x; mul.wide.u32 %x3, %r0, 4; \
  mul.wide.u32 %x5, %r0, 12;
  add.u64 %x1, %x1, %x3; add.u64 %x2, %x2, %x5; ld.global.u32 %r1, [%x1]; cvt.u64.u32 %x4, %r1;
  match.any.sync.b32 %r2, %r1, -1;
  match.all.sync.b64 %r3|%p1, %x4, -1; selp.b32 %r4, 2, 0, %p1; add.u32 %r3, %r3, %r4;
  mov.u32 %r5, 0; setp.gt.u32 %p2, %r0, 19; @%p2 match.any.sync.b32 %r5, %r1, 0xfff00000;
  st.global.u32 [%x2], %r2; st.global.u32 [%x2+4], %r3; st.global.u32 [%x2+8], %r5; ret;
}";
    at_every_level(text, "op", [32, 1, 1], |kernel| {
        for modulus in [1, 3, 32] {
            let mut input: Vec<u32> = (0..32).map(|i| i % modulus + 7).collect();
            let mut out = vec![0u32; 96];
            kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut input).slice(&mut out));
            for lane in 0..32 {
                let same = |lanes: std::ops::Range<usize>| {
                    lanes.filter(|&i| input[i] == input[lane]).map(|i| 1u32 << i).sum::<u32>()
                };
                assert_eq!(out[3 * lane], same(0..32), "any, lane {lane} modulo {modulus}");
                // All lanes as −1, and 2 if they agree.
                assert_eq!(out[3 * lane + 1], u32::from(modulus == 1), "all, lane {lane} modulo {modulus}");
                assert_eq!(
                    out[3 * lane + 2],
                    if lane > 19 { same(20..32) } else { 0 },
                    "some, lane {lane} modulo {modulus}"
                );
            }
        }
    });
}
