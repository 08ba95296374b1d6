//! A model whose kernel goes wrong when asked to, in a daemon that serves another one meanwhile.

use crate::serve::{Daemon, atoll};
use anyhow::{Context, Result, ensure};
use atoll_kgraph::*;
use atoll_passes::{PassOptions, transform_with};
use atoll_target_host::{CpuLevel, KernelShape, Options, compile};
use atoll_tests::trained;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

const PTX: &str = include_str!("faulty_model.ptx");
const THREADS: u32 = 32;
const BLOCKS: i64 = 2;

/// A bundle of one node: `out[64]` from `mode[1]`.
fn write_faulty_model(path: &Path) -> Result<()> {
    let mut module = atoll_ptx::parse(PTX)?;
    let report = transform_with(&mut module, &["inject_preempt_flag"], &PassOptions::default(), &mut |_, _| {})?;
    let kernel = &report.kernels[0];
    // What is compiled is the text that goes into the bundle, whose lines errors name.
    let text = atoll_ptx::print(&module);
    let level = CpuLevel::of_this_machine().context("a host target")?;
    let block = [THREADS, 1, 1];
    let shapes = [KernelShape { name: "faulty".into(), block }];
    let object = compile(&atoll_ptx::parse(&text)?, &shapes, level, &Options::default())?;
    let facts = KernelFacts {
        name: "faulty".into(),
        block,
        params_bytes: kernel.params_bytes,
        preempt_offset: kernel.preempt_offset(),
        scratch_bytes: object.kernels[0].scratch_bytes,
        ..KernelFacts::default()
    };
    let (mode, out) = (BufferId(0), BufferId(1));
    let buffer = |name: &str, kind, elements: i64| BufferSpec {
        name: name.into(),
        kind,
        dtype: DType::U32,
        shape: vec![elements.into()],
        weights_offset: None,
    };
    let node = Node { name: "only".into(), kind: NodeKind::Kernel, reads: vec![mode], writes: vec![out], after: vec![] };
    let graph = KernelGraph {
        format: FORMAT_VERSION,
        name: "faulty".into(),
        symbols: vec![],
        buffers: vec![buffer("mode", BufferKind::Input, 1), buffer("out", BufferKind::Output, i64::from(THREADS) * BLOCKS)],
        nodes: vec![node],
        plan: MemoryPlan { restore_points: vec![NodeId(0)], ..MemoryPlan::default() },
    };
    let args = [mode, out].map(|buffer| Argument::Buffer { buffer, offset: 0.into() }).to_vec();
    let launches = vec![Some(LaunchSpec { kernel: KernelId(0), grid: [BLOCKS.into(), 1.into(), 1.into()], args })];
    let image = TargetImage { name: level.target_name().into(), kernels: vec![facts], launches };
    let targets = vec![TargetContents { image, code: object.elf, ptx: Some(text) }];
    write_bundle(path, &BundleContents { producer: "test".into(), graph: &graph, weights: vec![], targets })?;
    Ok(())
}

fn infer(daemon: &Daemon, arguments: &[&str]) -> Result<Output> {
    Ok(Command::new(atoll()).args(["infer", "--json", "--url", &daemon.http]).args(arguments).output()?)
}

/// Where the transformed text, which the bundle holds, has this instruction.
fn line_of(bundle: &Path, instruction: &str) -> Result<usize> {
    let bundle = Bundle::open(bundle)?;
    let target = bundle.target_names().next().context("a target")?;
    let text = std::str::from_utf8(bundle.ptx(target).context("its PTX")?)?;
    let line = text.lines().position(|line| line.contains(instruction));
    line.map(|line| line + 1).with_context(|| format!("there is no {instruction}"))
}

#[test]
fn faults_end_their_request_and_nothing_else() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = folder.path().join("repository");
    std::fs::create_dir(&repository)?;
    let bundle = repository.join("faulty.kg");
    write_faulty_model(&bundle)?;
    std::fs::copy(trained("magika", &[])?.path, repository.join("magika.onnx"))?;
    let mut daemon = Daemon::start_with(&repository, folder.path(), &["--time-limit", "1"])?;
    let served = infer(&daemon, &["--model", "magika"])?;
    ensure!(served.status.success(), "{}", String::from_utf8_lossy(&served.stderr));

    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        // The neighbour's requests never fail, whatever happens next door.
        let neighbour = scope.spawn(|| -> Result<u32> {
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
        let answers = neighbour.join().expect("the neighbour does not panic")?;
        checked?;
        ensure!(answers > 0, "the neighbour was never served");
        Ok(())
    })?;
    ensure!(daemon.is_running()?, "the daemon has ended");
    Ok(())
}
