//! Outputs of batches that stay on the device, and batches of requests that take them.

use super::*;

/// Submits a call whose output stays on the device.
fn submit(setup: &Setup, input: StageInput, retain: Vec<Retain>) -> Receiver<Answer> {
    let stage = StageRequest { function: FunctionKey::local("f"), inputs: vec![input], outputs: Some(vec![0]), retain };
    let request = ChainRequest {
        stages: vec![stage],
        class: Some(Class::BestEffort),
        priority: 0,
        instance: None,
        deadline: None,
        times_launches: false,
    };
    let (send, answers) = channel();
    setup.handle.submit_chain(request, Box::new(move |answer| drop(send.send(answer))));
    answers
}

fn result(answers: &Receiver<Answer>) -> InvocationResult {
    answers.recv_timeout(LONG).expect("an answer").expect("a result")
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect()
}

#[test]
fn rows_of_a_batch_are_handed_over_on_the_device() {
    let setup = setup(up_to(128));
    let inputs: [Vec<u32>; 3] = [8, 16, 24].map(|n| (0..n).map(|i| i * 7 + n).collect());
    let first = setup.hold();
    let stays = vec![Retain { output: 0, with_bytes: false }];
    let tensor = |input: &[u32]| StageInput::Tensor(toy::request("f", Class::BestEffort, input).inputs.remove(0));
    let made: Vec<_> = inputs.iter().map(|input| submit(&setup, tensor(input), stays.clone())).collect();
    setup.function();
    setup.device.resume();
    first.result();
    let made: Vec<InvocationResult> = made.iter().map(result).collect();
    assert!(made.iter().all(|result| result.batch == 3 && result.outputs[0].bytes.is_empty()), "{made:?}");

    let second = setup.hold();
    let take = |result: &InvocationResult| submit(&setup, StageInput::Retained(result.retained[0].1.clone()), vec![]);
    let taken: Vec<_> = made.iter().map(take).collect();
    setup.function();
    setup.device.resume();
    second.result();
    for (input, answers) in inputs.iter().zip(&taken) {
        let result = result(answers);
        assert_eq!((result.batch, result.handed_over_bytes), (3, 4 * input.len() as u64));
        assert_eq!(result.outputs[0].bytes, toy::expected(&words(&toy::expected(input))));
    }
    drop(made);
    setup.unload();
}
