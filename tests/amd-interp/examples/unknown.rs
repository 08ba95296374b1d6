//! Lists the instructions of code objects that the interpreter refuses, without running them:
//! `cargo run -p atoll-amd-interp --example unknown -- FILE…`

#![expect(clippy::print_stdout, reason = "a program that prints a list")]

use std::collections::BTreeMap;
use std::process::ExitCode;

use atoll_amd_interp::Program;

fn main() -> ExitCode {
    let mut refused: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let mut unreadable = false;
    for file in std::env::args().skip(1) {
        let program = std::fs::read(&file).map_err(|e| e.to_string());
        let program = match program.and_then(|elf| Program::load(&elf).map_err(|e| e.to_string())) {
            Ok(program) => program,
            Err(error) => {
                println!("{file}: {error}");
                unreadable = true;
                continue;
            }
        };
        let wave = program.kernels().next().map_or(64, |k| k.descriptor.wave_size);
        for (address, text, kind) in program.unknown_instructions(wave) {
            let mnemonic = text.split_whitespace().next().unwrap_or_default();
            let entry = refused.entry(format!("{mnemonic} ({})", program.target.name)).or_default();
            entry.0 += 1;
            entry.1 = format!("{file} {address:#x} `{text}`: {kind}");
        }
    }
    for (name, (count, last)) in &refused {
        println!("{count:6} {name}: {last}");
    }
    if refused.is_empty() && !unreadable { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
