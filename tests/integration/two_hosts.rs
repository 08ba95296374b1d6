//! Two host devices serve the models of the demo. One of them loses its executor until the daemon
//! gives the device up, and the other one takes its work. Only calls of models that name the device
//! fail.
//!
//! A host device cannot be lost for good: the daemon tries again after half a minute.

use crate::cancel::metric;
use crate::control::Setup;
use crate::executors::wait_until;
use crate::fleet::two_hosts;
use anyhow::{Context, Result, bail, ensure};
use atoll_client::{Answer, Call, Client, ClientError, DataType, Deploy, ExecutorEntry, Tensor};
use atoll_tests::{Case, TOLERANCE, built_small, compile, full, oracle, relative_error, trained};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Where each model is deployed, by the end of its function's name.
const PLACES: [(&str, Option<&str>); 3] = [("left", Some("host:0")), ("right", Some("host:1")), ("anywhere", None)];

/// Losses of executors within a minute after which a device is given up for a while.
const LOSSES: u32 = 5;

/// A model, with inputs and the outputs of ONNX Runtime.
struct Model {
    name: &'static str,
    case: Case,
}

impl Model {
    /// Compiles and deploys a model everywhere.
    fn deploy(setup: &Setup, name: &'static str, model: &atoll_tests::Model, folder: &Path) -> Result<Model> {
        compile(model, folder)?;
        let bundle = folder.join(format!("{}.kg", model.name));
        for (place, device) in PLACES {
            let how =
                Deploy { name: Some(format!("{name}-{place}")), device: device.map(Into::into), ..Deploy::default() };
            setup.client()?.deploy(&bundle, &how)?;
        }
        let case = oracle(model, &[3], folder)?.into_iter().next().context("a case")?;
        Ok(Model { name, case })
    }

    /// Invokes the model in one place, and compares the outputs with those of ONNX Runtime.
    fn ask(&self, client: &mut Client, place: &str) -> Result<Result<(), ClientError>> {
        let mut call = Call::of(format!("{}-{place}", self.name));
        for input in &self.case.inputs {
            let tensor =
                Tensor { datatype: datatype(&input.dtype)?, shape: input.shape.clone(), bytes: input.bytes.clone() };
            call = call.input(&input.name, tensor);
        }
        match client.invoke(call) {
            Ok(answer) => self.check(&answer).with_context(|| format!("{}-{place}", self.name)).map(Ok),
            Err(error) => Ok(Err(error)),
        }
    }

    fn check(&self, answer: &Answer) -> Result<()> {
        for expected in &self.case.outputs {
            ensure!(expected.dtype == "float32", "output {} is {}", expected.name, expected.dtype);
            let found = answer.tensor(&expected.name)?;
            ensure!(found.shape == expected.shape, "output {} has shape {:?}", expected.name, found.shape);
            let error = relative_error(&numbers(&found.bytes), &numbers(&expected.bytes));
            ensure!(error < TOLERANCE, "output {} differs by {error:.2e}", expected.name);
        }
        Ok(())
    }
}

fn datatype(numpy: &str) -> Result<DataType> {
    Ok(match numpy {
        "float32" => DataType::Fp32,
        "int32" => DataType::Int32,
        "int64" => DataType::Int64,
        other => bail!("no model of the demo takes {other}"),
    })
}

fn numbers(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|chunk| f32::from_le_bytes(*chunk).into()).collect()
}

/// The executor of the daemon's own functions on the second device.
fn second(client: &mut Client) -> Result<ExecutorEntry> {
    let executors = client.processes()?.executors;
    executors.into_iter().find(|entry| entry.device == "host:1").context("no executor of host:1")
}

/// Kills the executor of the second device until the daemon gives the device up. Before each kill,
/// calls in flight have been answered.
fn give_up(setup: &Setup, models: &[Model]) -> Result<()> {
    for loss in 0..LOSSES {
        let mut client = setup.client()?;
        for model in models {
            model.ask(&mut client, "right")?.with_context(|| format!("after {loss} losses"))?;
        }
        let victim = second(&mut client)?.pid.and_then(|pid| Pid::from_raw(pid as i32)).context("an executor")?;
        kill_process(victim, Signal::KILL)?;
        let old = victim.as_raw_nonzero().get() as u32;
        wait_until("the loss is noticed", || Ok(second(&mut setup.client()?)?.pid != Some(old)))?;
    }
    Ok(())
}

