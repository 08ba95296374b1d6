//! Functions from recorded runs of a CUDA program: `atoll trace cuda`, then `atoll fn from-trace`,
//! and the function in a daemon. The device is that of the stand-in driver.

#![cfg(target_arch = "x86_64")]

use crate::control::Setup;
use crate::cuda_sessions::{Program, text};
use crate::serve::atoll;
use anyhow::{Context, Result, ensure};
use atoll_client::{Call, Client, DataType, Deploy, Tensor};
use atoll_tests::root;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Words of an input and of a result.
const WORDS: u32 = 64;

/// A program and the folder of its recordings.
struct Traced {
    program: Program,
    folder: tempfile::TempDir,
}

impl Traced {
    fn new() -> Result<Traced> {
        let program = Program::compile(&root().join("tests/programs/stored.c"))?;
        Ok(Traced { program, folder: tempfile::tempdir()? })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Records a run. Its output must be the same as without recording.
    fn record(&self, mode: &str, number: u32) -> Result<PathBuf> {
        let file = self.path(&format!("{mode}{number}.trace"));
        let number = number.to_string();
        let mut command = Command::new(atoll());
        command.args(["trace", "cuda", "--memory-mib", "16", "-o"]).arg(&file).arg("--").arg(self.program.path());
        let output = command.args([mode, &number]).output()?;
        let said = text(&output.stderr);
        ensure!(output.status.success() && said.contains("recorded 1 session into"), "{mode} {number}: {said}");
        let direct = self.program.direct(&[mode, &number])?;
        ensure!(output.stdout == direct.stdout, "{mode} {number}: {}", text(&output.stdout));
        Ok(file)
    }

    /// Makes a function of recordings.
    fn store(&self, files: &[&Path], name: &str, options: &[&str]) -> Result<Output> {
        let mut command = Command::new(atoll());
        command.args(["fn", "from-trace", "--target", "host"]).args(options).args(files);
        Ok(command.arg("-o").arg(self.path(name)).output()?)
    }

    /// The result of the program for a seed, without a session.
    fn result(&self, seed: u32) -> Result<Vec<u8>> {
        let output = text(&self.program.direct(&["once", &seed.to_string()])?.stdout);
        let word = |at: usize| output.get(at..at + 8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let words: Option<Vec<u32>> = (0..WORDS as usize).map(|index| word(8 * index)).collect();
        let words = words.with_context(|| format!("seed {seed}: {output}"))?;
        Ok(words.into_iter().flat_map(u32::to_le_bytes).collect())
    }
}

/// Deploys a bundle, and compares its results with those of the program.
fn check(traced: &Traced, client: &mut Client, name: &str) -> Result<()> {
    client.deploy(&traced.path(&format!("{name}.kg")), &Deploy::default())?;
    for seed in [0, 9, 123_456] {
        let bytes = (0..WORDS).flat_map(|index| (seed + 3 * index).to_le_bytes()).collect();
        let input = Tensor { datatype: DataType::Uint8, shape: vec![4 * i64::from(WORDS)], bytes };
        let answer = client.invoke(Call::of(name).input("in0", input))?;
        ensure!(answer.tensor("out0")?.bytes == traced.result(seed)?, "{name}, seed {seed}");
    }
    Ok(())
}

#[test]
fn recorded_runs_become_a_function_with_the_results_of_the_program() -> Result<()> {
    let traced = Traced::new()?;
    let files = [1, 2, 3].map(|seed| traced.record("once", seed));
    let files = files.into_iter().collect::<Result<Vec<PathBuf>>>()?;
    let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let whole = traced.store(&files, "sessions.kg", &[])?;
    let said = text(&whole.stdout);
    let expected = "3 runs, the last one gives the same results; 1 input and 1 output\n";
    ensure!(whole.status.success() && said.starts_with(expected), "{said}{}", text(&whole.stderr));
    // A program that repeats its work in one session.
    let repeated = traced.record("loop", 5)?;
    let options = ["--name", "rounds", "--type", "in0=u8"];
    let repeated = traced.store(&[&repeated], "rounds.kg", &options)?;
    let said = text(&repeated.stdout);
    ensure!(repeated.status.success() && said.starts_with("5 runs, "), "{said}{}", text(&repeated.stderr));
    let setup = Setup::start(&[], "")?;
    let mut client = setup.client()?;
    check(&traced, &mut client, "sessions")?;
    check(&traced, &mut client, "rounds")
}

#[test]
fn memory_behind_a_stored_pointer_is_kept() -> Result<()> {
    let traced = Traced::new()?;
    let files = [1, 2, 3].map(|seed| traced.record("pointers", seed));
    let files = files.into_iter().collect::<Result<Vec<PathBuf>>>()?;
    let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let output = traced.store(&files, "pointers.kg", &[])?;
    let said = text(&output.stdout);
    let expected = "3 runs, the last one gives the same results; 1 input and 1 output\n";
    ensure!(output.status.success() && said.starts_with(expected), "{said}{}", text(&output.stderr));
    Ok(())
}

#[test]
fn recordings_that_are_no_function_are_refused_with_the_cause() -> Result<()> {
    let traced = Traced::new()?;
    let [one, two, three] = [traced.record("once", 1)?, traced.record("once", 2)?, traced.record("sizes", 96)?];
    let four = traced.record("once", 4)?;
    let state = traced.record("state", 5)?;
    let addresses = traced.record("addresses", 1)?;
    let cut = traced.path("cut.trace");
    let whole = std::fs::read(&one)?;
    std::fs::write(&cut, &whole[..whole.len() / 2])?;
    let none = traced.path("none.trace");
    std::fs::write(&none, "a text")?;
    let cases: [(&[&Path], &[&str], &str); 11] = [
        (&[&one, &two], &[], "2 runs recorded, and at least 3 are needed"),
        (&[&one, &one, &two], &[], "the runs copy the same data to the device"),
        (&[&one, &two, &three], &[], "run 3, the last one, differs from run 1: step 1 "),
        (&[&one, &three, &two], &[], "run 2 differs from run 1: step 1 "),
        // Each round continues with the result of the one before, which the function does not have.
        (&[&state], &[], "with the inputs of run 2 the function has another result than the program: out0 differs"),
        (&[&state], &["--whole"], "1 run recorded, and at least 3 are needed"),
        (&[&addresses, &one, &two], &[], "(cuMemcpyHtoD) copies an address of device memory to the device (byte 8"),
        (&[&one, &two, &cut], &[], "it is incomplete: "),
        (&[&three, &one, &two], &["--type", "in0=text"], "there is no such type"),
        (&[&four, &two, &one], &["--type", "in1=f32"], "there is no input or output `in1`"),
        (&[&one, &two, &none], &[], "it is not a recording of `atoll trace cuda`"),
    ];
    for (files, options, expected) in cases {
        let output = traced.store(files, "refused.kg", options)?;
        let said = text(&output.stderr);
        ensure!(!output.status.success() && said.contains(expected), "{expected:?} is not in {said:?}");
        ensure!(!traced.path("refused.kg").exists(), "{expected}: a bundle is left");
    }
    let left = std::fs::read_dir(traced.folder.path())?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let left: Vec<String> = left.filter(|name| name.starts_with('.')).collect();
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

#[test]
fn a_program_without_a_session_and_its_exit_code_are_reported() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("none.trace");
    let run =
        |program: &str| Command::new(atoll()).args(["trace", "cuda", "-o"]).arg(&file).args(["--", program]).output();
    let output = run("true")?;
    let said = text(&output.stderr);
    ensure!(output.status.code() == Some(1) && said.contains("the program began no CUDA session"), "{said}");
    let traced = Traced::new()?;
    let mut command = Command::new(atoll());
    command.args(["trace", "cuda", "-o"]).arg(&file).arg("--").arg(traced.program.path());
    // The program refuses zero numbers before it begins a session.
    let output = command.args(["sizes", "0"]).output()?;
    ensure!(output.status.code() == Some(1), "{}", output.status);
    let mut command = Command::new(atoll());
    command.args(["trace", "cuda", "-o"]).arg(folder.path().join("none/none.trace")).args(["--", "true"]);
    let output = command.output()?;
    ensure!(output.status.code() == Some(2), "{}", text(&output.stderr));
    Ok(())
}
