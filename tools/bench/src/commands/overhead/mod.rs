//! `atoll bench overhead`

#[cfg(feature = "compiler")]
mod grpc;
#[cfg(feature = "compiler")]
mod peer;

use crate::credentials::CredentialArgs;
use crate::engine::EngineArgs;
use crate::invoker::{Invoker, Remote, Terms};
use crate::output::{Align, Table};
use crate::random::Random;
use crate::report::Findings;
use crate::samples::Distribution;
#[cfg(feature = "compiler")]
use crate::symbols::ModelArgs;
use crate::tensors::InputSpecs;
#[cfg(feature = "compiler")]
use anyhow::Context;
use anyhow::Result;
use atoll_protocol::Tensor;
use clap::ValueEnum;
use serde_json::json;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  atoll bench overhead
  atoll bench overhead --tls
  atoll bench overhead --against fastapi --python venv/bin/python
  atoll bench overhead --model null --url localhost:8000 --count 10000 --json";

/// Measure the round trip of a model that computes almost nothing, over HTTP and gRPC, and in
/// process
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Address of a daemon [default: one in this process, on a free port]
    #[arg(long)]
    url: Option<String>,

    #[command(flatten)]
    credentials: CredentialArgs,

    /// Also measure over TLS with a token, in turn with HTTP, and the check of a token
    #[arg(long, conflicts_with = "url")]
    tls: bool,

    /// Peer to measure as well, over HTTP and with the same client: FastAPI with ONNX Runtime
    #[arg(long, value_enum, value_name = "PEER", conflicts_with = "url")]
    against: Option<Against>,

    /// Python with fastapi, numpy, onnxruntime and uvicorn [default: that of $ATOLL_VENV, else
    /// python3]
    #[arg(long, value_name = "FILE", requires = "against")]
    python: Option<PathBuf>,

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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Against {
    Fastapi,
}

/// What was measured.
struct Measured {
    ways: Vec<(&'static str, Distribution)>,
    /// Mean time to check a token.
    token_check: Option<Duration>,
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    let measured = match &args.url {
        Some(url) => {
            let remote = Invoker::Remote(Remote::connect(url, &args.model, &args.credentials)?);
            let name = if url.starts_with("https://") { "over TLS" } else { "over HTTP" };
            Measured { ways: vec![(name, measure(args, vec![way(&remote)?])?.remove(0))], token_check: None }
        }
        None => here(args)?,
    };
    let token_check_us = measured.token_check.map(|time| time.as_secs_f64() * 1e6);
    let mut fields: serde_json::Map<_, _> =
        measured.ways.iter().map(|(name, d)| (name.replace(' ', "_"), json!(d))).collect();
    fields.extend(token_check_us.map(|us| ("token_check_us".into(), json!(us))));
    let mut table = Table::new([
        ("ms", Align::Left),
        ("count", Align::Right),
        ("p50", Align::Right),
        ("p90", Align::Right),
        ("p99", Align::Right),
        ("max", Align::Right),
    ]);
    for (name, distribution) in &measured.ways {
        let [count, p50, p90, p99, max] = distribution.cells();
        table.row([(*name).into(), count, p50, p90, p99, max]);
    }
    let token = token_check_us.map_or_else(String::new, |us| format!("\ncheck of a token: {us:.2} µs\n"));
    Findings::new(&fields, table.to_string() + &token)
}

/// A path to the model: makes a real-time request and waits for the answer.
type Way<'a> = Box<dyn FnMut() -> Result<()> + 'a>;

/// Requests by an invoker.
fn way(invoker: &Invoker) -> Result<Way<'_>> {
    let inputs = inputs(invoker)?;
    Ok(Box::new(move || invoker.invoke(&inputs, Terms { priority: 1, deadline: None }).map(drop)))
}

fn inputs(invoker: &Invoker) -> Result<Vec<Tensor>> {
    InputSpecs::default().tensors(invoker.inputs(), &mut Random::new(0))
}

/// Sends each request over all paths in turn, so that disturbances affect all paths alike.
fn measure(args: &Args, mut ways: Vec<Way<'_>>) -> Result<Vec<Distribution>> {
    let mut times = vec![Vec::with_capacity(args.count.get() as usize); ways.len()];
    for index in 0..args.warm_up.saturating_add(args.count.get()) {
        for (way, times) in ways.iter_mut().zip(&mut times) {
            let start = Instant::now();
            way()?;
            if index >= args.warm_up {
                times.push(start.elapsed());
            }
        }
    }
    Ok(times.iter().map(|times| Distribution::of(times)).collect())
}

