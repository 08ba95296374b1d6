//! Functions that fail to load leave nothing behind: no code, constants, memory, accounts or
//! bundles.

use crate::fake;
use crate::fake::{Controls, FakeDevice, Refusal};
use crate::toy;
use crate::toy::Constants;
use atoll_engine::*;
use atoll_kgraph::Bundle;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Device memory: enough for a function of three constants and its invocations, too little for
/// thirty.
const MEMORY_BYTES: u64 = 8 << 10;

/// The resources that a device and its engine hold.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    modules: usize,
    /// Constants with memory, and mappings into tenants.
    constants: (usize, usize),
    memory_bytes: u64,
    /// Parts of memory that tenants may touch.
    parts: usize,
    constant_bytes: (u64, u64),
    functions: Vec<FunctionKey>,
    accounts: usize,
    /// Bytes charged to the tenant with a quota.
    charged_bytes: u64,
}

struct Setup {
    engine: Engine,
    handle: EngineHandle,
    device: Controls,
}

fn tenant() -> Tenant {
    "guest".parse().expect("a name")
}

fn start() -> Setup {
    let (device, controls) = FakeDevice::new(1);
    let quota = TenantBytes { all: 2 << 10, best_effort: 2 << 10 };
    let memory_quotas = MemoryQuotas { tenants: [(tenant(), quota)].into(), ..MemoryQuotas::default() };
    let config = EngineConfig {
        memory_limit_bytes: Some(MEMORY_BYTES),
        memory_overcommit: 1.0,
        memory_quotas,
        ..EngineConfig::default()
    };
    let engine = Engine::start(device, config).expect("an engine");
    Setup { handle: engine.handle(), engine, device: controls }
}

/// A model with `granules` constants of 256 bytes; the first one is unique to the model.
fn model(number: u32, granules: u8) -> Constants {
    Constants { model: number, more: (1..granules).map(|fill| (256, fill)).collect() }
}

impl Setup {
    fn load(&self, key: &FunctionKey, bundle: &Arc<Bundle>) -> Result<FunctionInfo, EngineError> {
        self.handle.load(
            Arc::clone(bundle),
            FunctionOptions {
                key: key.clone(),
                class: Class::BestEffort,
                queue_capacity: None,
                lane: Default::default(),
                batching: None,
            },
        )
    }

    /// Calls a function and checks its result.
    fn call(&self, key: &FunctionKey, constants: &Constants) -> Result<(), InvokeError> {
        let (send, answer) = channel();
        let input = [1 << 31, 7, 8, 9];
        self.handle.submit(
            toy::request_of(key.clone(), Class::BestEffort, &input),
            Box::new(move |result| drop(send.send(result))),
        );
        let result = answer.recv_timeout(Duration::from_secs(20)).expect("an answer")?;
        assert_eq!(result.outputs[0].bytes, toy::expected_of(constants, &input));
        Ok(())
    }

    fn held(&self) -> Held {
        let statistics = self.handle.statistics();
        let charged = statistics.tenants.iter().find(|row| row.tenant == tenant());
        Held {
            modules: self.device.modules(),
            constants: self.device.constants(),
            memory_bytes: statistics.device.memory_used_bytes,
            parts: self.device.parts(),
            constant_bytes: (statistics.device.constant_bytes, statistics.device.constant_bytes_all),
            functions: statistics.functions.iter().map(|function| function.key.clone()).collect(),
            accounts: statistics.usage.iter().filter(|row| row.function.is_some()).count(),
            charged_bytes: charged.map_or(0, |row| row.used.all),
        }
    }

