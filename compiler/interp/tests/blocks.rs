//! Warps, barriers, calls, output and faults.

mod common;

use atoll_interp::{Fault, FaultKind, Options};
use common::{try_words, words};

/// A kernel around a body: `%out` is the address of the output, `%t` the thread. At the end each
/// thread stores `%r0` to its element of the output.
fn kernel(declarations: &str, body: &str) -> String {
    format!(
        "{declarations}
.visible .entry k(.param .u64 out) {{
    .reg .b64 %out, %d<8>; .reg .b32 %t, %r<16>; .reg .pred %p<8>; .reg .f32 %f<8>;
    ld.param.u64 %out, [out];
    mov.u32 %t, %tid.x;
{body}
    mul.wide.u32 %d0, %t, 4;
    add.s64 %d0, %out, %d0;
    st.global.u32 [%d0], %r0;
    ret;
}}"
    )
}

fn fault(text: &str, block: u32) -> Box<Fault> {
    let options = Options { steps: 100_000, ..Options::default() };
    try_words(text, 1, block, 32, &options).expect_err("the kernel must not finish")
}

#[test]
fn shuffles_and_votes() {
    let sum = "
    mov.u32 %r0, %t;
    shfl.sync.bfly.b32 %r1, %r0, 16, 31, -1; add.s32 %r0, %r0, %r1;
    shfl.sync.bfly.b32 %r1, %r0, 8, 31, -1; add.s32 %r0, %r0, %r1;
    shfl.sync.bfly.b32 %r1, %r0, 4, 31, -1; add.s32 %r0, %r0, %r1;
    shfl.sync.bfly.b32 %r1, %r0, 2, 31, -1; add.s32 %r0, %r0, %r1;
    shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1; add.s32 %r0, %r0, %r1;";
    assert_eq!(words(&kernel("", sum), 1, 64, 64), [vec![496; 32], vec![496 + 32 * 32; 32]].concat());
    let up = "shfl.sync.up.b32 %r0|%p0, %t, 1, 0, -1; @!%p0 mov.u32 %r0, 99;";
    assert_eq!(words(&kernel("", up), 1, 32, 32)[..3], [99, 0, 1]);
    let segments = "shfl.sync.down.b32 %r0, %t, 3, 0x181f, -1;";
    assert_eq!(words(&kernel("", segments), 1, 32, 32)[..10], [3, 4, 5, 6, 7, 5, 6, 7, 11, 12]);
    let ballot = "and.b32 %r1, %t, 1; setp.ne.u32 %p0, %r1, 0; vote.sync.ballot.b32 %r0, %p0, -1;";
    assert_eq!(words(&kernel("", ballot), 1, 32, 32), vec![0xaaaa_aaaa; 32]);
    let matched = "and.b32 %r1, %t, 3; match.any.sync.b32 %r0, %r1, -1;";
    assert_eq!(words(&kernel("", matched), 1, 32, 32)[..2], [0x1111_1111, 0x2222_2222]);
    let redux = "redux.sync.max.s32 %r0, %t, -1;";
    assert_eq!(words(&kernel("", redux), 1, 32, 32), vec![31; 32]);
}

#[test]
fn diverged_lanes_reconverge() {
    let body = "
    and.b32 %r1, %t, 7;
    mov.u32 %r0, 0;
loop:
    setp.eq.u32 %p0, %r1, 0;
    @%p0 bra done;
    add.u32 %r0, %r0, %r1;
    sub.u32 %r1, %r1, 1;
    bra loop;
done:
    activemask.b32 %r2;
    popc.b32 %r2, %r2;
    shfl.sync.idx.b32 %r0, %r0, 7, 31, -1;";
    assert_eq!(words(&kernel("", body), 1, 32, 32), vec![28; 32]);
}

