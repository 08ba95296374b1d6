//! The daemon under test, its executors by tenant, and what is visible from outside: descriptors,
//! mappings, files, metrics.

use crate::cancel::without_device;
use crate::executors::{children, is_child_of, wait_until};
use crate::functions::{manifest, pack_grind, packed};
use crate::hostile::{pack_hostile, rights};
use crate::serve::{Daemon, LOG};
use anyhow::{Context, Result, ensure};
use atoll_client::{Class, Client, Deploy, ProcessReport, UsageReport};
use atoll_tests::chaos::{BOMB, infer, outputs_of};
use atoll_tests::{http, trained};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Tenant of the real-time requests whose latency is measured.
pub(super) const STEADY: &str = "steady";

/// Tenants whose executors are killed and stopped.
pub(super) const VICTIMS: [&str; 3] = ["a", "b", "local"];

/// Tenant whose kernels fault.
pub(super) const FAULTY: &str = "faulty";

/// Tenant whose kernels store to arbitrary addresses.
pub(super) const WILD: &str = "wild";

/// Tenant whose native code and whose clients attack the daemon.
pub(super) const HOSTILE: &str = "hostile";

/// Tenants with their functions. `grind` has the constants of a seed.
const FUNCTIONS: [(&str, &str, Class); 7] = [
    (STEADY, "grind", Class::RealTime),
    ("a", "grind", Class::BestEffort),
    ("b", "grind", Class::BestEffort),
    ("local", "grind", Class::BestEffort),
    (FAULTY, "faulty", Class::BestEffort),
    (WILD, "wild", Class::BestEffort),
    (HOSTILE, "hostile", Class::BestEffort),
];

/// The seed of a tenant's constants; some tenants share one.
pub(super) fn table_of(tenant: &str) -> u64 {
    u64::from(tenant == "local")
}

/// Options of the daemon: a short time limit of kernels, and default timeouts for hung executors.
const OPTIONS: [&str; 6] = ["--memory-limit", "256M", "--time-limit", "2", "--object-memory", "16M"];

/// Number of log lines shown after a failure.
const LINES_SHOWN: usize = 25;

/// The daemon and its files.
pub(super) struct House {
    pub(super) folder: tempfile::TempDir,
    pub(super) daemon: Daemon,
    /// Number of bytes of the log that were read.
    log_bytes: usize,
    /// Executors by tenant, according to the log.
    executors: BTreeMap<String, u32>,
}

/// Open and mapped files of a process, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Holdings {
    pub(super) descriptors: BTreeMap<String, usize>,
    /// Mapped shared memory; each file counts once.
    pub(super) segments: BTreeMap<String, usize>,
}