/// Calls all models in one place until the end. No call fails. Returns their number.
fn load(setup: &Setup, models: &[Model], place: &str, over: &AtomicBool) -> Result<u32> {
    let (mut client, mut calls) = (setup.client()?, 0);
    while !over.load(Relaxed) {
        for model in models {
            calls += 1;
            model.ask(&mut client, place)?.with_context(|| format!("{}-{place}", model.name))?;
        }
    }
    Ok(calls)
}

fn placed(setup: &Setup) -> Result<[f64; 2]> {
    let of = |device: &str| metric(&setup.daemon, &format!("atoll_device_placed_total{{device=\"{device}\"}}"));
    Ok([of("host:0")?, of("host:1")?])
}

/// With the second device given up: its own functions are unavailable, all others are answered, and
/// reports say so.
fn check_given_up(setup: &Setup, models: &[Model]) -> Result<()> {
    let mut client = setup.client()?;
    let entry = second(&mut client)?;
    ensure!(entry.pid.is_none() && entry.cause.is_some_and(|cause| cause.contains("SIGKILL")), "the cause is shown");
    let died = |device: &str| {
        metric(&setup.daemon, &format!("atoll_executor_losses_total{{cause=\"died\",device=\"{device}\"}}"))
    };
    ensure!((died("host:0")?, died("host:1")?) == (0.0, f64::from(LOSSES)), "losses are counted where they were");
    for model in models {
        let refused = model.ask(&mut client, "right")?.expect_err("its device is given up").to_string();
        ensure!(refused.contains("unavailable for now") && refused.contains("executor"), "{refused}");
        for place in ["left", "anywhere"] {
            for _ in 0..3 {
                model.ask(&mut client, place)??;
            }
        }
    }
    Ok(())
}

#[test]
fn models_are_served_by_two_host_devices_and_by_one_when_the_other_is_given_up() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // With `round-robin`, both devices are used even if calls are short.
    let options = two_hosts()?.into_iter().chain(["--placement".into(), "round-robin".into()]);
    let options: Vec<String> = options.collect();
    let setup = Setup::start(&options.iter().map(String::as_str).collect::<Vec<_>>(), "")?;
    let models = [
        Model::deploy(&setup, "magika", &trained("magika", &[("unk__214", 1)])?, folder.path())?,
        Model::deploy(&setup, "resnet50", &built_small("resnet50", folder.path())?, folder.path())?,
    ];
    let mut client = setup.client()?;
    for (place, _) in PLACES {
        for model in models.iter().chain(&models) {
            model.ask(&mut client, place)??;
        }
    }
    ensure!(placed(&setup)?.iter().all(|count| *count > 0.0), "both devices answered: {:?}", placed(&setup)?);

    let over = AtomicBool::new(false);
    let (left, anywhere) = std::thread::scope(|scope| -> Result<_> {
        let during = |place| {
            scope.spawn({
                let (setup, models, over) = (&setup, &models, &over);
                move || load(setup, models, place, over)
            })
        };
        let loads = ["left", "anywhere"].map(during);
        let given_up = give_up(&setup, &models);
        over.store(true, Relaxed);
        let [left, anywhere] = loads.map(|load| load.join().expect("no panic"));
        given_up.and_then(|()| Ok((left?, anywhere?)))
    })?;
    ensure!(left > 10 && anywhere > 10, "the first device answered few calls: {left}, {anywhere}");
    check_given_up(&setup, &models)?;
    if full() {
        let begun = Instant::now();
        while models[0].ask(&mut client, "right")?.is_err() {
            ensure!(begun.elapsed() < Duration::from_secs(120), "the device does not come back");
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    Ok(())
}
