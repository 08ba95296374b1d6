//! Compiles modules with the target; uses the real assembler if it is installed.

#![expect(clippy::print_stderr, reason = "a skipped check must be seen")]

use atoll_kgraph::KernelFacts;
use atoll_target_nvidia::{
    Architecture, NvidiaError, Ptxas, assemble_with_limits, compile, declared_version, find_ptxas, lowest_version,
};

fn ptxas() -> Option<Ptxas> {
    let found = find_ptxas();
    if found.is_none() {
        eprintln!("SKIPPED: no ptxas found; set ATOLL_PTXAS to assemble");
    }
    found
}

fn module(version: &str, target: &str, body: &str) -> String {
    format!(
        ".version {version}\n.target {target}\n.address_size 64\n.visible .entry k(.param .u64 a)\n{{\n\
         .reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .f32 %f<8>;\n\
         ld.param.u64 %rd1, [a];\n{body}\nret;\n}}\n"
    )
}

fn facts(name: &str) -> KernelFacts {
    KernelFacts {
        name: name.to_owned(),
        block: [32, 1, 1],
        params_bytes: 8,
        preempt_offset: None,
        shared_bytes: 0,
        scratch_bytes: 0,
        ..KernelFacts::default()
    }
}

/// Bodies, with the lowest correct version of each.
const VERSIONS: [(&str, &str, &str); 9] = [
    ("sm_75", "6.3", "ld.global.f32 %f1, [%rd1]; fma.rn.ftz.f32 %f1, %f1, %f1, %f1; st.global.f32 [%rd1], %f1;"),
    ("sm_70", "6.0", "bar.sync 0; atom.acq_rel.cta.global.add.s32 %r1, [%rd1], 1; fence.acq_rel.gpu;"),
    ("sm_75", "6.3", "ld.relaxed.sys.global.u32 %r1, [%rd1]; setp.gt.s32 %p1, %r1, 0; bar.red.or.pred %p1, 0, %p1;"),
    ("sm_75", "6.5", "mov.u32 %r4, 0; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r4];"),
    ("sm_75", "7.0", "tanh.approx.f32 %f1, %f2; st.global.f32 [%rd1], %f1;"),
    ("sm_80", "7.0", "max.NaN.f32 %f1, %f2, %f3; st.global.f32 [%rd1], %f1;"),
    ("sm_80", "7.0", "cp.async.commit_group; cp.async.wait_group 0;"),
    (
        "sm_75",
        "6.3",
        "shfl.sync.bfly.b32 %r1|%p1, %r2, 1, 31, -1; ex2.approx.ftz.f32 %f1, %f2; vote.sync.any.pred %p2, %p1, -1;",
    ),
    ("sm_89", "7.8", "cvt.rn.f16.f32 %h1, %f1; cvt.f32.f16 %f2, %h1; st.global.f32 [%rd1], %f2;"),
];

#[test]
fn lowest_versions_assemble_and_lower_ones_do_not() {
    let ptxas = ptxas();
    for (target, expected, body) in VERSIONS {
        let declared = module("8.5", target, body);
        let parsed = atoll_ptx::parse(&declared).expect("valid PTX");
        let version = lowest_version(&parsed).unwrap_or_else(|| panic!("not in the tables: {body}"));
        assert_eq!(version.to_string(), expected, "{body}");
        let Some(ptxas) = &ptxas else { continue };
        ptxas.assemble(&module(expected, target, body), target).unwrap_or_else(|error| panic!("{error}\n{body}"));
        let lower = format!("{}.{}", version.major, version.minor.wrapping_sub(1));
        if version.minor > 0 {
            assert!(ptxas.assemble(&module(&lower, target, body), target).is_err(), "{lower} is enough for {body}");
        }
    }
}

