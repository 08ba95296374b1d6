//! `atoll bench overhead`

use crate::engine::EngineArgs;
use crate::invoker::{Invoker, Remote, Terms};
use crate::output::{Align, Table};
use crate::random::Random;
use crate::report::Findings;
use crate::samples::Distribution;
use crate::symbols::ModelArgs;
use crate::tensors::InputSpecs;
use anyhow::Result;
use atoll_kgraph::ModelOptions;
use atoll_protocol::Tensor;
use serde_json::json;
use std::num::NonZeroU32;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  atoll bench overhead
  atoll bench overhead --model null --url localhost:8000 --count 10000 --json";

/// Measure the round trip of a model that computes almost nothing, over HTTP and in process
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Address of a daemon [default: one in this process, on a free port]
    #[arg(long)]
    url: Option<String>,

    /// Name of the daemon's model
    #[arg(long, default_value = "null", requires = "url")]
    model: String,

    /// Number of requests, one after the other on one connection
    #[arg(long, default_value_t = NonZeroU32::new(2000).expect("not zero"))]
    count: NonZeroU32,

    /// Number of warm-up requests
    #[arg(long, default_value_t = 100)]
    warm_up: u32,

    #[command(flatten)]
    engine: EngineArgs,
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    let measured = match &args.url {
        Some(url) => vec![("over HTTP", measure(args, &Invoker::Remote(Remote::connect(url, &args.model)?))?)],
        None => here(args)?,
    };
    let fields: serde_json::Map<_, _> = measured.iter().map(|(name, d)| (name.replace(' ', "_"), json!(d))).collect();
    let mut table = Table::new([
        ("ms", Align::Left),
        ("count", Align::Right),
        ("p50", Align::Right),
        ("p90", Align::Right),
        ("p99", Align::Right),
        ("max", Align::Right),
    ]);
    for (name, distribution) in &measured {
        let [count, p50, p90, p99, max] = distribution.cells();
        table.row([(*name).into(), count, p50, p90, p99, max]);
    }
    Findings::new(&fields, table)
}

fn measure(args: &Args, invoker: &Invoker) -> Result<Distribution> {
    let inputs: Vec<Tensor> = InputSpecs::default().tensors(invoker.inputs(), &mut Random::new(0))?;
    let mut times = Vec::with_capacity(args.count.get() as usize);
    for index in 0..args.warm_up.saturating_add(args.count.get()) {
        let start = Instant::now();
        invoker.invoke(&inputs, Terms { priority: 1, deadline: None })?;
        if index >= args.warm_up {
            times.push(start.elapsed());
        }
    }
    Ok(Distribution::of(&times))
}

#[cfg(not(feature = "compiler"))]
fn here(_: &Args) -> Result<Vec<(&'static str, Distribution)>> {
    Err(crate::failure::user_error(
        "this program was built without the compiler and cannot build the null model; use --url with a daemon that \
        serves one",
    ))
}

/// Serves the null model in this process, and measures it both ways.
#[cfg(feature = "compiler")]
fn here(args: &Args) -> Result<Vec<(&'static str, Distribution)>> {
    use crate::invoker::Local;
    use anyhow::Context;
    use atoll_fleet::FleetHandle;
    use atoll_models::{BuildOptions, build_onnx};
    use atoll_server::{Server, ServerConfig};
    use std::sync::Arc;

    let folder = tempfile::tempdir()?;
    let repository = folder.path().join("repository");
    std::fs::create_dir(&repository)?;
    let model = folder.path().join("null.onnx");
    std::fs::write(&model, build_onnx("null", &BuildOptions::default()).context("cannot build the null model")?)?;
    let bundle = repository.join("null.kg");
    crate::compiler::compile_for(args.engine.device_name(), &model, &ModelOptions::default(), &bundle)?;

    let local = Invoker::Local(Local::start(&bundle, &ModelArgs::default(), &args.engine)?);
    let in_process = measure(args, &local)?;
    local.stop();

    let engine = args.engine.start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let config =
        ServerConfig { http_port: 0, metrics_port: 0, ..ServerConfig::new(repository, folder.path().join("cache")) };
    let server =
        runtime.block_on(Server::bind(config, Arc::new(FleetHandle::new(vec![Box::new(engine.handle())])), None))?;
    let url = server.http_address()?.to_string();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = runtime.spawn(server.run(async { drop(stopped.await) }));
    let over_http = wait_until_ready(&url).and_then(|remote| measure(args, &Invoker::Remote(remote)));
    drop(stop);
    runtime.block_on(serving)??;
    engine.shutdown();
    Ok(vec![("in process", in_process), ("over HTTP", over_http?)])
}

/// Connects as soon as the daemon has loaded the model.
#[cfg(feature = "compiler")]
fn wait_until_ready(url: &str) -> Result<Remote> {
    use std::time::Duration;
    let mut tries = 0;
    loop {
        match Remote::connect(url, "null") {
            Err(error) if tries == 100 => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
            remote => return remote,
        }
        tries += 1;
    }
}
