//! Padding across register classes: kernels that need few registers are real-time, and a kernel that
//! needs many is best-effort. They share launches in the module of the higher class.

use super::padding::{Bed, ROUNDS, packed};
use super::{cuda, hip_engine};
use anyhow::{Context, Result, ensure};
use atoll_engine::{Engine, EngineConfig};
use atoll_pipeline::{PaddedKernels, Target, pad_bundles};
use std::fmt::Write;

/// Values that a thread of the best-effort kernel keeps in registers during its loop.
const VALUES: usize = 96;

/// A kernel that loads some values and adds up their products, several times. Its stores may change
/// what it has loaded, so it cannot load again instead.
fn wide() -> Result<String> {
    let mut text = format!(
        ".version 7.0\n.target sm_70\n.address_size 64\n\
         .visible .entry wide(.param .u64 x, .param .u64 out)\n{{\n\
         \t.reg .pred %p;\n\t.reg .b32 %r<6>;\n\t.reg .f32 %sum, %v<{VALUES}>;\n\t.reg .b64 %rd<6>;\n\
         \tld.param.u64 %rd1, [x];\n\tld.param.u64 %rd2, [out];\n\
         \tmov.u32 %r1, %ctaid.x;\n\tmov.u32 %r2, %ntid.x;\n\tmov.u32 %r3, %tid.x;\n\
         \tmad.lo.u32 %r1, %r1, %r2, %r3;\n\tmul.wide.u32 %rd3, %r1, 4;\n\
         \tadd.u64 %rd1, %rd1, %rd3;\n\tadd.u64 %rd2, %rd2, %rd3;\n"
    );
    for value in 0..VALUES {
        writeln!(text, "\tld.global.f32 %v{value}, [%rd1+{}];", 4 * value)?;
    }
    text += "\tmov.f32 %sum, 0f00000000;\n\tmov.u32 %r5, 0;\n$next:\n";
    for value in 0..VALUES {
        writeln!(text, "\tfma.rn.f32 %sum, %v{value}, %v{}, %sum;", (value + 1) % VALUES)?;
    }
    text += "\tst.global.f32 [%rd2], %sum;\n\tadd.u32 %r5, %r5, 1;\n\
             \tsetp.lt.u32 %p, %r5, 8;\n\t@%p bra $next;\n\tret;\n}\n";
    Ok(text)
}

const MANIFEST: &str = "\
name = \"wide\"
ptx = [\"wide.ptx\"]
[buffers]
x = { kind = \"input\", dtype = \"f32\", shape = [352] }
out = { kind = \"output\", dtype = \"f32\", shape = [256] }
[[step]]
kernel = \"wide\"
grid = [4]
block = [64]
args = [\"x\", \"out\"]
";

/// The best-effort function has one kernel, so every padded launch is one of both classes.
fn launches_are_shared(target: Target, rounds: u32, engine: fn(EngineConfig) -> Result<Engine>) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut bed = Bed::functions(target, rounds, folder.path(), engine)?;
    std::fs::write(folder.path().join("wide.ptx"), wide()?)?;
    bed.bundles[1] = packed(MANIFEST, folder.path(), target)?;
    let modules = pad_bundles(target, &bed.bundles, None)?;
    let has = |module: &PaddedKernels, bundle: usize| module.candidates.iter().any(|(of, _)| *of == bundle);
    let (first, last) = modules.first().zip(modules.last()).context("modules")?;
    ensure!(has(first, 0) && !has(first, 1), "{:?}", first.candidates);
    ensure!(has(last, 0) && has(last, 1), "{:?}", last.candidates);
    bed.shares_launches().map(drop)
}

#[test]
fn kernels_of_two_register_classes_share_launches_on_an_nvidia_gpu() -> Result<()> {
    launches_are_shared(Target::NVIDIA, ROUNDS, cuda::engine)
}

#[test]
fn kernels_of_two_occupancy_levels_share_launches_on_an_amd_gpu() -> Result<()> {
    launches_are_shared(hip_engine::target()?, hip_engine::ROUNDS, hip_engine::engine)
}
