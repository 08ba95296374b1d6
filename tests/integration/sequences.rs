//! Models with state: sequences of requests to a daemon, and sessions in this process under random
//! evictions.

use crate::serve::Daemon;
use anyhow::{Context, Result, ensure};
use atoll_device_host::{HostConfig, HostDevice};
use atoll_engine::{
    Class, Engine, EngineConfig, EngineHandle, FunctionKey, FunctionOptions, InputTensor, InvocationRequest,
    InvocationResult, InvokeError, SessionId,
};
use atoll_kgraph::{Bundle, DType, ModelOptions};
use atoll_pipeline::{CompileOptions, Silent, Target};
use atoll_tests::{kernel_cache, program, python, root, trained};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Capacity of a decoder's session, in tokens.
const CAPACITY: &str = "past_sequence_length=0..48";

fn run_python(script: &str, arguments: &[&Path]) -> Result<()> {
    let output = Command::new(python()).arg(root().join("tests/python").join(script)).args(arguments).output()?;
    ensure!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

#[test]
fn tritonclient_runs_sequences_as_onnx_runtime_does_with_its_own_states() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = folder.path().join("repository");
    std::fs::create_dir_all(repository.join("silero_vad/1"))?;
    run_python("decoders.py", &[&repository])?;
    for model in ["gpt2", "llama", "t5"] {
        std::fs::write(
            repository.join(format!("{model}.toml")),
            "state = \"auto\"\n[symbols]\npast_sequence_length = \"0..48\"\n",
        )?;
    }
    std::fs::copy(trained("silero_vad", &[])?.path, repository.join("silero_vad/1/model.onnx"))?;
    let config = r#"sequence_batching {
        state [ { input_name: "h" output_name: "hn" }, { input_name: "c" output_name: "cn" } ]
    }"#;
    std::fs::write(repository.join("silero_vad/config.pbtxt"), config)?;
    let daemon = Daemon::start_with(&repository, folder.path(), &["--no-control"])?;
    run_python("sequences.py", &[Path::new(&daemon.http), &repository, &repository.join("silero_vad/1/model.onnx")])
}

#[test]
fn a_served_decoder_generates_the_tokens_of_a_loop_over_onnx_runtime() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = folder.path().join("repository");
    std::fs::create_dir_all(&repository)?;
    run_python("decoders.py", &[&repository])?;
    for other in ["llama.onnx", "t5.onnx"] {
        std::fs::remove_file(repository.join(other))?;
    }
    let settings = "state = \"auto\"\n[generation]\nmax_tokens = 40\n[symbols]\npast_sequence_length = \"0..48\"\n";
    std::fs::write(repository.join("gpt2.toml"), settings)?;
    let daemon = Daemon::start_with(&repository, folder.path(), &["--no-control"])?;
    run_python("generation.py", &[Path::new(&daemon.http), Path::new(&daemon.grpc), &repository])?;

    // The command has the tokens of the daemon, which are those of its own steps with the same model.
    let model = repository.join("gpt2.onnx").display().to_string();
    let local = ["--model", &model, "--state", "auto", "--symbol", CAPACITY, "--compute-units", "1"];
    let served = ["--model", "gpt2", "--url", &daemon.http];
    let (from_daemon, errors) = command_generates(&served, "8")?;
    ensure!(from_daemon["tokens"].as_array().is_some_and(|tokens| tokens.len() == 8), "{from_daemon} {errors}");
    ensure!(from_daemon["tokens"] == command_generates(&local, "8")?.0["tokens"], "{from_daemon}");
    ensure!(from_daemon["token_ms"].as_array().is_some_and(|times| times.len() == 7), "{from_daemon}");
    let (_, errors) = command_generates(&served, "41")?;
    ensure!(errors.contains("41 is not in the range of this model, 1 to 40"), "{errors}");
    let (_, errors) = command_generates(&[&served[..], &["--input", "input_ids=1"]].concat(), "8")?;
    ensure!(errors.contains("takes the prompt alone"), "{errors}");
    Ok(())
}

