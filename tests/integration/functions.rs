//! Functions packed from PTX kernels and a manifest.

use crate::serve::{Daemon, atoll};
use anyhow::{Context, Result, ensure};
use atoll_engine::EngineConfig;
use atoll_kgraph::Bundle;
use atoll_pipeline::{CompileOptions, Silent, Target, pack};
use atoll_tests::chaos::grind;
use atoll_tests::{Case, Loaded, Tensor, kernel_cache, relative_error, root, trained};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

/// Packs a function of `tests/functions` for this machine.
pub(crate) fn packed(manifest: &Path, output: &Path) -> Result<()> {
    let options = CompileOptions {
        targets: vec![Target::this_host()],
        kernel_cache: kernel_cache(),
        ..CompileOptions::default()
    };
    Ok(pack(manifest, output, &options, &Silent).map(drop)?)
}

pub(crate) fn manifest(name: &str) -> PathBuf {
    root().join("tests/functions").join(name).with_extension("toml")
}

/// Writes the sources of `grind` with the constants of a seed into `grind-SEED` in a folder, and
/// returns the path of its manifest.
pub(crate) fn grind_sources(folder: &Path, seed: u64) -> Result<PathBuf> {
    let source = folder.join(format!("grind-{seed}"));
    std::fs::create_dir(&source)?;
    for extension in ["toml", "ptx"] {
        let file = manifest("grind").with_extension(extension);
        std::fs::copy(&file, source.join("grind").with_extension(extension))?;
    }
    std::fs::write(source.join("c.bin"), grind::bytes(&grind::table(seed)))?;
    Ok(source.join("grind.toml"))
}

/// Packs `grind` with the constants of a seed, as `grind-SEED.kg` in a folder.
pub(crate) fn pack_grind(folder: &Path, seed: u64) -> Result<PathBuf> {
    let bundle = folder.join(format!("grind-{seed}.kg"));
    packed(&grind_sources(folder, seed)?, &bundle)?;
    Ok(bundle)
}

fn infer(daemon: &Daemon, arguments: &[&str]) -> Result<Output> {
    Ok(Command::new(atoll()).args(["infer", "--json", "--url", &daemon.http]).args(arguments).output()?)
}

/// Line of an instruction in the transformed text, which the bundle contains.
fn line_of(bundle: &Path, instruction: &str) -> Result<usize> {
    let bundle = Bundle::open(bundle)?;
    let target = bundle.target_names().next().context("a target")?;
    let text = std::str::from_utf8(bundle.ptx(target).context("its PTX")?)?;
    let line = text.lines().position(|line| line.contains(instruction));
    line.map(|line| line + 1).with_context(|| format!("there is no {instruction}"))
}

#[test]
fn a_fault_fails_its_own_request_only() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = folder.path().join("repository");
    std::fs::create_dir(&repository)?;
    let bundle = repository.join("faulty.kg");
    packed(&manifest("faulty"), &bundle)?;
    std::fs::copy(trained("magika", &[])?.path, repository.join("magika.onnx"))?;
    let mut daemon = Daemon::start_with(&repository, folder.path(), &["--time-limit", "1"])?;
    let served = infer(&daemon, &["--model", "magika"])?;
    ensure!(served.status.success(), "{}", String::from_utf8_lossy(&served.stderr));

    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        // The requests of the other model never fail.
        let other_model = scope.spawn(|| -> Result<u32> {
            let mut answers = 0;
            while !stop.load(Ordering::Relaxed) {
                let output = infer(&daemon, &["--model", "magika", "--repeat", "5"])?;
                ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                answers += 1;
            }
            Ok(answers)
        });
        let checked = (|| -> Result<()> {
            for (mode, instruction, says) in [
                ("mode=1", "st.global.u32 [%d4]", "write to 0x0, through a null pointer"),
                ("mode=2", "[%d3+2]", "misaligned"),
                ("mode=3", "st.global.u32 [%d5]", "outside device memory"),
                ("mode=4", "\ttrap;", "`trap`"),
                ("mode=5", "\tbra $hang;", "longer than its limit of 1 s"),
            ] {
                let output = infer(&daemon, &["--model", "faulty", "--input", mode])?;
                let message = String::from_utf8_lossy(&output.stderr);
                let place = format!("at line {}", line_of(&bundle, instruction)?);
                for part in ["kernel 'faulty' faulted in block (", &place, says] {
                    ensure!(!output.status.success() && message.contains(part), "{mode}: no '{part}' in: {output:?}");
                }
                let output = infer(&daemon, &["--model", "faulty", "--input", "mode=0"])?;
                ensure!(output.status.success(), "after {mode}: {}", String::from_utf8_lossy(&output.stderr));
            }
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        let answers = other_model.join().expect("the other_model does not panic")?;
        checked?;
        ensure!(answers > 0, "the other_model was never served");
        Ok(())
    })?;
    ensure!(daemon.is_running()?, "the daemon exited");
    Ok(())
}