    /// Waits until the engine's thread has dropped the bundle, which it does right after it
    /// answers.
    fn assert_unheld(&self, bundle: &Arc<Bundle>, when: &str) {
        let begin = std::time::Instant::now();
        while Arc::strong_count(bundle) > 1 {
            assert!(begin.elapsed() < Duration::from_secs(20), "{when}: the bundle is still held");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Loads a function that shares constants with another one, while an operation is refused; then
/// again without refusals.
fn fails(when: &str, key: &FunctionKey, refusal: Option<Refusal>, wrong: &Arc<Bundle>, says: &str) {
    let setup = start();
    let (other, mine) = (model(1, 2), model(2, 3));
    let neighbour = FunctionKey::local("neighbour");
    setup.load(&neighbour, &toy::bundle_of(&other, fake::TARGET, b"fake")).expect("a function");
    setup.call(&neighbour, &other).expect("a result");
    let before = setup.held();
    if let Some(refusal) = refusal {
        setup.device.refuse(refusal, 0);
    }
    for _ in 0..3 {
        let error = setup.load(key, wrong).expect_err(when).to_string();
        assert!(error.contains(says), "{when}: {error}");
        assert_eq!(setup.held(), before, "{when}");
        setup.assert_unheld(wrong, when);
    }
    setup.device.accept();
    setup.call(&neighbour, &other).expect("a result");
    let right = toy::bundle_of(&mine, fake::TARGET, b"fake");
    setup.load(key, &right).expect("nothing is refused any more");
    setup.call(key, &mine).expect("a result");
    setup.handle.unload(key).expect("it is loaded");
    assert_eq!(setup.held(), before, "{when}: after a successful load under its name");
    setup.assert_unheld(&right, when);
    setup.engine.shutdown();
}

#[test]
fn a_failed_load_leaves_nothing_behind() {
    let key = FunctionKey::local("f");
    let good = || toy::bundle_of(&model(2, 3), fake::TARGET, b"fake");
    fails("damaged code", &key, None, &toy::bundle_of(&model(2, 3), fake::TARGET, b"junk"), "not for a fake device");
    fails("no code for the device", &key, None, &toy::bundle_of(&model(2, 3), "elsewhere", b"fake"), "elsewhere");
    fails("the device refuses the code", &key, Some(Refusal::Module), &good(), "not for a fake device");
    fails("the device refuses the code later", &key, Some(Refusal::LoadedModule), &good(), "not for a fake device");
    fails("the executor is gone", &key, Some(Refusal::Domain), &good(), "executor is gone");
    fails(
        "constants larger than the device",
        &key,
        None,
        &toy::bundle_of(&model(2, 60), fake::TARGET, b"fake"),
        "bytes",
    );
    fails(
        "constants over the overcommit limit",
        &key,
        None,
        &toy::bundle_of(&model(2, 32), fake::TARGET, b"fake"),
        "those of all functions",
    );
    let guests = FunctionKey { tenant: tenant(), name: "f".into() };
    fails(
        "constants over the tenant's quota",
        &guests,
        None,
        &toy::bundle_of(&model(2, 12), fake::TARGET, b"fake"),
        "quota",
    );
    fails("a tenant's executor is gone", &guests, Some(Refusal::Domain), &good(), "executor is gone");
}

/// If only the constants are refused, the function is loaded as if there had been no room for them.
/// Its invocations fail with the reason, and it leaves nothing behind when it is unloaded.
#[test]
fn refused_constants_leave_nothing_behind() {
    for refusal in [Refusal::Place, Refusal::Write] {
        for after in 0..2 {
            let setup = start();
            let (other, mine) = (model(1, 2), model(2, 4));
            let [neighbour, key] = ["neighbour", "f"].map(FunctionKey::local);
            setup.load(&neighbour, &toy::bundle_of(&other, fake::TARGET, b"fake")).expect("a function");
            setup.call(&neighbour, &other).expect("a result");
            let before = setup.held();
            setup.device.refuse(refusal, after);
            let bundle = toy::bundle_of(&mine, fake::TARGET, b"fake");
            assert!(!setup.load(&key, &bundle).expect("a function").weights_resident, "{refusal:?} {after}");
            // Complete constants stay cached.
            let whole = if refusal == Refusal::Write { after as usize } else { 0 };
            assert_eq!(
                setup.device.constants().0,
                before.constants.0 + whole,
                "{refusal:?} {after}: incomplete constants are not kept"
            );
            setup.device.refuse(refusal, 0);
            let error = setup.call(&key, &mine).expect_err("no constants").to_string();
            assert!(error.contains("the constants cannot be loaded"), "{refusal:?} {after}: {error}");
            setup.device.accept();
            setup.call(&neighbour, &other).expect("a result");
            setup.call(&key, &mine).expect("a result");
            setup.handle.unload(&key).expect("it is loaded");
            assert_eq!(setup.held(), before, "{refusal:?} {after}");
            setup.assert_unheld(&bundle, "unloaded");
            setup.engine.shutdown();
        }
    }
}

/// If the memory of a call cannot be given to its tenant in one piece, or cannot be cleared, only
/// that call fails, and it keeps no memory.
#[test]
fn refused_memory_of_a_call_leaves_nothing_behind() {
    let refusals = [(Refusal::Part, "there is no room in one piece"), (Refusal::Fill, "memory cannot be cleared")];
    for (refusal, says) in refusals {
        let setup = start();
        let (constants, key) = (model(1, 2), FunctionKey { tenant: tenant(), name: "f".into() });
        let bundle = toy::bundle_of(&constants, fake::TARGET, b"fake");
        setup.load(&key, &bundle).expect("a function");
        let memory_bytes = setup.held().memory_bytes;
        setup.device.refuse(refusal, 0);
        for _ in 0..3 {
            let error = setup.call(&key, &constants).expect_err("no memory");
            assert!(error.to_string().contains(says), "{refusal:?}: {error}");
            assert_eq!(matches!(error, InvokeError::Unavailable(_)), refusal == Refusal::Part, "{error}");
            let held = setup.held();
            assert_eq!((held.parts, held.memory_bytes), (0, memory_bytes), "{refusal:?}");
        }
        setup.device.accept();
        for _ in 0..2 {
            setup.call(&key, &constants).expect("a result");
            assert_eq!(setup.device.parts(), 1, "memory of a call is kept for the next one");
        }
        setup.handle.unload(&key).expect("it is loaded");
        let held = setup.held();
        assert_eq!((held.parts, held.memory_bytes), (0, 0), "{refusal:?}");
        setup.engine.shutdown();
    }
}

/// A session whose first step fails before it runs has no memory afterwards. It begins with the
/// next step.
#[test]
fn a_first_step_that_fails_leaves_no_memory_to_its_session() {
    for (refusal, says) in [(Refusal::Part, "unavailable"), (Refusal::Fill, "cannot be written")] {
        let setup = start();
        let key = FunctionKey { tenant: tenant(), name: "f".into() };
        setup.load(&key, &toy::session_bundle(fake::TARGET, b"fake")).expect("a function");
        let session = setup.handle.open_session(&key, Duration::from_secs(600)).expect("a session");
        let input = [1 << 31, 7, 8, 9];
        let step = || {
            let (send, answer) = channel();
            let request = toy::request_of(key.clone(), Class::BestEffort, &input);
            setup.handle.submit_step(session, request.into(), Box::new(move |result| drop(send.send(result))));
            answer.recv_timeout(Duration::from_secs(20)).expect("an answer")
        };
        // The memory of the invocation comes first. It is kept for later ones.
        setup.device.refuse(refusal, 1);
        for _ in 0..3 {
            let error = step().expect_err("no memory for the session").to_string();
            assert!(error.contains(says), "{refusal:?}: {error}");
            assert_eq!(setup.held().parts, 1, "{refusal:?}");
        }
        setup.device.accept();
        for _ in 0..2 {
            let result = step().expect("a result");
            assert_eq!(result.outputs[0].bytes, toy::expected(&input));
            assert_eq!(setup.held().parts, 2, "{refusal:?}");
        }
        setup.handle.close_session(session);
        assert_eq!(setup.held().parts, 1, "{refusal:?}");
        setup.handle.unload(&key).expect("it is loaded");
        let held = setup.held();
        assert_eq!((held.parts, held.memory_bytes), (0, 0), "{refusal:?}");
        setup.engine.shutdown();
    }
}

#[test]
fn a_device_lost_while_constants_are_loaded_keeps_nothing_of_the_function() {
    let setup = start();
    let bundle = toy::bundle_of(&model(2, 4), fake::TARGET, b"fake");
    setup.device.refuse(Refusal::Device, 1);
    let error = setup.load(&FunctionKey::local("f"), &bundle).expect_err("a lost device").to_string();
    assert!(error.contains("the device is lost"), "{error}");
    let held = setup.held();
    assert_eq!((held.memory_bytes, held.constant_bytes, held.accounts, held.functions), (0, (0, 0), 0, Vec::new()));
    setup.assert_unheld(&bundle, "lost");
    setup.engine.shutdown();
}

/// The state of a session keeps its shape, also where another shape takes as many bytes, and after
/// a step that failed.
#[test]
fn a_step_with_another_shape_of_the_state_is_refused() {
    let setup = start();
    let key = FunctionKey { tenant: tenant(), name: "f".into() };
    setup.load(&key, &toy::session_bundle(fake::TARGET, b"fake")).expect("a function");
    let session = setup.handle.open_session(&key, Duration::from_secs(600)).expect("a session");
    let step = |input: &[u32]| {
        let (send, answer) = channel();
        let request = toy::request_of(key.clone(), Class::BestEffort, input);
        setup.handle.submit_step(session, request.into(), Box::new(move |result| drop(send.send(result))));
        answer.recv_timeout(Duration::from_secs(20)).expect("an answer")
    };
    step(&[1, 2, 3, 4]).expect("a first step");
    for _ in 0..2 {
        let error = step(&[1, 2]).expect_err("another shape").to_string();
        assert!(error.contains("began with shape [4] of state `before`, but this step needs [2]"), "{error}");
    }
    step(&[5, 6, 7, 8]).expect("the session continues");
    setup.engine.shutdown();
}
