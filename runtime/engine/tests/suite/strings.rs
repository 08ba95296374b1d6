//! Strings at the border of the engine.

use crate::fake;
use crate::fake::FakeDevice;
use crate::toy;
use atoll_engine::*;
use atoll_kgraph::DType;
use std::sync::mpsc::channel;
use std::time::Duration;

fn engine() -> Engine {
    let engine = Engine::start(FakeDevice::new(0).0, EngineConfig::default()).expect("an engine");
    let options = FunctionOptions {
        key: FunctionKey::local("f"),
        class: Class::BestEffort,
        queue_capacity: None,
        lane: Default::default(),
        batching: None,
    };
    engine.handle().load(toy::strings_bundle(fake::TARGET, b"fake"), options).expect("a function");
    engine
}

fn answer(engine: &Engine, inputs: Vec<InputTensor>) -> Result<InvocationResult, InvokeError> {
    let request = InvocationRequest { inputs, ..toy::request("f", Class::BestEffort, &[]) };
    let (send, answers) = channel();
    engine.handle().submit(request, Box::new(move |answer| send.send(answer).expect("the test waits")));
    answers.recv_timeout(Duration::from_secs(20)).expect("an answer")
}

/// So many strings.
fn texts(count: usize) -> InputTensor {
    InputTensor { dtype: None, shape: vec![count as i64], bytes: [1, 0, 0, 0, b'a'].repeat(count) }
}

#[test]
fn a_code_that_no_string_has_is_a_failure_of_the_device() {
    let engine = engine();
    // The engine's thread decodes the first answer, and another thread the second one.
    for count in [2, 8192] {
        let failure = InvokeError::Device("an output has a code that no string of the invocation has".into());
        assert_eq!(answer(&engine, vec![texts(count)]).err(), Some(failure));
    }
    engine.shutdown();
}

#[test]
fn clients_do_not_give_inputs_that_are_computed() {
    let engine = engine();
    let matches = InputTensor { dtype: Some(DType::Bool), shape: vec![2], bytes: vec![1, 1] };
    for (inputs, given) in [(vec![texts(2), matches], 2), (vec![], 0)] {
        let expected = format!("function `f`: {given} inputs are given; the model takes 1: x");
        assert_eq!(answer(&engine, inputs).err(), Some(InvokeError::BadInput(expected)));
    }
    engine.shutdown();
}