#[test]
fn a_lane_that_spins_on_another_lane_makes_progress() {
    let body = "
    mov.u32 %r2, lock;
again:
    atom.shared.cas.b32 %r3, [%r2], 0, 1;
    setp.ne.u32 %p0, %r3, 0;
    @%p0 bra again;
    ld.shared.u32 %r0, [lock+4];
    add.u32 %r0, %r0, 1;
    st.shared.u32 [lock+4], %r0;
    atom.shared.exch.b32 %r3, [%r2], 0;
    bar.sync 0;
    ld.shared.u32 %r0, [lock+4];";
    let zero = "mov.u32 %r4, 0; st.shared.u32 [lock], %r4; st.shared.u32 [lock+4], %r4; bar.sync 0;";
    assert_eq!(words(&kernel(".shared .align 4 .b8 lock[8];", &format!("{zero}{body}")), 1, 96, 96), vec![96; 96]);
}

#[test]
fn barriers_wait_for_live_threads_or_a_count() {
    let early = "
    st.shared.u32 [cell], 5;
    setp.gt.u32 %p0, %t, 40; @%p0 exit;
    bar.sync 0;
    bar.red.popc.u32 %r0, 1, %p0;
    setp.lt.u32 %p1, %t, 10;
    bar.red.popc.u32 %r0, 1, %p1;";
    let out = words(&kernel(".shared .align 4 .b8 cell[4];", early), 1, 64, 64);
    assert_eq!((out[0], out[40], out[41]), (10, 10, 0));
    // One warp produces and continues, the other consumes.
    let producer = "
    setp.ge.u32 %p0, %t, 32;
    mov.u32 %r0, 7;
    @%p0 bra consume;
    shl.b32 %r1, %t, 2; mov.u32 %r2, cell; add.u32 %r1, %r1, %r2;
    mul.lo.u32 %r3, %t, 3; st.shared.u32 [%r1], %r3;
    bar.arrive 3, 64;
    bra join;
consume:
    bar.sync 3, 64;
    sub.u32 %r1, 63, %t; shl.b32 %r1, %r1, 2; mov.u32 %r2, cell; add.u32 %r1, %r1, %r2;
    ld.shared.u32 %r0, [%r1];
join:";
    let out = words(&kernel(".shared .align 4 .b8 cell[128];", producer), 1, 64, 64);
    assert_eq!((out[0], out[32], out[63]), (7, 93, 0));
}

#[test]
fn functions_are_called_directly_indirectly_and_recursively() {
    let functions = "
.func (.param .b32 result) factorial(.param .b32 n) {
    .reg .b32 %r<4>; .reg .pred %p;
    ld.param.u32 %r0, [n];
    mov.u32 %r1, 1;
    setp.le.u32 %p, %r0, 1;
    @%p bra end;
    sub.u32 %r2, %r0, 1;
    { .param .b32 a; .param .b32 b;
      st.param.b32 [a], %r2;
      call.uni (b), factorial, (a);
      ld.param.b32 %r1, [b]; }
    mul.lo.u32 %r1, %r1, %r0;
end:
    st.param.b32 [result], %r1;
    ret;
}
.func (.reg .b32 result) twice(.reg .b32 n) { add.u32 result, n, n; ret; }";
    let body = "
    and.b32 %r1, %t, 7;
    { .param .b32 a; .param .b32 b;
      st.param.b32 [a], %r1;
      call.uni (b), factorial, (a);
      ld.param.b32 %r0, [b]; }
    mov.u64 %d1, twice;
    { proto: .callprototype (.reg .b32 _) _ (.reg .b32 _);
      call (%r0), %d1, (%r0), proto; }";
    assert_eq!(words(&kernel(functions, body), 1, 32, 32)[..8], [2, 2, 4, 12, 48, 240, 1440, 10080]);
}

