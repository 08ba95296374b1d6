//! Threads that spin on memory to wait for each other: lanes of a warp, warps of a block.

use crate::common::{Args, HEADER, Launch, at_every_level, try_compile};
use atoll_target_host::CpuLevel;

/// Every thread takes one lock, increments a plain counter, and releases the lock.
fn lock(take: &str, give: &str) -> String {
    format!(
        "
.visible .entry k(.param .u64 lock, .param .u64 count)
{{
  .reg .pred %p<4>; .reg .b32 %r<20>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [lock]; ld.param.u64 %rd2, [count];
  mov.u32 %r9, %tid.x;
TRY:
  {take}
  setp.ne.u32 %p1, %r1, 0; @%p1 bra TRY;
  membar.gl;
  ld.global.u32 %r2, [%rd2]; add.u32 %r2, %r2, %r9; add.u32 %r2, %r2, 1; st.global.u32 [%rd2], %r2;
  membar.gl;
  {give}
  ld.global.u32 %r3, [%rd2+4]; max.u32 %r3, %r3, %r9; red.global.max.u32 [%rd2+4], %r3;
  ret;
}}"
    )
}

#[test]
fn lanes_take_a_lock_one_after_the_other() {
    let takes = [
        "atom.global.cas.b32 %r1, [%rd1], 0, 1;",
        "atom.global.exch.b32 %r1, [%rd1], 1;",
        "mov.u32 %r10, 0; mov.u32 %r11, 1; atom.acquire.gpu.global.cas.b32 %r1, [%rd1], %r10, %r11;",
    ];
    let gives =
        ["atom.global.exch.b32 %r5, [%rd1], 0;", "st.volatile.global.u32 [%rd1], 0;", "st.global.u32 [%rd1], 0;"];
    for (take, give) in takes.iter().zip(gives) {
        for threads in [32, 40, 128] {
            at_every_level(&lock(take, give), "k", [threads, 1, 1], |kernel| {
                let (mut held, mut count) = (vec![0u32], vec![0u32; 2]);
                let trap = kernel.run(Launch::grid(3, 1, 1), Args::new().slice(&mut held).slice(&mut count));
                assert_eq!(trap, None);
                assert_eq!(
                    (held[0], count[0], count[1]),
                    (0, 3 * threads * (threads + 1) / 2, threads - 1),
                    "{take} {give} {threads}"
                );
            });
        }
    }
}

/// A lock inside a loop and after a branch, followed by a warp-wide operation.
const LOCK_IN_LOOP: &str = "
.visible .entry k(.param .u64 lock, .param .u64 count, .param .u64 out)
{
  .reg .pred %p<6>; .reg .b32 %r<20>; .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [lock]; ld.param.u64 %rd2, [count]; ld.param.u64 %rd3, [out];
  mov.u32 %r9, %tid.x; mov.u32 %r8, 0; mov.u32 %r7, 0;
ROUND:
  add.u32 %r6, %r9, %r8; and.b32 %r6, %r6, 3; setp.eq.u32 %p2, %r6, 0; @%p2 bra NEXT;
TRY:
  atom.global.cas.b32 %r1, [%rd1], 0, 1;
  setp.ne.u32 %p1, %r1, 0; @%p1 bra TRY;
  ld.global.u32 %r2, [%rd2]; add.u32 %r2, %r2, 1; st.global.u32 [%rd2], %r2;
  add.u32 %r7, %r7, %r8;
  atom.global.exch.b32 %r5, [%rd1], 0;
NEXT:
  shfl.sync.bfly.b32 %r4, %r7, 1, 31, -1;
  add.u32 %r8, %r8, 1; setp.lt.u32 %p3, %r8, 8; @%p3 bra ROUND;
  mad.lo.u32 %r4, %r4, 1000, %r7;
  mul.wide.u32 %rd4, %r9, 4; add.u64 %rd5, %rd3, %rd4; st.global.u32 [%rd5], %r4;
  ret;
}";

