//! What happens between the eviction of best-effort launches and the first block of the real-time
//! request that they were evicted for.

use super::*;
use crate::fake::{Op, Refusal};

/// Elements of the best-effort request, and of the real-time request, which has two blocks.
const LONG: u32 = 320;
const SHORT: u32 = 32;

/// An engine whose paused device holds four launches of a best-effort request.
fn busy() -> (Setup, Pending) {
    let setup = setup(EngineConfig::default());
    setup.device.pause();
    let best_effort = setup.submit(Class::BestEffort, LONG, 1);
    setup.device.wait_for_launches();
    // The statistics arrive after all launches were issued.
    assert_eq!(setup.handle.statistics().preemptions, 0);
    (setup, best_effort)
}

/// Checks that both kinds of requests have the memory of one request each.
fn check_memory(setup: &Setup) {
    let used = setup.handle.statistics().device.memory_used_bytes;
    let requests = [LONG, SHORT].map(|n| toy::invocation_memory(i64::from(n)));
    assert_eq!(used, 256 + requests.iter().sum::<u64>(), "constants and two requests");
}

#[test]
fn evicted_launches_are_asked_to_exit_before_inputs_are_written() {
    let (setup, best_effort) = busy();
    let before = setup.device.log();
    let running: Vec<Op> = before.iter().copied().filter(|op| matches!(op, Op::Submit(_))).collect();
    let real_time = setup.submit(Class::RealTime, SHORT, 2);
    assert_eq!(setup.handle.statistics().preemptions, 1);
    let log = setup.device.log().split_off(before.len());
    assert_eq!(log[0], Op::StoreEpoch, "{log:?}");
    let interrupted = |op: &Op| if let Op::Interrupt { launch, blocks: 2 } = *op { Some(launch) } else { None };
    let mut interrupted: Vec<_> = log[1..].iter().map_while(interrupted).collect();
    interrupted.sort_unstable();
    assert_eq!(interrupted.iter().copied().map(Op::Submit).collect::<Vec<_>>(), running, "{log:?}");
    let behind = &log[1 + running.len()..];
    assert_eq!(behind[0], Op::Write { bytes: 4 * SHORT as usize }, "{log:?}");
    assert!(behind[1..].iter().all(|op| matches!(op, Op::Submit(_))), "{log:?}");
    setup.device.resume();
    real_time.result();
    assert_eq!(best_effort.result().preemptions, 1);
    check_memory(&setup);
}

#[test]
fn a_request_that_evicts_nothing_interrupts_nothing() {
    let setup = setup(EngineConfig::default());
    setup.submit(Class::RealTime, SHORT, 1).result();
    assert!(!setup.device.log().iter().any(|op| matches!(op, Op::Interrupt { .. })));
}

#[test]
fn an_input_that_cannot_be_written_fails_only_its_request() {
    let (setup, best_effort) = busy();
    setup.device.refuse(Refusal::Input, 0);
    let error = setup.submit(Class::RealTime, SHORT, 2).error();
    assert_eq!(
        error,
        InvokeError::Device("the inputs cannot be written: the device's driver refuses: it refuses the bytes".into())
    );
    setup.device.accept();
    assert_eq!(setup.handle.statistics().preemptions, 1, "it had evicted before");
    setup.device.resume();
    assert_eq!(best_effort.result().preemptions, 1);
    setup.submit(Class::RealTime, SHORT, 3).result();
    check_memory(&setup);
}

#[test]
fn a_request_that_is_cancelled_before_its_first_block_leaves_no_trace() {
    let (setup, best_effort) = busy();
    let real_time = setup.submit(Class::RealTime, SHORT, 2);
    setup.handle.cancel(real_time.id);
    assert_eq!(setup.handle.statistics().preemptions, 1);
    setup.device.resume();
    assert_eq!(real_time.error(), InvokeError::Cancelled);
    assert_eq!(best_effort.result().preemptions, 1);
    setup.submit(Class::RealTime, SHORT, 3).result();
    check_memory(&setup);
}

#[test]
fn a_device_that_is_lost_while_inputs_are_written_ends_both_requests() {
    let (setup, best_effort) = busy();
    setup.device.refuse(Refusal::InputOfLostDevice, 0);
    let real_time = setup.submit(Class::RealTime, SHORT, 2);
    for pending in [&real_time, &best_effort] {
        assert_eq!(pending.error(), InvokeError::DeviceLost("the test lost it".into()));
    }
    assert_eq!(setup.device.log().last(), Some(&Op::Write { bytes: 4 * SHORT as usize }), "nothing was launched");
    setup.engine.shutdown();
}