/// The function in `tests/functions/chain.toml`, as plain Rust.
fn chained(x: &[f64], b: &[f64], c: &[f64], n: usize) -> Vec<f64> {
    let mut y = x.to_vec();
    for _ in 0..7 {
        y = (0..n * n).map(|i| (0..n).map(|k| y[i / n * n + k] * b[k * n + i % n]).sum()).collect();
    }
    for i in 0..n.min(2048) {
        y[i] += 0.5 * c[2048 + i];
        y[n * n - n + i] += 2.0 * c[i];
    }
    y
}

#[test]
fn kernels_of_other_compilers_run_as_a_function() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // The manifest refers to a constant that is generated here.
    let copy = folder.path().join("chain.toml");
    let text = std::fs::read_to_string(manifest("chain"))?;
    std::fs::write(&copy, text.replace("../kernels", &root().join("tests/kernels").display().to_string()))?;
    let value = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 50.0;
    let floats = |range: std::ops::Range<usize>| -> Vec<f32> { range.map(value).collect() };
    let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let wide = |values: &[f32]| values.iter().map(|&v| f64::from(v)).collect::<Vec<f64>>();
    let c = floats(0..4096);
    std::fs::write(folder.path().join("c.bin"), bytes(&c))?;
    let bundle = folder.path().join("chain.kg");
    packed(&copy, &bundle)?;
    let loaded = Loaded::start(&Bundle::open(&bundle)?, EngineConfig::default())?;
    for n in [16, 48, 96] {
        let x = floats(5..5 + n * n);
        let b: Vec<f32> = floats(11..11 + n * n).into_iter().map(|v| v / n as f32).collect();
        let tensor = |name: &str, values: &[f32]| Tensor {
            name: name.into(),
            dtype: "float32".into(),
            shape: vec![n as i64; 2],
            bytes: bytes(values),
        };
        let case = Case { seed: 0, inputs: vec![tensor("x", &x), tensor("b", &b)], outputs: vec![] };
        let output = loaded.run(&case)?.outputs.remove(0);
        let got: Vec<f64> = output.bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b).into()).collect();
        let error = relative_error(&got, &chained(&wide(&x), &wide(&b), &wide(&c), n));
        ensure!(error < 1e-5, "n = {n}: the result differs by {error:.2e}");
    }
    loaded.stop();
    Ok(())
}