#[test]
fn branch_tables_and_local_memory() {
    let body = "
    .local .align 8 .b8 array[32];
    and.b32 %r1, %t, 3;
    table: .branchtargets l0, l1, l2;
    st.local.v2.u32 [array+8], {%t, %r1};
    mov.u32 %r0, 50;
    setp.eq.u32 %p0, %r1, 3;
    @%p0 bra end;
    brx.idx %r1, table;
l0: mov.u32 %r0, 100; bra end;
l1: mov.u32 %r0, 200; bra end;
l2: ld.local.u32 %r0, [array+8];
    mov.u64 %d1, array; cvta.local.u64 %d1, %d1; ld.u32 %r2, [%d1+12]; add.u32 %r0, %r0, %r2;
end:";
    assert_eq!(words(&kernel("", body), 1, 32, 32)[..7], [100, 200, 4, 50, 100, 200, 8]);
}

#[test]
fn printf_output_is_captured() {
    let declarations = "
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.global .align 1 .b8 fmt[12] = {116, 37, 100, 32, 37, 46, 50, 102, 10, 0};";
    let body = "
    .local .align 8 .b8 arguments[16];
    setp.ne.u32 %p0, %t, 1; @%p0 bra end;
    mov.f64 %d1, 0d3ff8000000000000;
    st.local.u32 [arguments], %t; st.local.f64 [arguments+8], %d1;
    mov.u64 %d2, fmt; cvta.global.u64 %d2, %d2;
    mov.u64 %d3, arguments; cvta.local.u64 %d3, %d3;
    { .param .b64 a; .param .b64 b; .param .b32 c;
      st.param.b64 [a], %d2; st.param.b64 [b], %d3;
      call.uni (c), vprintf, (a, b);
      ld.param.b32 %r0, [c]; }
end:";
    let (out, report) = try_words(&kernel(declarations, body), 1, 4, 4, &Options::default()).unwrap();
    assert_eq!((report.printed.as_str(), out[1]), ("t1 1.50\n", 2));
}

#[test]
fn faults_have_kind_and_position() {
    let beyond =
        fault(&kernel("", "mul.wide.u32 %d1, %t, 4; add.s64 %d1, %d1, %out; ld.global.u32 %r0, [%d1+124];"), 4);
    let FaultKind::OutOfBounds { bytes: 4, near: Some(near), .. } = &beyond.kind else { panic!("{beyond}") };
    assert_eq!(
        (near.name.as_str(), near.offset, near.bytes, beyond.thread, beyond.line),
        ("out", 128, 128, [1, 0, 0], 9)
    );
    assert!(beyond.to_string().contains("byte 128 of `out`, which has 128 bytes"), "{beyond}");
    assert!(matches!(fault(&kernel("", "ld.global.u32 %r0, [%out+2];"), 1).kind, FaultKind::Misaligned { .. }));
    assert!(matches!(
        fault(&kernel("", "mov.u64 %d1, 0; ld.global.u32 %r0, [%d1];"), 1).kind,
        FaultKind::OutOfBounds { address: 0, near: None, .. }
    ));
    assert!(matches!(fault(&kernel("", "trap;"), 1).kind, FaultKind::Trap));
    assert!(matches!(fault(&kernel("", "l: bra l;"), 1).kind, FaultKind::StepLimit(_)));
    assert!(matches!(fault(&kernel("", "st.param.u64 [out], %out;"), 1).kind, FaultKind::ReadOnly { .. }));
    let recursion = kernel(".func f() { call.uni f; ret; }", "call.uni f;");
    assert!(matches!(fault(&recursion, 1).kind, FaultKind::CallDepth(_)));
}

#[test]
fn a_deadlock_lists_the_waiting_threads() {
    let body = "setp.lt.u32 %p0, %t, 32; @%p0 bra l; bar.sync 1; bra e; l: bar.sync 2; e:";
    let fault = fault(&kernel("", body), 64);
    let FaultKind::Deadlock(waiting) = &fault.kind else { panic!("{fault}") };
    let places: Vec<_> = waiting.iter().map(|w| (w.barrier, w.threads, w.first)).collect();
    assert_eq!(places, [(Some(2), 32, [0, 0, 0]), (Some(1), 32, [32, 0, 0])]);
}