#[test]
fn lanes_take_a_lock_in_a_loop_and_reconverge() {
    for threads in [32, 96] {
        at_every_level(LOCK_IN_LOOP, "k", [threads, 1, 1], |kernel| {
            let (mut held, mut count, mut out) = (vec![0u32], vec![0u32], vec![0u32; threads as usize]);
            let trap =
                kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut held).slice(&mut count).slice(&mut out));
            assert_eq!(trap, None);
            let sum = |t: u32| (0..8).filter(|r| !(t + r).is_multiple_of(4)).sum::<u32>();
            assert_eq!(count[0], threads * 6);
            for t in 0..threads {
                assert_eq!(out[t as usize], sum(t ^ 1) * 1000 + sum(t), "thread {t}");
            }
        });
    }
}

/// Warps proceed one after another, the last one first: the first thread of each waits for the flag
/// of the next warp.
const CHAIN: &str = "
.visible .entry k(.param .u64 out)
{
  .reg .pred %p<6>; .reg .b32 %r<20>; .reg .b64 %rd<8>;
  .shared .align 4 .b8 flags[256];
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; mov.u32 %r3, %nwarpid; sub.u32 %r4, %r3, 1;
  mov.u32 %r5, flags; shl.b32 %r6, %r2, 2; add.u32 %r7, %r5, %r6;
  st.volatile.shared.u32 [%r7], 0;
  bar.sync 0;
  and.b32 %r8, %r1, 31;
  setp.eq.u32 %p1, %r2, %r4; @%p1 bra GO;
  setp.ne.u32 %p2, %r8, 0; @%p2 bra GO;
WAIT:
  ld.volatile.shared.u32 %r9, [%r7+4];
  setp.eq.u32 %p3, %r9, 0; @%p3 bra WAIT;
GO:
  bar.warp.sync -1;
  mov.u32 %r10, 0;
  setp.eq.u32 %p1, %r2, %r4; @%p1 bra LAST;
  ld.volatile.shared.u32 %r10, [%r7+4];
LAST:
  add.u32 %r10, %r10, 1;
  mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r10;
  bar.warp.sync -1;
  setp.eq.u32 %p4, %r8, 0;
  @%p4 st.volatile.shared.u32 [%r7], %r10;
  ret;
}";

#[test]
fn warps_wait_for_flags_of_later_warps() {
    for threads in [64, 256] {
        at_every_level(CHAIN, "k", [threads, 1, 1], |kernel| {
            let mut out = vec![0u32; threads as usize];
            assert_eq!(kernel.run(Launch::grid(2, 1, 1), Args::new().slice(&mut out)), None);
            for (i, found) in out.iter().enumerate() {
                assert_eq!(*found, threads / 32 - i as u32 / 32, "thread {i}");
            }
        });
    }
}

/// Lanes take tickets and are served in order.
const TICKETS: &str = "
.visible .entry k(.param .u64 place, .param .u64 log)
{
  .reg .pred %p<6>; .reg .b32 %r<20>; .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [place]; ld.param.u64 %rd2, [log];
  mov.u32 %r1, %tid.x; mov.u32 %r9, %ctaid.x; mov.u32 %r8, %ntid.x; mad.lo.u32 %r1, %r9, %r8, %r1;
  atom.global.add.u32 %r2, [%rd1], 1;
WAIT:
  ld.acquire.gpu.global.u32 %r3, [%rd1+4];
  setp.ne.u32 %p1, %r3, %r2; @%p1 bra WAIT;
  mul.wide.u32 %rd3, %r2, 4; add.u64 %rd4, %rd2, %rd3; st.global.u32 [%rd4], %r1;
  add.u32 %r4, %r2, 1;
  st.release.gpu.global.u32 [%rd1+4], %r4;
  ret;
}";

#[test]
fn tickets_are_served_in_order() {
    for threads in [32, 64] {
        at_every_level(TICKETS, "k", [threads, 1, 1], |kernel| {
            let (mut place, mut log) = (vec![0u32; 2], vec![u32::MAX; 2 * threads as usize]);
            assert_eq!(kernel.run(Launch::grid(2, 1, 1), Args::new().slice(&mut place).slice(&mut log)), None);
            assert_eq!(place, [2 * threads, 2 * threads]);
            log.sort_unstable();
            assert_eq!(log, (0..2 * threads).collect::<Vec<_>>());
        });
    }
}

