//! Compiles kernels of the corpus for AMD GPUs.

mod common;

use atoll_target_amd::{AmdError, Architecture, Options, compile, llvm_ir};
use std::fmt::Write as _;

const VECTOR_ADD: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
    .reg .pred %p;
    .reg .b32 %r<6>;
    .reg .b64 %rd<8>;
    .reg .f32 %f<4>;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u64 %rd3, [c];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.s32 %p, %r5, %r1;
    @%p bra DONE;
    mul.wide.s32 %rd4, %r5, 4;
    add.s64 %rd5, %rd1, %rd4;
    add.s64 %rd6, %rd2, %rd4;
    add.s64 %rd7, %rd3, %rd4;
    ld.global.f32 %f1, [%rd5];
    ld.global.f32 %f2, [%rd6];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%rd7], %f3;
DONE:
    ret;
}
";

fn vector_add(architecture: Architecture) -> atoll_target_amd::CodeObject {
    let module = atoll_ptx::parse(VECTOR_ADD).unwrap();
    let shape = atoll_target_amd::KernelShape { name: "add".into(), block: [256, 1, 1] };
    compile(&module, &[shape], architecture, &Options::default()).unwrap()
}

#[test]
fn a_vector_addition_links_for_every_architecture() {
    for architecture in Architecture::ALL {
        let code = vector_add(architecture);
        let [facts] = &code.kernels[..] else { panic!("{:?}", code.kernels) };
        assert_eq!((facts.params_bytes, facts.kernarg_bytes), (28, 80), "{architecture}");
        assert_eq!(facts.wave_lanes, architecture.wave_lanes(), "{architecture}");
        assert_eq!((facts.vgpr_spills, facts.sgpr_spills, facts.scratch_bytes), (0, 0, 0), "{architecture}");
        let symbols = common::llvm("llvm-readobj", &["--dyn-syms"], &code.elf);
        assert!(symbols.contains("Name: add ") && symbols.contains("Name: add.kd "), "{symbols}");
    }
}

/// The loaders of ROCm 5.0 and 5.1 know no version after 4, and know four of the architectures.
#[test]
fn code_has_the_oldest_version_that_its_loaders_know() {
    for architecture in Architecture::ALL {
        let code = vector_add(architecture);
        let is_old = ["gfx906", "gfx908", "gfx90a", "gfx1030"].contains(&architecture.name());
        let version = if is_old { 4 } else { 5 };
        assert_eq!(architecture.code_object_version(), version, "{architecture}");
        // `EI_ABIVERSION`, and the version of the metadata.
        assert_eq!(u32::from(code.elf[8]), version - 2, "{architecture}");
        let notes = common::llvm("llvm-readobj", &["--notes"], &code.elf);
        let metadata: Vec<&str> =
            notes.split("amdhsa.version:").nth(1).expect("a version").split_whitespace().collect();
        assert_eq!(metadata[..4], ["-", "1", "-", if is_old { "1" } else { "2" }], "{architecture}");
    }
}

#[test]
fn more_static_shared_memory_than_a_block_can_have_is_refused() {
    let with = |bytes: u32| {
        let text = format!(
            ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{{\n\
             \t.shared .align 4 .b8 tile[{bytes}];\n\t.reg .b32 %r;\n\tmov.u32 %r, 1;\n\
             \tst.shared.u32 [tile+{}], %r;\n\tret;\n}}\n",
            bytes - 4
        );
        let shape = atoll_target_amd::KernelShape { name: "k".into(), block: [64, 1, 1] };
        let module = atoll_ptx::parse(&text).unwrap();
        compile(&module, &[shape], Architecture::Gfx90a, &Options::default())
    };
    assert_eq!(with(65536).expect("the largest").kernels[0].shared_static_bytes, 65536);
    let error = with(65552).expect_err("too much");
    assert!(matches!(error, AmdError::SharedMemory { bytes: 65552, limit: 65536, .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("`k` has 65552 bytes of static shared memory") && text.contains("use smaller tiles"),
        "{text}"
    );
}

/// The kernels of the corpus that the target refuses, before and after the passes. The list is
/// golden: a new refusal, or one that no longer occurs, changes it.
#[test]
fn refusals_are_listed() {
    let mut list = String::new();
    for file in common::files() {
        for (stage, module) in [("plain", &file.module), ("preemptible", &file.preemptible())] {
            for kernel in &file.kernels {
                for architecture in [Architecture::Gfx90a, Architecture::Gfx1100] {
                    if let Err(error) = llvm_ir(module, std::slice::from_ref(kernel), architecture, &Options::default())
                    {
                        writeln!(list, "{} {stage} {architecture}: {error}", file.name).unwrap();
                    }
                }
            }
        }
    }
    insta::assert_snapshot!(list);
}

/// Compiles kernels of the corpus before and after the passes. A full run compiles all kernels for
/// all architectures; otherwise some kernels of each file are compiled for one architecture each.
#[test]
fn the_corpus_links() {
    const SAMPLE: usize = 3;
    let mut number = 0;
    for file in common::files() {
        for module in [&file.module, &file.preemptible()] {
            let mut kernels = common::accepted(&file, module, Architecture::Gfx90a);
            let mut architectures = Architecture::ALL.to_vec();
            if !common::is_full() {
                architectures = vec![architectures[number % architectures.len()]];
                let start = number * SAMPLE % kernels.len().max(1);
                kernels.rotate_left(start);
                kernels.truncate(SAMPLE);
            }
            number += 1;
            for architecture in architectures {
                let code = compile(module, &kernels, architecture, &Options::default());
                let code = code.unwrap_or_else(|error| panic!("{} for {architecture}: {error}", file.name));
                assert_eq!(code.kernels.len(), kernels.len());
            }
        }
    }
}