#[test]
fn wrong_manifests_are_refused_with_the_place() -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::copy(root().join("tests/functions/faulty.ptx"), folder.path().join("faulty.ptx"))?;
    let right = std::fs::read_to_string(manifest("faulty"))?;
    std::fs::write(folder.path().join("short.bin"), [0; 3])?;
    std::fs::write(folder.path().join("no.ptx"), ".version 7.0\n.target sm_70\nwhat is this")?;
    let path = folder.path().join("wrong.toml");
    for (from, to, says) in [
        ("name = \"faulty\"", "nam = \"faulty\"", "nam"),
        ("faulty.ptx", "missing.ptx", "missing.ptx"),
        ("faulty.ptx", "no.ptx", "no.ptx: 3:1"),
        (
            "\"faulty.ptx\"",
            "\"faulty.ptx\", \"./faulty.ptx\"",
            "./faulty.ptx and another file define `faulty`; give each a unique name",
        ),
        ("[\"faulty.ptx\"]", "[]", "no file is listed"),
        ("kernel = \"faulty\"", "kernel = \"fault\"", "step 1 (`fault`): there is no kernel `fault`; there are faulty"),
        ("kernel = \"faulty\"", "", "step 1: exactly one of"),
        ("kernel = \"faulty\"", "repeat = 4000000000\nsteps = []", "step 1: `repeat` needs `steps`"),
        ("grid = [2]", "grid = []", "`grid` needs one to three sizes"),
        ("grid = [2]", "grid = [\"n\"]", "there is no symbol `n`"),
        ("grid = [2]", "grid = [0.5]", "0.5 is not an integer"),
        ("block = [32]", "block = [32, 1, 1, 1]", "`block` needs one to three sizes"),
        ("block = [32]", "block = [2048]", "1024 threads"),
        ("\"mode\", \"out\"]", "\"mode\"]", "it takes 2 arguments, 1 are given"),
        (
            "writes = [\"out\"]",
            "",
            "the analysis cannot tell what it writes (line 35 of the PTX); list the buffers in `writes`",
        ),
        ("writes = [\"out\"]", "writes = [\"mode\"]", "it writes `mode`, which is an input or a constant"),
        ("writes = [\"out\"]", "writes = []", "buffer `out`: no step writes this output"),
        ("name = \"faulty\"", "name = \"faulty\"\nformat = 2", "it has format 2"),
        ("kind = \"output\"", "kind = \"output\", offset = 4", "offset"),
        (
            "\"mode\", \"out\"]",
            "\"mode\", { buffer = \"out\", offset = 1000 }]",
            "byte 1000 is past the end of `out`, which has 256 bytes",
        ),
        ("\"mode\", \"out\"]", "\"mode\", { buffer = \"out\", offset = -4 }]", "-4 is not a valid offset in `out`"),
        ("\"mode\", \"out\"]", "\"mode\", { bytes = \"0000\" }]", "parameter `out`: it takes 8 bytes, 2 are given"),
        ("\"mode\", \"out\"]", "\"mode\", { bytes = \"0x0\" }]", "`0x0` is not two hexadecimal digits"),
        ("grid = [2]", "grid = [-1]", "-1 is not a number of blocks"),
        ("\"mode\", \"out\"]", "\"mode\", { buffer = \"o\", offset = 4 }]", "parameter `out`: there is no buffer `o`"),
        ("\"mode\", \"out\"]", "\"mode\", \"o\"]", "parameter `out`: there is neither a buffer nor a symbol `o`"),
        ("kind = \"output\"", "kind = \"temp\"", ""),
        ("kind = \"input\"", "kind = \"temp\"", "it reads `mode`, which no step has written"),
        ("kind = \"input\"", "kind = \"const\"", "buffer `mode`: a constant needs a `file`"),
        (
            "kind = \"input\"",
            "kind = \"const\", file = \"short.bin\"",
            "buffer `mode`: its file holds 3 bytes, its shape and dtype take 4",
        ),
        ("kind = \"input\"", "kind = \"input\", file = \"short.bin\"", "only constants have a `file`"),
        ("shape = [64]", "shape = [\"(\"]", "buffer `out`"),
    ] {
        let wrong = right.replacen(from, to, 1);
        ensure!(wrong != right, "nothing was replaced: {from}");
        std::fs::write(&path, wrong)?;
        match (packed(&path, &folder.path().join("wrong.kg")), says) {
            (Ok(()), "") => {}
            (Ok(()), _) => anyhow::bail!("was packed: {to}"),
            (Err(error), _) => ensure!(!says.is_empty() && format!("{error:#}").contains(says), "{to}: {error:#}"),
        }
    }
    Ok(())
}