/// Each block reads the value published by the preceding block, as in a single-pass scan.
const LOOK_BACK: &str = "
.visible .entry k(.param .u64 flags, .param .u64 out)
{
  .reg .pred %p<6>; .reg .b32 %r<20>; .reg .b64 %rd<8>;
  .shared .align 4 .b8 before[4];
  ld.param.u64 %rd1, [flags]; ld.param.u64 %rd2, [out];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mul.wide.u32 %rd3, %r2, 4; add.u64 %rd4, %rd1, %rd3; \
  add.u64 %rd5, %rd2, %rd3;
  setp.ne.u32 %p1, %r1, 0; @%p1 bra READY;
  mov.u32 %r3, 0;
  setp.eq.u32 %p2, %r2, 0; @%p2 bra HAVE;
WAIT:
  ld.volatile.global.u32 %r3, [%rd4+-4];
  setp.eq.u32 %p3, %r3, 0; @%p3 bra WAIT;
HAVE:
  add.u32 %r4, %r3, 3;
  st.volatile.global.u32 [%rd4], %r4;
  st.shared.u32 [before], %r4;
READY:
  bar.sync 0;
  ld.shared.u32 %r5, [before];
  @!%p1 st.global.u32 [%rd5], %r5;
  ret;
}";

#[test]
fn blocks_look_back_at_blocks_before_them() {
    for threads in [32, 128] {
        at_every_level(LOOK_BACK, "k", [threads, 1, 1], |kernel| {
            let (mut flags, mut out) = (vec![0u32; 9], vec![0u32; 9]);
            assert_eq!(kernel.run(Launch::grid(9, 1, 1), Args::new().slice(&mut flags).slice(&mut out)), None);
            assert_eq!(out, (1..=9).map(|i| 3 * i).collect::<Vec<u32>>());
        });
    }
}

/// A warp waits at a barrier while another one spins. The barrier's code precedes the loop.
const SPINS_BEHIND_A_BARRIER: &str = "
.visible .entry k(.param .u64 flag)
{
  .reg .pred %p<4>; .reg .b32 %r<4>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [flag]; mov.u32 %r0, %tid.x;
  setp.ge.u32 %p1, %r0, 32; @%p1 bra SECOND;
  bar.sync 1, 64; bra END;
SECOND:
LOOP: ld.volatile.global.u32 %r1, [%rd1]; setp.eq.u32 %p2, %r1, 0; @%p2 bra LOOP;
  bar.sync 1, 64;
END: ret;
}";

/// A launch may be ended at any instruction of a loop. What the compiler adds at the loop's head
/// must have the loop's line, or the fault names another instruction.
#[test]
fn the_poll_of_a_spinning_loop_has_the_line_of_the_loop() {
    let loaded = try_compile(SPINS_BEHIND_A_BARRIER, "k", [64, 1, 1], CpuLevel::V3).unwrap_or_else(|e| panic!("{e}"));
    let ir = loaded.facts.ir.expect("IR is kept");
    let lines = |location: &str| {
        let named = ir.lines().find(|line| line.starts_with(&format!("{location} = ")));
        named.and_then(|text| text.split("line: ").nth(1)?.split(',').next()?.parse::<usize>().ok())
    };
    // The poll between blocks belongs to no line.
    let is_poll = |line: &&str| line.contains("load atomic volatile i32") && line.contains("!dbg");
    let polls: Vec<_> = ir.lines().filter(is_poll).collect();
    assert!(!polls.is_empty(), "{ir}");
    let module = format!("{HEADER}{SPINS_BEHIND_A_BARRIER}");
    let expected = module.lines().position(|line| line.contains("LOOP: ")).map(|at| at + 1);
    for poll in polls {
        let location = poll.rsplit("!dbg ").next().unwrap_or_default();
        assert_eq!(lines(location), expected, "{poll}\n{ir}");
    }
}