/// What `atoll generate` prints: the tokens in JSON, or null and an error.
fn command_generates(arguments: &[&str], most: &str) -> Result<(serde_json::Value, String)> {
    let mut command = Command::new(program("atoll"));
    command.args(["generate", "--json", "--tokens", "3,1,4", "--max-new", most]).args(arguments);
    let output = command.output()?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((serde_json::from_slice(&output.stdout).unwrap_or_default(), errors))
}

#[test]
fn tritons_examples_of_sequences_run_with_its_own_client() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = folder.path().join("repository");
    run_python("triton_sequences.py", &[Path::new("make"), &repository])?;
    let daemon = Daemon::start_with(&repository, folder.path(), &["--no-control"])?;
    run_python("triton_sequences.py", &[Path::new("check"), Path::new(&daemon.http), Path::new(&daemon.grpc)])?;
    let explain = |model: &str| -> Result<String> {
        let explained =
            Command::new(program("atoll")).args(["models", "--explain", model, "--url", &daemon.http]).output()?;
        Ok(String::from_utf8_lossy(&explained.stdout).into_owned())
    };
    let simple = explain("simple_dyna_sequence")?;
    ensure!(simple.contains("steps of different sequences may share a launch"), "{simple}");
    let total = explain("total")?;
    ensure!(total.contains("each step runs alone, as a batch of one"), "{total}");
    Ok(())
}

/// A decoder of GPT-2's shape as a bundle.
fn decoder(folder: &Path) -> Result<Arc<Bundle>> {
    run_python("decoders.py", &[folder])?;
    let ModelOptions { symbols, states } =
        ModelOptions { symbols: atoll_kgraph::size_ranges(CAPACITY)?, states: "auto".parse()? };
    let options = CompileOptions {
        targets: vec![Target::this_host()],
        symbols,
        states,
        kernel_cache: kernel_cache(),
        ..CompileOptions::default()
    };
    let bundle = folder.join("gpt2.kg");
    atoll_pipeline::compile(&folder.join("gpt2.onnx"), &bundle, &options, &Silent)?;
    Ok(Bundle::open(&bundle)?)
}

fn start(bundle: &Arc<Bundle>, config: EngineConfig) -> Result<Engine> {
    let device = HostDevice::start(HostConfig { compute_units: 2, ..HostConfig::default() })?;
    let engine = Engine::start(Box::new(device), config)?;
    let options = FunctionOptions {
        key: FunctionKey::local("gpt2"),
        class: Class::BestEffort,
        queue_capacity: None,
        lane: Default::default(),
        batching: None,
    };
    engine.handle().load(bundle.clone(), options)?;
    Ok(engine)
}

fn integers(values: &[i64]) -> InputTensor {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    InputTensor { dtype: Some(DType::I64), shape: vec![1, values.len() as i64], bytes }
}

fn request(tokens: &[i64], past: i64) -> InvocationRequest {
    let new = tokens.len() as i64;
    let inputs = vec![
        integers(tokens),
        integers(&vec![1; (past + new) as usize]),
        integers(&(past..past + new).collect::<Vec<_>>()),
    ];
    InvocationRequest {
        function: FunctionKey::local("gpt2"),
        inputs,
        class: None,
        priority: 0,
        instance: None,
        deadline: None,
    }
}

fn step(handle: &EngineHandle, session: SessionId, tokens: &[i64], past: i64) -> Result<InvocationResult, InvokeError> {
    let (answer, answered) = mpsc::channel();
    handle.submit_step(session, request(tokens, past).into(), Box::new(move |result| drop(answer.send(result))));
    answered.recv().unwrap_or(Err(InvokeError::ShuttingDown))
}

fn open(handle: &EngineHandle, idle: Duration) -> Result<SessionId> {
    handle.open_session(&FunctionKey::local("gpt2"), idle).context("a session")
}

const LONG: Duration = Duration::from_secs(600);

/// The token with the largest logit at the last position.
fn next_token(result: &InvocationResult) -> i64 {
    let output = &result.outputs[0];
    let row = output.bytes.len() / output.shape[1] as usize;
    let logits: Vec<f32> =
        output.bytes[output.bytes.len() - row..].as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
    let largest = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    largest.map_or(0, |(at, _)| at as i64)
}