impl House {
    /// Starts a daemon and deploys everything. Also returns its holdings before the deployment.
    pub(super) fn open() -> Result<(House, Holdings)> {
        let folder = tempfile::tempdir()?;
        let repository = folder.path().join("repository");
        std::fs::create_dir(&repository)?;
        std::fs::copy(trained("magika", &[])?.path, repository.join("model.onnx"))?;
        for seed in 0..2 {
            pack_grind(folder.path(), seed)?;
        }
        for name in [FAULTY, WILD] {
            packed(&manifest(name), &folder.path().join(name).with_extension("kg"))?;
        }
        pack_hostile(folder.path())?;
        std::fs::write(folder.path().join(BOMB), atoll_hostile_client::bombs::bundle())?;
        let daemon = start(folder.path())?;
        let house = House { folder, daemon, log_bytes: 0, executors: BTreeMap::new() };
        let empty = house.holdings()?;
        house.deploy()?;
        Ok((house, empty))
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn bundle(&self, tenant: &str) -> PathBuf {
        self.path(&format!("grind-{}.kg", table_of(tenant)))
    }

    pub(super) fn client(&self, tenant: &str) -> Result<Client> {
        Ok(Client::connect_as(&self.path("atoll.sock"), Some(tenant.parse()?))?)
    }

    /// Deploys all functions.
    pub(super) fn deploy(&self) -> Result<()> {
        for (tenant, function, class) in FUNCTIONS {
            let bundle =
                if function == "grind" { self.bundle(tenant) } else { self.path(function).with_extension("kg") };
            self.client(tenant)?.deploy(&bundle, &Deploy { class: Some(class), ..Deploy::default() })?;
        }
        Ok(())
    }

    /// The tenants and their deployed functions.
    pub(super) fn functions() -> impl Iterator<Item = (&'static str, &'static str)> {
        FUNCTIONS.into_iter().map(|(tenant, function, _)| (tenant, function))
    }

    /// Inputs of the model, with the outputs.
    pub(super) fn examples(&self) -> Result<Vec<(String, String)>> {
        let example = |step: u64| {
            let data: Vec<u64> = (0..2048).map(|i| i * step % 257).collect();
            let inputs = format!(r#"[{{"name":"bytes","shape":[1,2048],"datatype":"INT32","data":{data:?}}}]"#);
            let (status, body) = infer(&self.daemon.http, "model", &inputs)?;
            ensure!(status == 200, "{body}");
            Ok((inputs, outputs_of(&body).context("outputs")?.to_string()))
        };
        [1, 7, 100].into_iter().map(example).collect()
    }

    pub(super) fn pid(&self) -> i32 {
        self.daemon.process().id() as i32
    }

    /// The executor of a tenant, if one is running.
    pub(super) fn executor(&mut self, tenant: &str) -> Result<Option<Pid>> {
        let log = std::fs::read(self.path(LOG))?;
        let end = log.iter().rposition(|&byte| byte == b'\n').map_or(self.log_bytes, |at| at + 1);
        let fresh = String::from_utf8_lossy(&log[self.log_bytes..end]).into_owned();
        self.log_bytes = end;
        for line in fresh.lines() {
            ensure!(!line.contains("panicked") && !line.contains("internal error"), "the daemon says: {line}");
            if let Some((_, fields)) = line.split_once("executor started ") {
                let field = |name: &str| fields.split(' ').find_map(|field| field.strip_prefix(name));
                let (domain, pid) = (field("domain="), field("pid=").and_then(|pid| pid.parse().ok()));
                self.executors.insert(domain.context("a domain")?.to_owned(), pid.context("a number")?);
            }
        }
        let pid = self.executors.get(tenant).and_then(|pid| Pid::from_raw(*pid as i32));
        Ok(pid.filter(|pid| is_child_of(pid.as_raw_nonzero().get(), self.pid())))
    }

    /// Continues all stopped executors of the daemon.
    pub(super) fn wake_executors(&self) -> Result<()> {
        for pid in children(self.pid())?.into_iter().filter_map(Pid::from_raw) {
            // It may have ended meanwhile.
            let _ = kill_process(pid, Signal::CONT);
        }
        Ok(())
    }

    /// Kills the daemon, waits until its executors have ended, and starts another one on its files.
    pub(super) fn kill_and_restart(&mut self) -> Result<()> {
        let orphans = children(self.pid())?;
        self.daemon.signal(Signal::KILL)?;
        wait_until("its executors gone", || Ok(!orphans.iter().any(|pid| is_alive(*pid))))?;
        self.executors.clear();
        self.daemon = start(self.folder.path())?;
        Ok(())
    }

    /// The end of the log; if a thread panicked, everything from there on.
    pub(super) fn last_words(&self) -> String {
        let log = std::fs::read_to_string(self.path(LOG)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let panic = lines.iter().position(|line| line.contains("panicked"));
        let from = panic.unwrap_or(lines.len().saturating_sub(LINES_SHOWN));
        lines[from..].iter().take(LINES_SHOWN).copied().collect::<Vec<_>>().join("\n  ")
    }

    pub(super) fn processes(&self) -> Result<ProcessReport> {
        Ok(Client::connect(&self.path("atoll.sock"))?.processes()?)
    }

    pub(super) fn usage(&self) -> Result<UsageReport> {
        Ok(Client::connect(&self.path("atoll.sock"))?.usage()?)
    }

    /// All metrics of the daemon, which has one device.
    pub(super) fn metrics(&self) -> Result<BTreeMap<String, f64>> {
        let (status, text) = http::ask(&self.daemon.metrics, "GET", "/metrics", "")?;
        ensure!(status == 200, "{text}");
        let sample = |line: &str| {
            line.rsplit_once(' ').and_then(|(name, value)| Some((without_device(name), value.parse().ok()?)))
        };
        Ok(text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect())
    }

    /// Holdings of the daemon's process.
    pub(super) fn holdings(&self) -> Result<Holdings> {
        let process = PathBuf::from(format!("/proc/{}", self.pid()));
        let mut holdings = Holdings::default();
        for entry in std::fs::read_dir(process.join("fd"))? {
            // It may be closed meanwhile.
            let Ok(target) = std::fs::read_link(entry?.path()) else { continue };
            *holdings.descriptors.entry(kind(&target.to_string_lossy())).or_default() += 1;
        }
        let maps = std::fs::read_to_string(process.join("maps"))?;
        let mapped = maps
            .lines()
            .map(|line| line.split_whitespace().skip(4))
            .filter_map(|mut fields| Some((fields.next()?, fields.next()?)));
        let segments: BTreeSet<_> =
            mapped.filter(|(_, path)| path.starts_with("/memfd:") || path.starts_with("/dev/shm")).collect();
        segments.iter().for_each(|(_, path)| *holdings.segments.entry(kind(path)).or_default() += 1);
        Ok(holdings)
    }

    /// Names of the files in a folder of the daemon's state.
    pub(super) fn stored(&self, folder: &str) -> Result<BTreeSet<String>> {
        let entries = std::fs::read_dir(self.path("atoll").join(folder))?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }
}

/// Starts the daemon. It trusts native code of the tenants, so their kernels run in the jail
/// without a fence.
fn start(folder: &Path) -> Result<Daemon> {
    let config = folder.join("atoll.toml");
    std::fs::write(&config, format!("[default]\ntrusted_code = true\n{}", rights(&[HOSTILE])))?;
    let config = config.to_string_lossy().into_owned();
    Daemon::start_with(&folder.join("repository"), folder, &[&OPTIONS[..], &["--config", &config]].concat())
}

fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Kind of a descriptor or mapping, without its number.
fn kind(target: &str) -> String {
    let name = target.strip_suffix(" (deleted)").unwrap_or(target);
    match name.split_once(":[") {
        Some((kind, _)) => kind.to_owned(),
        None if name.contains("/atoll/objects/") => "an object's file".to_owned(),
        None if name.contains("/atoll/functions/") => "a bundle's file".to_owned(),
        None => name.to_owned(),
    }
}
