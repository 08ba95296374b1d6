//! `atoll lease hold`: a process that has a lease as long as it runs.

use super::annotations;
use super::holder::{Ask, Holder};
use crate::client::{AskError, Client, URL_DEFAULT};
use crate::commands::instance::parse_number;
use crate::commands::random_id;
use crate::control::ClassName;
use crate::credentials::CredentialArgs;
use crate::failure::OrUserError;
use crate::interrupt::stop_on_interrupt;
use crate::output::parse_bytes;
use anyhow::{Context, Result};
use atoll_client::{AskedShare, GivenShare, LEASE_TTL_S, LeaseHold, LeaseReport, LeaseSpec};
use std::fs::Permissions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How often signals are looked for during a pause.
const LOOK: Duration = Duration::from_millis(50);

const EXAMPLES: &str = "\
Examples:
  atoll lease hold --function resnet50 --sm-partition 30 --quota-request 0.4 --gpu-mem 2G \\
      --lease-file lease.json
  atoll lease hold --url https://gpu-box:8000 --token-file token \\
      --function resnet50 --quota-request 0.4 --gpu-mem 2G

In a container of Kubernetes with units of `atoll.dev/sm-pct`, variables have the size of the lease, its \
request id and the address of the daemon. The units are compute units times time: with 15 of them and \
--quota-request 0.5, the lease has 30 % of the compute units.";

/// Hold a lease over HTTP until SIGTERM or SIGINT: ask for it, renew it, ask for another one when it
/// has ended, and release it at the end
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(super) struct Args {
    /// Address of the daemon
    #[arg(long, default_value = URL_DEFAULT, env = "ATOLL_URL")]
    url: String,

    #[command(flatten)]
    credentials: CredentialArgs,

    /// The function, as in resnet50
    #[arg(long, value_name = "FUNCTION")]
    function: String,

    /// Class of requests that name none [default: that of the function]
    #[arg(long, value_enum)]
    class: Option<ClassName>,

    /// Compute units of the device, in percent [default: from --sm-pct, else 100]
    #[arg(long, value_name = "PERCENT", value_parser = parse_number)]
    sm_partition: Option<f64>,

    /// Fraction of the time that it gets whenever it has work [default: from --sm-pct]
    #[arg(long, value_name = "FRACTION", value_parser = parse_number)]
    quota_request: Option<f64>,

    /// Fraction of the time that it gets at most [default: 1]
    #[arg(long, value_name = "FRACTION", value_parser = parse_number)]
    quota_limit: Option<f64>,

    /// Device memory for its requests and its part of the function's constants, for example 2G
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, env = "ATOLL_GPU_MEM")]
    gpu_mem: Option<u64>,

    /// Real-time slots [default: 1 for the real-time class, 0 otherwise]
    #[arg(long, value_name = "NUMBER", env = "ATOLL_REAL_TIME_SLOTS")]
    real_time_slots: Option<u32>,

    /// Compute units times time that it may have, in percent of a device
    #[arg(long, value_name = "PERCENT", value_parser = parse_number, env = "ATOLL_SM_PCT")]
    sm_pct: Option<f64>,

    /// File with the annotations of the pod, of which those of FaST-GShare say how large the lease
    /// is; flags win over them
    #[arg(long, value_name = "FILE")]
    annotations: Option<PathBuf>,

    /// Time to live without renewal, from 5 to 600
    #[arg(long, value_name = "SECONDS", default_value_t = LEASE_TTL_S)]
    ttl: i64,

    /// Name of this holder [default: that of the machine]
    #[arg(long, value_name = "NAME", env = "ATOLL_LEASE_HOLDER")]
    holder: Option<String>,

    /// Id of the request; a process that is started again with the same one gets the same lease
    /// [default: random]
    #[arg(long, value_name = "ID", env = "ATOLL_LEASE_REQUEST_ID")]
    request_id: Option<String>,

    /// File that has the lease and the address of the daemon as JSON while the lease is valid
    #[arg(long, value_name = "FILE")]
    lease_file: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let spec = spec(args)?;
    let client = Client::new(&args.url, &args.credentials)?;
    // A renewal that hangs leaves time for another one.
    let within = Duration::from_secs(u64::try_from(spec.ttl_s).unwrap_or(0).clamp(5, 600)) / 3;
    let stop = stop_on_interrupt()?;
    let mut file = LeaseFile { path: args.lease_file.as_deref(), url: &args.url, shown: None };
    // One of a process before.
    file.show(None)?;
    let mut holder = Holder::new(spec, random_id);
    let result = hold(&mut holder, &client, within, &stop, &mut file);
    let removed = file.show(None);
    if let Some(hold) = holder.hold()
        && let Err(error) = client.post(&format!("/v2/leases/{}/release", hold.lease), &body(&hold), within)
    {
        tracing::warn!(?error, "the lease was not released; it ends by its time to live");
    }
    result.and(removed)
}

/// The body of a renewal or release. The path names the lease.
fn body(hold: &LeaseHold) -> serde_json::Value {
    serde_json::json!({ "epoch": hold.epoch, "holder": hold.holder })
}