/// The bytes of every result of a generation, and the number of preemptions.
fn generate(handle: &EngineHandle, prompt: &[i64], steps: usize) -> Result<(Vec<Vec<u8>>, u32)> {
    let session = open(handle, LONG)?;
    let (mut tokens, mut past, mut answers, mut preemptions) = (prompt.to_vec(), 0, Vec::new(), 0);
    for _ in 0..steps {
        let result = step(handle, session, &tokens, past)?;
        past += tokens.len() as i64;
        tokens = vec![next_token(&result)];
        preemptions += result.preemptions;
        answers.push(result.outputs[0].bytes.clone());
    }
    handle.close_session(session);
    Ok((answers, preemptions))
}

#[test]
fn a_session_that_is_evicted_at_random_gives_the_same_results() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let bundle = decoder(folder.path())?;
    let quiet = start(&bundle, EngineConfig::default())?;
    let (expected, _) = generate(&quiet.handle(), &[3, 1, 4, 1, 5], 20)?;
    quiet.shutdown();
    let mut preemptions = 0;
    for seed in 1..=4 {
        let engine = start(&bundle, EngineConfig { evict_at_random: Some(seed), ..EngineConfig::default() })?;
        let (answers, often) = generate(&engine.handle(), &[3, 1, 4, 1, 5], 20)?;
        ensure!(answers == expected, "seed {seed}: evicted steps give other answers");
        preemptions += often;
        engine.shutdown();
    }
    ensure!(preemptions > 20, "{preemptions} evictions say little");
    Ok(())
}

#[test]
fn a_session_holds_memory_until_it_ends_and_survives_failed_steps() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let bundle = decoder(folder.path())?;
    let engine = start(&bundle, EngineConfig::default())?;
    let handle = engine.handle();
    let used = || handle.statistics().device.memory_used_bytes;
    // A step needs a session.
    let (answer, answered) = mpsc::channel();
    handle.submit(request(&[1], 0), Box::new(move |result| drop(answer.send(result))));
    ensure!(matches!(answered.recv()?, Err(InvokeError::BadInput(text)) if text.contains("sequence_id")));
    let session = open(&handle, LONG)?;
    let first = step(&handle, session, &[1, 2, 3], 0)?;
    let second = step(&handle, session, &[4], 3)?;
    ensure!(used() > 0);
    // A wrong length of the mask, too many tokens, and a cancelled step: each leaves the session
    // unchanged.
    ensure!(matches!(step(&handle, session, &[4], 7), Err(InvokeError::BadInput(_))));
    ensure!(matches!(step(&handle, session, &[1; 60], 4), Err(InvokeError::BadInput(text)) if text.contains("48")));
    let (answer, answered) = mpsc::channel();
    let late = InvocationRequest { deadline: Some(Duration::ZERO), ..request(&[9, 9, 9], 4) };
    handle.submit_step(session, late.into(), Box::new(move |result| drop(answer.send(result))));
    ensure!(matches!(answered.recv()?, Err(InvokeError::DeadlineExceeded)));
    let third = step(&handle, session, &[5], 4)?;
    // The same steps without failures in between.
    let other = open(&handle, LONG)?;
    let again = [step(&handle, other, &[1, 2, 3], 0)?, step(&handle, other, &[4], 3)?, step(&handle, other, &[5], 4)?];
    for (a, b) in [first, second, third].iter().zip(&again) {
        ensure!(a.outputs[0].bytes == b.outputs[0].bytes);
    }
    handle.close_session(session);
    ensure!(matches!(step(&handle, session, &[6], 5), Err(InvokeError::NoSession)));
    // An unused session expires.
    let short = open(&handle, Duration::from_millis(50))?;
    step(&handle, short, &[1], 0)?;
    std::thread::sleep(Duration::from_millis(400));
    ensure!(matches!(step(&handle, short, &[2], 1), Err(InvokeError::NoSession)));
    // Unloading a function ends its sessions.
    handle.unload(&FunctionKey::local("gpt2"))?;
    ensure!(matches!(step(&handle, other, &[6], 5), Err(InvokeError::NoSession)));
    ensure!(used() == 0, "{} bytes are left", used());
    engine.shutdown();
    Ok(())
}
