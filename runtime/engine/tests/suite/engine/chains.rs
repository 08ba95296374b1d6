//! Chains of functions.

use super::*;

/// `f(f(…f(x)))`, where only the last result is returned.
pub(super) fn chain(length: usize, class: Class, input: &[u32]) -> ChainRequest {
    let stages = (0..length).map(|stage| {
        let mut request = request("f", class, input);
        let inputs = match stage {
            0 => vec![StageInput::Tensor(request.inputs.remove(0))],
            _ => vec![StageInput::Output { stage: stage - 1, output: 0 }],
        };
        StageRequest {
            function: request.function,
            inputs,
            outputs: Some(if stage + 1 == length { vec![0] } else { vec![] }),
            retain: vec![],
        }
    });
    ChainRequest {
        stages: stages.collect(),
        class: Some(class),
        priority: 0,
        instance: None,
        deadline: None,
        times_launches: false,
    }
}

pub(super) fn submit_chain(handle: &EngineHandle, request: ChainRequest) -> Receiver<Answer> {
    let (send, answers) = channel();
    handle.submit_chain(request, Box::new(move |answer| send.send(answer).expect("the test waits")));
    answers
}

pub(super) fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect()
}

#[test]
fn tensors_between_stages_stay_on_the_device() {
    for seed in 0..4 {
        let setup = setup(EngineConfig { evict_at_random: (seed > 0).then_some(seed), ..EngineConfig::default() });
        for length in 1..5 {
            let input = input(100, length as u32);
            let (read, written) = setup.device.traffic();
            let result = submit_chain(&setup.handle, chain(length, Class::BestEffort, &input))
                .recv()
                .expect("an answer")
                .expect("a result");
            let expected = (0..length).fold(input, |x, _| words(&toy::expected(&x)));
            assert_eq!(words(&result.outputs[0].bytes), expected, "seed {seed}, {length} stages");
            let after = setup.device.traffic();
            assert_eq!((result.outputs.len(), after.0 - read), (1, 400), "only the last result is read");
            // With evictions the host also clears evicted words.
            assert!(seed > 0 || after.1 - written == 400, "only the input is written: {} bytes", after.1 - written);
        }
        let function = setup.handle.statistics().functions.remove(0);
        assert_eq!((function.success, function.in_queue, function.running), (1 + 2 + 3 + 4, 0, 0));
        setup.handle.unload(&FunctionKey::local("f")).expect("unloaded");
        assert_eq!(setup.handle.statistics().device.memory_used_bytes, 0);
    }
}

#[test]
fn a_chain_takes_all_its_memory_or_none() {
    let limit = 256 + 4 * toy::invocation_memory(200);
    let setup = setup(EngineConfig { memory_limit_bytes: Some(limit), ..EngineConfig::default() });
    let input = input(200, 1);
    let answers: Vec<_> =
        (0..8).map(|i| submit_chain(&setup.handle, chain(2 + i % 3, Class::BestEffort, &input))).collect();
    for answer in answers {
        answer.recv_timeout(Duration::from_secs(20)).expect("chains do not block each other").expect("a result");
    }
    let refused = submit_chain(&setup.handle, chain(5, Class::RealTime, &input))
        .recv()
        .expect("an answer")
        .expect_err("too much");
    assert!(
        matches!(refused, InvokeError::OutOfMemory { wanted, .. } if wanted == 256 + 5 * toy::invocation_memory(200)),
        "{refused}"
    );
}

#[test]
fn invalid_chains_are_refused() {
    let setup = setup(EngineConfig::default());
    let refusal = |change: fn(&mut ChainRequest)| {
        let mut request = chain(2, Class::BestEffort, &input(10, 0));
        change(&mut request);
        submit_chain(&setup.handle, request).recv().expect("an answer").expect_err("a refusal").to_string()
    };
    for (says, found) in [
        ("a chain has to call 1 to 64 functions, but this one calls 0", refusal(|c| c.stages.clear())),
        (
            "a chain has to call 1 to 64 functions, but this one calls 65",
            refusal(|c| c.stages = vec![c.stages[0].clone(); 65]),
        ),
        // So 64 functions are not too many.
        (
            "no function of this name",
            refusal(|c| {
                c.stages = vec![c.stages[0].clone(); 64];
                c.stages[63].function.name = "g".into();
            }),
        ),
        (
            "input 0 comes from stage 2, which is not before it",
            refusal(|c| c.stages[1].inputs = vec![StageInput::Output { stage: 2, output: 0 }]),
        ),
        (
            "input 0 comes from output 1 of stage 0",
            refusal(|c| c.stages[1].inputs = vec![StageInput::Output { stage: 0, output: 1 }]),
        ),
        ("has no output 1", refusal(|c| c.stages[1].outputs = Some(vec![0, 1]))),
        (
            "input 0 comes from stage 1, which is not before it",
            refusal(|c| c.stages[1].inputs = vec![StageInput::Output { stage: 1, output: 0 }]),
        ),
        (
            "input 0 comes from output 3 of stage 0",
            refusal(|c| c.stages[1].inputs = vec![StageInput::Output { stage: 0, output: 3 }]),
        ),
        ("has no output 7", refusal(|c| c.stages[1].outputs = Some(vec![7]))),
        ("0 inputs are given", refusal(|c| c.stages[1].inputs.clear())),
        ("no function of this name", refusal(|c| c.stages[1].function.name = "g".into())),
    ] {
        assert!(found.contains(says), "{says}: {found}");
    }
    let function = setup.handle.statistics().functions.remove(0);
    assert_eq!((function.in_queue, function.running), (0, 0), "a refusal releases its queue slots");
}
