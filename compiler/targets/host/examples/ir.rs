//! Prints the LLVM IR of one kernel, as generated or as optimised.
//!
//! ```text
//! cargo run -p atoll-target-host --example ir -- FILE.ptx ENTRY X,Y,Z [optimised]
//! ```

#![allow(clippy::print_stdout, reason = "an example prints")]

use atoll_target_host::{CpuLevel, KernelShape, Options, compile};
use std::error::Error;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, entry, block, rest @ ..] = arguments.as_slice() else {
        return Err("FILE.ptx ENTRY X,Y,Z [optimised]".into());
    };
    let module = atoll_ptx::parse(&std::fs::read_to_string(file)?)?;
    let sizes: Vec<u32> = block.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let shape =
        KernelShape { name: entry.as_str().into(), block: [0, 1, 2].map(|i| sizes.get(i).copied().unwrap_or(1)) };
    let level = CpuLevel::of_this_machine().ok_or("this CPU is below x86-64-v3")?;
    let start = Instant::now();
    let object = compile(&module, &[shape], level, &Options { keep_ir: true, ..Options::default() })?;
    let kernel = &object.kernels[0];
    let ir = if rest.is_empty() { &kernel.ir } else { &kernel.optimised_ir };
    println!("{}", ir.as_deref().unwrap_or_default());
    println!("; compiled in {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    Ok(())
}
