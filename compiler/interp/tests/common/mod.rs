//! Helpers that run small kernels.

#![allow(dead_code, reason = "each test binary uses some of the helpers")]

use atoll_interp::{Access, Fault, Launch, Memory, Options, Program, Report, RunError, run};

/// The lines before every kernel; line numbers of faults include them.
pub(crate) const HEADER: &str = ".version 8.3\n.target sm_90\n.address_size 64\n";

pub(crate) fn program(text: &str) -> Program {
    let module = atoll_ptx::parse(&format!("{HEADER}{text}")).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let name = module.kernels().next().expect("a kernel").name.clone();
    Program::new(&module, &name).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// Runs a kernel with one parameter, the address of `words` zeroed words. Returns the words.
pub(crate) fn try_words(
    text: &str,
    grid: u32,
    block: u32,
    words: usize,
    options: &Options,
) -> Result<(Vec<u32>, Report), Box<Fault>> {
    let program = program(text);
    let mut memory = Memory::new();
    let out = memory.add("out", vec![0; words * 4], Access::ReadWrite);
    let launch =
        Launch { grid: [grid, 1, 1], block: [block, 1, 1], shared_bytes: 0, params: out.to_le_bytes().to_vec() };
    match run(&program, &launch, &mut memory, options) {
        Ok(report) => {
            Ok((memory.bytes(out).chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect(), report))
        }
        Err(RunError::Fault(fault)) => Err(fault),
        Err(other) => panic!("{other}"),
    }
}

/// Like [`try_words`], for several seeds, which must give the same result.
pub(crate) fn words(text: &str, grid: u32, block: u32, words: usize) -> Vec<u32> {
    let run = |seed| {
        try_words(text, grid, block, words, &Options { seed, ..Options::default() })
            .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"))
            .0
    };
    let plain = run(0);
    for seed in 1..6 {
        assert_eq!(run(seed), plain, "seed {seed}\n{text}");
    }
    plain
}
