//! Constants that a fleet has loaded ahead or reclaimed, and the reports of where constants are.

use super::*;

fn key(name: &str) -> FunctionKey {
    FunctionKey::local(name)
}

/// The reports so far. The answer of the engine's thread shows that it has reported what was before.
fn reported(handle: &EngineHandle) -> Vec<(String, bool)> {
    handle.statistics();
    handle.take_residency().into_iter().map(|(function, is_resident)| (function.name, is_resident)).collect()
}

#[test]
fn the_engine_reports_where_constants_are_and_how_long_a_cold_start_waited() {
    let (_engine, handle, device) = start(256 * 24 + toy::invocation_memory(64), EngineConfig::default());
    assert_eq!(handle.memory_bytes(), 256 * 24 + toy::invocation_memory(64), "the limit, not the device");
    let (a, b) = (model(1, 20), model(2, 20));
    load(&handle, "a", &a, Class::BestEffort).expect("room");
    load(&handle, "b", &b, Class::BestEffort).expect("a place in host memory");
    assert_eq!(reported(&handle), [("a".into(), true)]);
    let input = input(64, 1);
    let warm = check(&submit(&handle, "a", Class::BestEffort, &input).1, &a, &input);
    assert_eq!((warm.cold_start, warm.load_ns, reported(&handle)), (false, 0, vec![]));
    device.delay_loading(Duration::from_millis(2));
    let cold = check(&submit(&handle, "b", Class::BestEffort, &input).1, &b, &input);
    assert!(cold.cold_start && cold.load_ns >= 2_000_000 && cold.load_ns <= cold.timing.queue_ns, "{cold:?}");
    assert_eq!(reported(&handle), [("a".into(), false), ("b".into(), true)]);
    assert_eq!([handle.holds_constants(&key("a")), handle.holds_constants(&key("b"))], [false, true]);
    handle.unload(&key("b")).expect("loaded");
    assert!(reported(&handle).is_empty(), "a function that is gone is not reported");
    assert!(!handle.holds_constants(&key("b")));
}

#[test]
fn constants_are_loaded_ahead_where_memory_is_free_and_reclaimed_where_nothing_needs_them() {
    let (_engine, handle, device) = start(256 * 24 + toy::invocation_memory(64), EngineConfig::default());
    let (a, b) = (model(1, 20), model(2, 20));
    load(&handle, "a", &a, Class::BestEffort).expect("room");
    load(&handle, "b", &b, Class::BestEffort).expect("a place in host memory");
    reported(&handle);
    handle.preload(&key("b"));
    assert_eq!(reported(&handle), [("b".into(), false)], "it evicts nothing");
    handle.preload(&key("unknown"));
    handle.reclaim(&key("unknown"));
    device.pause();
    let input = input(64, 1);
    let running = submit(&handle, "a", Class::BestEffort, &input);
    device.wait_for_launches();
    handle.reclaim(&key("a"));
    assert!(reported(&handle).is_empty(), "an invocation needs them");
    device.resume();
    check(&running.1, &a, &input);
    handle.reclaim(&key("a"));
    assert_eq!(reported(&handle), [("a".into(), false)]);
    handle.preload(&key("b"));
    assert_eq!(reported(&handle), [("b".into(), true)]);
    let ahead = check(&submit(&handle, "b", Class::BestEffort, &input).1, &b, &input);
    assert!(!handle.statistics().functions.is_empty() && ahead.outputs.len() == 1);
    assert_eq!(handle.statistics().constants.evictions, 1, "only what was reclaimed");
}