#[cfg(not(feature = "compiler"))]
fn here(_: &Args) -> Result<Measured> {
    Err(crate::failure::user_error(
        "this program was built without the compiler and cannot build the null model; use --url with a daemon that \
        serves one",
    ))
}

/// Serves the null model in this process, and measures it over all paths.
#[cfg(feature = "compiler")]
fn here(args: &Args) -> Result<Measured> {
    use crate::commands::served::{self, Served, null_model};
    use crate::invoker::Local;

    let python = peer_python(args)?;
    let folder = tempfile::tempdir()?;
    let (repository, bundle) = null_model(&args.engine, folder.path())?;

    let local = Invoker::Local(Local::start(&bundle, &ModelArgs::default(), &args.engine)?);
    let in_process = measure(args, vec![way(&local)?])?.remove(0);
    local.stop();

    let mut names = vec!["over HTTP", "over gRPC"];
    let mut daemons = vec![Served::start(&args.engine, &repository, folder.path(), None)?];
    let mut token_check = None;
    if args.tls {
        names.push("over TLS, with a token");
        daemons.push(Served::start(
            &args.engine,
            &repository,
            folder.path(),
            Some(served::certificate(folder.path())?),
        )?);
        token_check = Some(served::token_check(folder.path())?);
    }
    let mut others = Vec::new();
    let peer = python.map(|python| peer::Peer::start(&python, &folder.path().join("null.onnx"))).transpose()?;
    if let Some(peer) = &peer {
        names.push("FastAPI with ONNX Runtime");
        let remote = served::wait_until_ready(&peer.address, "null", &CredentialArgs::default())?;
        others.push(Invoker::Remote(remote));
    }
    let measured = over_all(args, &daemons, &others);
    for daemon in daemons {
        daemon.stop()?;
    }
    let ways = std::iter::once(("in process", in_process)).chain(names.into_iter().zip(measured?)).collect();
    Ok(Measured { ways, token_check })
}

/// The Python of the peer, if there is one.
///
/// # Errors
/// It lacks what the peer needs.
#[cfg(feature = "compiler")]
fn peer_python(args: &Args) -> Result<Option<PathBuf>> {
    let Some(Against::Fastapi) = args.against else { return Ok(None) };
    let python = crate::python::python(args.python.as_deref());
    crate::python::check(&python, peer::PACKAGES, "choose a Python that has them with --python")?;
    Ok(Some(python))
}

/// Measures the first daemon over HTTP and gRPC, and the others and other servers over HTTP.
#[cfg(feature = "compiler")]
fn over_all(args: &Args, daemons: &[crate::commands::served::Served], others: &[Invoker]) -> Result<Vec<Distribution>> {
    let invokers = daemons.iter().map(|daemon| &daemon.invoker).chain(others);
    let mut ways = invokers.map(way).collect::<Result<Vec<Way<'_>>>>()?;
    let first = daemons.first().context("there is a daemon")?;
    let (inputs, mut grpc) = (inputs(&first.invoker)?, grpc::Grpc::connect(first.grpc)?);
    ways.insert(1, Box::new(move || grpc.infer("null", &inputs)));
    measure(args, ways)
}

#[cfg(all(test, feature = "native"))]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_python_without_the_peer_is_refused() {
        let python = ["--against", "fastapi", "--python", "false"];
        let args = Cli::parse_from(["bench"].into_iter().chain(python)).args;
        let error = run(&args).map(drop).unwrap_err().to_string();
        assert!(error.contains("false cannot import fastapi"), "{error}");
    }

    #[test]
    fn the_null_model_answers_over_http_and_grpc() {
        let args = Cli::parse_from(["bench", "--count", "5", "--warm-up", "1"]).args;
        let findings = run(&args).unwrap();
        let json: serde_json::Value = serde_json::from_str(&findings.json).unwrap();
        for way in ["in_process", "over_HTTP", "over_gRPC"] {
            assert_eq!(json[way]["count"], 5, "{way}: {json}");
        }
    }
}
