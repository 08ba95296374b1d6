//! Divergent control flow that is nested too deeply is rejected and does not overflow the stack.

use atoll_target_host::{CpuLevel, HostError, KernelShape, LowerError, Options, compile};
use std::fmt::Write as _;

/// Nested loops, each left by every lane in an iteration of its own.
fn nested(loops: u32) -> Result<(), HostError> {
    let mut code = String::new();
    for n in 0..loops {
        let _ = writeln!(code, "L{n}: ld.global.u32 %r1, [%d1+{n}];");
    }
    for n in (0..loops).rev() {
        let _ = writeln!(code, "ld.global.u32 %r1, [%d1+{n}]; setp.lt.u32 %p, %r1, 9; @%p bra L{n};");
    }
    let text = format!(
        ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 in) {{\n.reg .pred %p; \
         .reg .b32 %r<2>; .reg .b64 %d<2>;\n\
         ld.param.u64 %d0, [in]; mov.u32 %r0, %tid.x; mul.wide.u32 %d1, %r0, 4; \
         add.u64 %d1, %d1, %d0;\n{code}st.global.u32 [%d1], %r1;\nret;\n}}"
    );
    let module = atoll_ptx::parse(&text).unwrap();
    let shape = KernelShape { name: "k".into(), block: [32, 1, 1] };
    compile(&module, &[shape], CpuLevel::V3, &Options::default()).map(drop)
}

#[test]
fn deeply_nested_divergent_loops_are_rejected() {
    nested(8).unwrap();
    let Err(HostError::Lower(LowerError::Unsupported { line, what, .. })) = nested(300) else {
        panic!("300 loops in each other")
    };
    assert_eq!(what, "more than 256 nested loops that lanes leave in different iterations");
    assert!(line > 0);
}

#[test]
fn thirty_thousand_loops_in_each_other_are_refused_with_the_reason() {
    let Err(HostError::Lower(error @ LowerError::Unsupported { .. })) = nested(30_000) else {
        panic!("30,000 loops in each other")
    };
    assert!(error.to_string().contains("does not support control flow whose analysis takes more than"), "{error}");
}
