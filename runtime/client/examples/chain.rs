//! Deploys a bundle, calls it on random numbers, and chains it with itself.
//!
//! ```text
//! atoll serve --model-repository models/ &
//! cargo run -p atoll-client --example chain -- gemm.kg x y
//! ```
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use atoll_client::{Call, Client, ClientError, Deploy, Tensor, default_socket};
use std::path::Path;

fn main() -> Result<(), ClientError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [bundle, input, output] = arguments.as_slice() else {
        println!("usage: chain BUNDLE INPUT OUTPUT");
        return Ok(());
    };
    let mut client = Client::connect(&default_socket())?;
    let function = client.deploy(Path::new(bundle), &Deploy::default())?.name;
    println!("deployed `{function}` for {}", client.tenant());

    // Every input is a vector of ones. Inputs other than INPUT are stored in the daemon, so that
    // they are sent once.
    let description = client.describe(&function)?;
    let mut call = Call::of(&function);
    let mut chained = Call::of(&function);
    let mut kept = Vec::new();
    for metadata in &description.inputs {
        let shape: Vec<i64> = metadata.shape.iter().map(|&size| size.max(16)).collect();
        let ones = Tensor::f32(&shape, &vec![1.0; shape.iter().product::<i64>() as usize]);
        let digest = client.put(&ones, None)?;
        call = call.input(&metadata.name, digest);
        chained = chained.input(&metadata.name, digest);
        kept.push((metadata.name.clone(), digest));
    }
    println!("once: {:?}", client.invoke(call)?.tensor(output)?.shape);

    chained = chained.then(&function).take(input, output);
    for (name, digest) in kept.into_iter().filter(|(name, _)| name != input) {
        chained = chained.input(name, digest);
    }
    println!(
        "twice, and the first result never left the device: {:?}",
        client.invoke(chained.send(output))?.tensor(output)?.shape
    );
    client.remove_function(&function)
}