#[test]
fn unknown_instructions_keep_the_declared_version() {
    for body in ["mov.u32 %r1, %clusterid.x;", "frobnicate.b32 %r1, %r2;", "add.sideways.s32 %r1, %r1, %r2;"] {
        let parsed = atoll_ptx::parse(&module("8.5", "sm_75", body)).expect("valid PTX");
        assert_eq!(lowest_version(&parsed), None, "{body}");
        let text = compile(&parsed, None, &mut [], Architecture::TURING, None)
            .map(|image| image.ptx)
            .expect("nothing to object to");
        assert!(text.starts_with(".version 8.5"), "{text}");
    }
}

#[test]
fn compile_lowers_the_version_and_reports_registers() {
    let body = "ld.global.f32 %f1, [%rd1]; add.f32 %f1, %f1, %f1; st.global.f32 [%rd1], %f1;";
    let parsed = atoll_ptx::parse(&module("8.7", "sm_75", body)).expect("valid PTX");
    let ptxas = ptxas();
    let mut kernels = [facts("k")];
    let image = compile(&parsed, None, &mut kernels, Architecture::TURING, ptxas.as_ref()).expect("valid PTX");
    assert_eq!(image.cubin.is_some(), ptxas.is_some());
    let text = image.ptx;
    let back = atoll_ptx::parse(&text).expect("our own text");
    assert_eq!(declared_version(&back).map(|v| v.to_string()).as_deref(), Some("6.3"));
    assert!(kernels[0].registers.is_some_and(|r| (2..64).contains(&r)));
    assert_eq!(kernels[0].registers_estimated, ptxas.is_none());
    assert_eq!(kernels[0].spill_bytes, ptxas.as_ref().map(|_| 0));
}

#[test]
fn a_newer_target_and_a_missing_kernel_are_refused() {
    let newer = atoll_ptx::parse(&module("7.8", "sm_90", "")).expect("valid PTX");
    assert!(matches!(
        compile(&newer, None, &mut [], Architecture::TURING, None),
        Err(NvidiaError::TooNew { declared, .. }) if declared == "sm_90"
    ));
    let Some(ptxas) = ptxas() else { return };
    let parsed = atoll_ptx::parse(&module("6.3", "sm_75", "")).expect("valid PTX");
    assert!(matches!(
        compile(&parsed, None, &mut [facts("other")], Architecture::TURING, Some(&ptxas)),
        Err(NvidiaError::NoKernel(name)) if name == "other"
    ));
    let broken = atoll_ptx::parse(&module("6.3", "sm_75", "add.f32 %r1, %rd1, %f1;")).expect("reads well");
    assert!(matches!(
        compile(&broken, None, &mut [], Architecture::TURING, Some(&ptxas)),
        Err(NvidiaError::Assemble(_))
    ));
}

/// Sums `count` products with a number that is loaded last, so that all `count` values must be
/// kept.
fn summing(count: usize) -> String {
    let load = |to: &str, i: usize| format!("ld.volatile.global.f32 {to}, [%rd1+{}];\n", 4 * i);
    let loads: String = (0..count).map(|i| load(&format!("%v{i}"), i)).collect();
    let sums: String = (0..count).map(|i| format!("fma.rn.f32 %f2, %v{i}, %f1, %f2;\n")).collect();
    let factor = load("%f1", count);
    module(
        "6.3",
        "sm_75",
        &format!(".reg .f32 %v<{count}>;\nmov.f32 %f2, 0f00000000;\n{loads}{factor}{sums}st.global.f32 [%rd1], %f2;"),
    )
}

#[test]
fn a_kernel_that_would_spill_gets_no_register_limit() {
    let Some(ptxas) = ptxas() else { return };
    let plain = ptxas.assemble(&summing(32), "sm_75").unwrap().report;
    for (count, at_least) in [(32, 32), (120, 120)] {
        let module = atoll_ptx::parse(&summing(count)).unwrap();
        let limited = assemble_with_limits(&ptxas, &module, Architecture::TURING, &plain).unwrap();
        let resources = limited.assembled.report.kernels["k"];
        assert!(
            limited.limits.is_empty() && resources.spill_bytes() == 0 && resources.registers > at_least,
            "{count}: {resources:?}"
        );
    }
}
