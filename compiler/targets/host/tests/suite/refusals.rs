//! Unsupported code is rejected by both the host target and the interpreter, with its line and the
//! cause.

use crate::common::{HEADER, try_compile};
use atoll_interp::Program;
use atoll_target_host::{CpuLevel, HostError};

/// Declarations of the module, code of the kernel, and text that both errors must contain. The code
/// is on the last line.
const REFUSED: &[(&str, &str, &str)] = &[
    // Types for which PTX has no approximation.
    ("", "sqrt.approx.f64 %g1, %g0;", "no approximation"),
    ("", "sqrt.approx.ftz.f64 %g1, %g0;", "no approximation"),
    ("", "rcp.approx.f64 %g1, %g0;", "no approximation"),
    ("", "div.approx.f64 %g1, %g0, %g0;", "no approximation"),
    ("", "div.full.f64 %g1, %g0, %g0;", "no approximation"),
    ("", "sin.approx.f64 %g1, %g0;", "no approximation"),
    ("", "ex2.approx.f64 %g1, %g0;", "no approximation"),
    ("", "sqrt.approx.f16 %h1, %h0;", "no approximation"),
    // Textures and surfaces, by the first construct that uses them.
    (".global .texref t;", "tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [t, {%f0, %f1}];", "textures"),
    (".tex .u64 t;", "tex.1d.v4.f32.s32 {%f0, %f1, %f2, %f3}, [t, {%r0}];", "textures"),
    (".global .texref t;", "txq.width.b32 %r0, [t];", "textures"),
    (".global .surfref s;", "suld.b.1d.b32.trap {%r0}, [s, {%r1}];", "surfaces"),
    (".global .texref t;", "mov.u64 %d0, t;", "texture"),
    (".global .samplerref t = {filter_mode = nearest};", "mov.u64 %d0, t;", "texture"),
    // Parts of registers, vectors and negation in operands that do not allow them.
    ("", "add.u32 %r0, %r1.b0, %r2;", "%r1.b0|part of a register"),
    ("", "add.f32 %v, %v, %v;", "vector"),
    ("", "vadd.u32.u32.u32 %r0, %r1.x, %r2;", "selects .x"),
    ("", "vadd.u32.u32.u32.add %r0.b0, %r1, %r2, %r3;", "merges"),
    ("", "vshr.u32.u32.u32 %r0, %r1, %r2;", ".clamp or .wrap"),
    ("", "vadd2.u32.u32.u32.sat.add %r0, %r1, %r2, %r3;", "it has both .sat and .add"),
    ("", "vadd4.u32.u32.u32 %r0, %r1.h10, %r2, %r3;", "selects"),
    ("", "vmad.s32.s32.s32.po %r0, -%r1, %r2, %r3;", "negates"),
    ("", "mov.u32 %r0, %tid;", "vector"),
];

fn kernel(declarations: &str, code: &str) -> String {
    format!(
        "{declarations}\n.visible .entry k(.param .u64 p) {{ .reg .b32 %r<4>; .reg .b64 %d<4>; .reg .f32 %f<4>; \
         .reg .f64 %g<4>; .reg .b16 %h<4>; .reg .v4 .f32 %v;\n{code} ret; }}\n"
    )
}

/// The errors of the host target and of the interpreter.
fn refusals(module: &str) -> [String; 2] {
    let text = format!("{HEADER}{module}");
    let module_of = || atoll_ptx::parse(&text).unwrap_or_else(|e| panic!("{text}\n{e}"));
    let host = match try_compile(module, "k", [32, 1, 1], CpuLevel::V3).err() {
        Some(error @ HostError::Lower(_)) => error.to_string(),
        other => panic!("{text}\nthe host target says {other:?}"),
    };
    let Err(interp) = Program::new(&module_of(), "k") else { panic!("{text}\nthe interpreter takes it") };
    [host, interp.to_string()]
}

#[test]
fn errors_name_line_and_cause() {
    for (declarations, code, why) in REFUSED {
        for said in refusals(&kernel(declarations, code)) {
            assert!(said.contains("line 6"), "{code}: {said}");
            assert!(why.split('|').any(|cause| said.contains(cause)), "{code}: {said}");
        }
    }
}

#[test]
fn addresses_of_32_bits_are_refused() {
    let text = ".version 7.0\n.target sm_80\n.address_size 32\n.visible .entry k() { ret; }\n";
    let module = atoll_ptx::parse(text).unwrap();
    let shape = atoll_target_host::KernelShape { name: "k".into(), block: [32, 1, 1] };
    let host = atoll_target_host::compile(&module, &[shape], CpuLevel::V3, &atoll_target_host::Options::default())
        .unwrap_err()
        .to_string();
    let interp = Program::new(&module, "k").unwrap_err().to_string();
    for said in [host, interp] {
        assert!(said.contains("line 3") && said.contains("address_size 32") && said.contains("ptxas"), "{said}");
    }
}
