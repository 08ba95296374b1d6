//! Memory that compilations leave behind. The test has its own binary, because it measures the
//! whole process.

use atoll_target_host::{CpuLevel, KernelShape, Options, compile};
use std::fmt::Write;

/// Number of compilations before and during the measurement.
const WARM_UP: usize = 5;
const TIMES: usize = 40;

/// A kernel of many instructions, so that its IR is large.
fn text() -> String {
    let mut text = String::from(
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry long(.param .u64 out)\n{\n.reg .b32 \
         %r<2>;\n.reg .b64 %d<2>;\n\
         ld.param.u64 %d0, [out];\nmov.u32 %r0, %tid.x;\n",
    );
    for step in 0..300 {
        writeln!(text, "mad.lo.u32 %r0, %r0, {}, %r0;", 2 * step + 3).expect("a string takes it");
    }
    text + "mul.wide.u32 %d1, %r0, 4;\nadd.u64 %d0, %d0, %d1;\nst.global.u32 [%d0], %r0;\nret;\n}\n"
}

/// Resident bytes of this process.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux says");
    let pages: u64 = text.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).expect("a number of pages");
    pages * 4096
}

#[test]
fn compiling_again_and_again_takes_no_more_memory() {
    let module = atoll_ptx::parse(&text()).expect("PTX");
    let kernels = [KernelShape { name: "long".into(), block: [256, 1, 1] }];
    let compiled = |options: &Options| compile(&module, &kernels, CpuLevel::V3, options).expect("it compiles");
    let ir_bytes = compiled(&Options { keep_ir: true, threads: 1, ..Options::default() }).kernels[0]
        .ir
        .as_ref()
        .expect("it was asked for")
        .len() as u64;
    let plain = Options { threads: 1, ..Options::default() };
    (0..WARM_UP).for_each(|_| drop(compiled(&plain)));
    let before = resident_bytes();
    (0..TIMES).for_each(|_| drop(compiled(&plain)));
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < ir_bytes * TIMES as u64 / 2, "{grown} bytes more after {TIMES} times {ir_bytes} bytes of IR");
}