/// Holds the lease until a signal.
fn hold(
    holder: &mut Holder,
    client: &Client,
    within: Duration,
    stop: &AtomicBool,
    file: &mut LeaseFile<'_>,
) -> Result<()> {
    while !stop.load(Relaxed) {
        let before = holder.problem().map(str::to_owned);
        let sent = Instant::now();
        let answer = send(client, &holder.ask(), within);
        let pause = holder.answered(sent, answer)?;
        if let Some(problem) = holder.problem().filter(|problem| before.as_deref() != Some(*problem)) {
            tracing::warn!("{problem}");
        }
        file.show(holder.current(Instant::now()))?;
        let until = Instant::now() + pause;
        while Instant::now() < until && !stop.load(Relaxed) {
            std::thread::sleep(LOOK.min(until.saturating_duration_since(Instant::now())));
        }
    }
    Ok(())
}

fn send(client: &Client, ask: &Ask, within: Duration) -> Result<LeaseReport, AskError> {
    let answer = match ask {
        Ask::Grant(spec) => client.post("/v2/leases", spec, within)?,
        Ask::Renew(hold) => client.post(&format!("/v2/leases/{}/renew", hold.lease), &body(hold), within)?,
    };
    let lease = serde_json::from_slice(&answer).context("the answer is not a lease; is it a daemon of Atoll?");
    lease.map_err(AskError::Failed)
}

fn spec(args: &Args) -> Result<LeaseSpec> {
    let annotated = args.annotations.as_deref().map(annotations::read).transpose()?.unwrap_or_default();
    // Memory of the flag is what the container was given, if annotations ask for less.
    let flags = AskedShare {
        sm_partition: args.sm_partition,
        quota_request: args.quota_request,
        quota_limit: args.quota_limit,
        gpu_mem: None,
    };
    let given = GivenShare { sm_pct: args.sm_pct, gpu_mem: args.gpu_mem };
    let figures = flags.or(annotated).figures(given).or_user_error()?;
    let machine = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    Ok(LeaseSpec {
        request_id: args.request_id.clone().map_or_else(random_id, Ok)?,
        holder: args.holder.clone().unwrap_or_else(machine),
        function: args.function.clone(),
        class: args.class.map(Into::into),
        sm_partition: figures.sm_partition,
        quota_request: figures.quota_request,
        quota_limit: figures.quota_limit,
        gpu_mem: i64::try_from(figures.gpu_mem).unwrap_or(i64::MAX),
        real_time_slots: args.real_time_slots.map(i64::from),
        ttl_s: args.ttl,
    })
}

/// The file that names the lease to other programs.
struct LeaseFile<'a> {
    path: Option<&'a Path>,
    url: &'a str,
    /// The lease in it, by number and epoch, or that there is no file. `None` if that is not known.
    shown: Option<Option<(u64, u64)>>,
}

impl LeaseFile<'_> {
    /// Writes the lease, or removes the file if there is none. Replaces the file as a whole, so
    /// that readers never see a part.
    fn show(&mut self, lease: Option<&LeaseReport>) -> Result<()> {
        let wanted = lease.map(|lease| (lease.lease, lease.epoch));
        let Some(path) = self.path.filter(|_| self.shown != Some(wanted)) else { return Ok(()) };
        let done = match lease {
            Some(lease) => self.write(path, lease),
            None => match std::fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
                _ => Ok(()),
            },
        };
        self.shown = Some(wanted);
        done.with_context(|| format!("--lease-file {}", path.display())).or_user_error()
    }

    fn write(&self, path: &Path, lease: &LeaseReport) -> Result<()> {
        let mut content = serde_json::to_value(lease)?;
        content["url"] = self.url.into();
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(format!("{content:#}\n").as_bytes())?;
        // Other users read it, too: the file has no secret.
        file.as_file().set_permissions(Permissions::from_mode(0o644))?;
        file.persist(path)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(number: u64) -> LeaseReport {
        LeaseReport {
            lease: number,
            epoch: number + 1,
            tenant: atoll_client::Tenant::default(),
            holder: "h".into(),
            function: "f".into(),
            instance: format!("lease-{number}"),
            device: "host:0".into(),
            class: None,
            sm_partition: 30.0,
            quota_request: 0.4,
            quota_limit: 0.8,
            gpu_mem: 1,
            real_time_slots: 0,
            ttl_s: 15,
            expires_in_ms: 15_000,
        }
    }

    #[test]
    fn the_file_is_there_while_there_is_a_lease() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lease.json");
        std::fs::write(&path, "of a process before").unwrap();
        let mut file = LeaseFile { path: Some(&path), url: "http://daemon:8000", shown: None };
        file.show(None).unwrap();
        assert!(!path.exists());
        for number in [5, 5, 7] {
            file.show(Some(&lease(number))).unwrap();
            let content: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            assert_eq!(content["instance"], format!("lease-{number}"));
            assert_eq!(content["url"], "http://daemon:8000");
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        }
        file.show(None).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
        let none = folder.path().join("none/lease.json");
        let mut file = LeaseFile { path: Some(&none), url: "", shown: None };
        file.show(None).unwrap();
        assert!(file.show(Some(&lease(1))).unwrap_err().to_string().contains("--lease-file"));
    }

    #[test]
    fn ids_of_requests_are_random() {
        let (first, second) = (random_id().unwrap(), random_id().unwrap());
        assert!(first.len() == 32 && first != second, "{first} {second}");
    }
}
