//! Shutdown, drop and panic of an engine.

use super::*;

#[test]
fn shutdown_lets_invocations_finish_and_refuses_later_ones() {
    let setup = setup(EngineConfig::default());
    let pending: Vec<Pending> = (0..6).map(|i| setup.submit(Class::BestEffort, 64, i)).collect();
    let handle = setup.handle.clone();
    setup.engine.shutdown();
    pending.iter().for_each(|pending| drop(pending.result()));
    assert_eq!(submit(&handle, request("f", Class::RealTime, &[1])).error(), InvokeError::ShuttingDown);
    assert!(matches!(handle.load(Arc::clone(&setup.bundle), options("g")), Err(EngineError::ShuttingDown)));
    assert_eq!(handle.statistics().functions, []);
}

#[test]
fn shutdown_gives_up_after_its_grace_time() {
    let setup = setup(EngineConfig { shutdown_grace: Duration::from_millis(10), ..EngineConfig::default() });
    setup.device.pause();
    let pending: Vec<Pending> = (0..6).map(|i| setup.submit(Class::BestEffort, 64, i)).collect();
    setup.device.wait_for_launches();
    // A paused device that ignores aborts ends no launch.
    setup.device.ignore_aborts();
    setup.engine.shutdown();
    pending.iter().for_each(|pending| assert_eq!(pending.error(), InvokeError::ShuttingDown));
}

#[test]
fn dropping_an_engine_answers_all_invocations() {
    let setup = setup(EngineConfig::default());
    let pending: Vec<Pending> = (0..6).map(|i| setup.submit(Class::BestEffort, 640, i)).collect();
    drop(setup.engine);
    assert!(pending.iter().any(|pending| pending.answer().err() == Some(InvokeError::ShuttingDown)));
}

#[test]
fn a_panic_of_the_engine_thread_answers_all_invocations() {
    let setup = setup(EngineConfig::default());
    setup.device.panic_on_submit();
    assert_eq!(setup.submit(Class::BestEffort, 64, 0).error(), InvokeError::ShuttingDown);
    assert_eq!(setup.submit(Class::RealTime, 64, 0).error(), InvokeError::ShuttingDown);
    let begin = std::time::Instant::now();
    while !setup.handle.is_lost() {
        assert!(
            begin.elapsed() < Duration::from_secs(10),
            "the device does not count as lost after its thread panicked"
        );
        std::thread::yield_now();
    }
    assert!(setup.handle.statistics().device.lost.is_some_and(|why| why.contains("panicked")));
    setup.engine.shutdown();
}
