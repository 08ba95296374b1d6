//! Calls a function through shared memory.
//!
//! ```text
//! atoll serve --model-repository models/ &
//! cargo run -p atoll-client --example ring -- gemm.kg
//! ```
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use atoll_client::{Client, ClientError, Deploy, RingCall, RingOptions, Tensor, default_socket};
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), ClientError> {
    let Some(bundle) = std::env::args().nth(1) else {
        println!("usage: ring BUNDLE");
        return Ok(());
    };
    let mut client = Client::connect(&default_socket())?;
    let function = client.deploy(Path::new(&bundle), &Deploy::default())?.name;

    // Every input is a tensor of ones. Sizes below 16 and unknown sizes become 16.
    let inputs = client.describe(&function)?.inputs;
    let ones = |shape: &[i64]| {
        let shape: Vec<i64> = shape.iter().map(|&size| size.max(16)).collect();
        Tensor::f32(&shape, &vec![1.0; shape.iter().product::<i64>() as usize])
    };
    let tensors: Vec<(String, Tensor)> = inputs.iter().map(|input| (input.name.clone(), ones(&input.shape))).collect();
    let mut call = RingCall::of(&function);
    for (name, tensor) in &tensors {
        call = call.input(name, tensor);
    }

    // A ring needs a connection of its own.
    let mut ring = Client::connect(&default_socket())?.open_ring(&RingOptions::default())?;
    let answer = ring.infer(&call)?;
    for (name, tensor) in &answer.outputs {
        println!("{name}: {:?}", tensor.shape);
    }

    // Two requests at the same time.
    let (first, second) = (ring.send(&call)?, ring.send(&call)?);
    println!("equal: {}", ring.receive(first)? == ring.receive(second)?);

    let begun = Instant::now();
    ring.infer(&call)?;
    println!("answered after {} µs", begun.elapsed().as_micros());
    client.remove_function(&function)
}
