//! Barriers for some warps only, by number and count; barriers under divergence; warps that wait
//! for each other forever.

use crate::common::{Args, Launch, at_every_level};
use atoll_kgraph::host_abi::TrapCode;

const PROLOGUE: &str = "
  .reg .pred %p<9>; .reg .b32 %r<40>; .reg .b64 %rd<20>;
  .shared .align 16 .b8 box[8192];
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.u32 %r4, %r2, %r3, %r1;
  mul.wide.u32 %rd4, %r4, 4; add.u64 %rd5, %rd1, %rd4;
  mov.u32 %r20, box; shl.b32 %r21, %r1, 2; add.u32 %r22, %r20, %r21;";

/// Runs a kernel with `body` over three blocks, and compares the output of thread `i` of a block of
/// `threads`.
fn check(body: &str, threads: u32, expected: impl Fn(u32) -> u32) {
    let text = format!(".visible .entry k(.param .u64 out)\n{{{PROLOGUE}\n{body}\n}}");
    at_every_level(&text, "k", [threads, 1, 1], |kernel| {
        let mut out = vec![77u32; 3 * threads as usize];
        let trap = kernel.run(Launch::grid(3, 1, 1), Args::new().slice(&mut out));
        assert_eq!(trap, None);
        for (i, found) in out.iter().enumerate() {
            assert_eq!(*found, expected(i as u32), "thread {} of a block of {threads}", i as u32 % threads);
        }
    });
}

#[test]
fn producers_and_consumers_use_two_barriers() {
    // Warps 0 and 1 produce numbers for five iterations; warps 2 and 3 add them up.
    let body = "
  mov.u32 %r5, 0; mov.u32 %r6, 0;
  setp.ge.u32 %p1, %r1, 64; @%p1 bra TAKE;
MAKE:
  mad.lo.u32 %r7, %r5, 1000, %r4; st.shared.u32 [%r22], %r7;
  bar.arrive 1, 128;
  bar.sync 2, 128;
  add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 5; @%p2 bra MAKE;
  ret;
TAKE:
  bar.sync 1, 128;
  ld.shared.u32 %r8, [%r22+-256]; add.u32 %r6, %r6, %r8;
  bar.arrive 2, 128;
  add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 5; @%p2 bra TAKE;
  st.global.u32 [%rd5], %r6;
  ret;";
    check(body, 128, |i| if i % 128 < 64 { 77 } else { 10_000 + 5 * (i - 64) });
}

#[test]
fn groups_of_warps_use_barriers_numbered_by_registers() {
    // Each pair of warps reverses its own part, at a barrier of its own, and counts its odd
    // threads.
    let body = "
  shr.u32 %r5, %r1, 6; add.u32 %r6, %r5, 3; mov.u32 %r7, 64;
  st.shared.u32 [%r22], %r4;
  bar.sync %r6, %r7;
  xor.b32 %r8, %r21, 252; add.u32 %r9, %r20, %r8; ld.shared.u32 %r10, [%r9];
  and.b32 %r11, %r1, 1; setp.eq.u32 %p1, %r11, 1;
  bar.red.popc.u32 %r12, %r6, %r7, %p1;
  bar.red.and.pred %p2, %r6, 64, %p1;
  bar.red.or.pred %p3, %r6, 64, %p1;
  selp.u32 %r13, 1, 0, %p2; selp.u32 %r14, 2, 0, %p3; add.u32 %r13, %r13, %r14;
  mad.lo.u32 %r15, %r12, 10, %r13;
  mad.lo.u32 %r15, %r10, 1000, %r15;
  st.global.u32 [%rd5], %r15; ret;";
    check(body, 256, |i| (i ^ 63) * 1000 + 322);
}

#[test]
fn warps_reach_a_barrier_inside_a_data_dependent_branch() {
    // Warps with an odd index take another path around the same barrier.
    let body = "
  shr.u32 %r5, %r1, 5; st.shared.u32 [%r22], %r5; bar.sync 0;
  ld.shared.u32 %r6, [%r22]; and.b32 %r6, %r6, 1; setp.eq.u32 %p1, %r6, 1;
  @%p1 bra ODD;
  st.shared.u32 [%r22+4096], 5; bar.sync 0; bra MET;
ODD:
  st.shared.u32 [%r22+4096], 6; bar.sync 0;
MET:
  xor.b32 %r7, %r21, 128; add.u32 %r8, %r20, %r7; ld.shared.u32 %r9, [%r8+4096];
  st.global.u32 [%rd5], %r9; ret;";
    check(body, 128, |i| if i / 32 % 2 == 1 { 5 } else { 6 });
}

#[test]
fn lanes_leave_a_loop_with_a_barrier_in_different_rounds() {
    // Thread t iterates t % 5 + 1 times; the barrier counts the warps that still iterate.
    let body = "
  rem.u32 %r5, %r1, 5; mov.u32 %r6, 0;
ROUND:
  add.u32 %r6, %r6, 1;
  bar.sync 0;
  setp.gt.u32 %p1, %r6, %r5; @%p1 bra OUT;
  bra ROUND;
OUT:
  mad.lo.u32 %r7, %r6, 100, %r5; st.global.u32 [%rd5], %r7; ret;";
    for threads in [40, 96] {
        check(body, threads, |i| (i % threads % 5 + 1) * 100 + i % threads % 5);
    }
}

#[test]
fn barriers_do_not_wait_for_ended_warps() {
    let body = "
  shr.u32 %r5, %r1, 5; mov.u32 %r6, 0; and.b32 %r9, %r5, 1; setp.eq.u32 %p2, %r9, 1;
  @%p2 bra ALONE;
ROUND:
  setp.ge.u32 %p1, %r6, %r5; @%p1 exit;
  add.u32 %r6, %r6, 1;
  bar.sync 0;
  st.global.u32 [%rd5], %r6;
  bra ROUND;
ALONE:
  setp.ge.u32 %p1, %r6, 2; @%p1 exit;
  add.u32 %r6, %r6, 1;
  bar.sync 0;
  st.global.u32 [%rd5], %r6;
  bra ALONE;";
    check(body, 160, |i| match i % 160 / 32 {
        0 => 77,
        odd if odd % 2 == 1 => 2,
        even => even,
    });
}

#[test]
fn a_deadlock_fails_the_launch_with_a_line() {
    let text = format!(
        ".visible .entry k(.param .u64 out)\n{{{PROLOGUE}
  setp.ge.u32 %p1, %r1, 32; @%p1 bra TWO;
  bar.sync 1, 64;
  ret;
TWO:
  bar.sync 2, 64;
  ret; }}"
    );
    at_every_level(&text, "k", [64, 1, 1], |kernel| {
        let mut out = vec![0u32; 64];
        let (code, line) = kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut out)).expect("it ended");
        assert_eq!(TrapCode::from_u32(code), Some(TrapCode::Deadlock));
        assert!([13, 16].contains(&line), "line {line}");
    });
}

#[test]
fn a_trap_in_one_warp_ends_the_kernel() {
    let text = format!(
        ".visible .entry k(.param .u64 out)\n{{{PROLOGUE}
  setp.ge.u32 %p1, %r1, 32; @%p1 bra TWO;
  bar.sync 1, 64;
  ret;
TWO:
  setp.eq.u32 %p2, %r1, 40; @%p2 trap;
  bar.sync 1, 64;
  ret; }}"
    );
    at_every_level(&text, "k", [64, 1, 1], |kernel| {
        let mut out = vec![0u32; 64];
        let trap = kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut out));
        assert_eq!(trap, Some((TrapCode::Trap as u32, 16)));
    });
}
