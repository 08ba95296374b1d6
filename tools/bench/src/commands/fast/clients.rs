//! Many clients of one model: lanes beside turns of the whole device.
//!
//! KaaS gives a request the whole device until it ends. Its authors report 1.2 to 4.3 times the
//! throughput with MPS, where clients run beside each other. Lanes are Atoll's form of that.

use super::Args;
use super::pods::{Setting, busy, device, run_clients};
use crate::artifact;
use crate::commands::disb::{REEF_FILES, host_profile, read_reef};
use crate::device_name::DeviceName;
use crate::failure::user_error;
use crate::figures::Cells;
use anyhow::{Context, Result};
use atoll_sim::{LaneSetup, Model, device_by_name};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::thread::available_parallelism;

/// Numbers of clients.
const CLIENTS: [u32; 5] = [1, 2, 4, 8, 16];

/// What the paper of KaaS has.
const PAPER: &str = "MPS over KaaS 1.2 to 4.3";

/// Models, and on which device their profiles were measured.
pub(super) struct Source {
    pub(super) profiles: &'static str,
    pub(super) models: BTreeMap<String, Model>,
}

impl Source {
    /// REEF's profiles of `--profiles`, and this host's of `--host-profile`.
    fn all(args: &Args) -> Result<Vec<Source>> {
        let mut sources = Vec::new();
        if let Some(folder) = &args.profiles {
            sources.push(Source { profiles: "REEF's, MI50", models: of_reef(folder)? });
        }
        if !args.host_profile.is_empty() {
            let models = args.host_profile.iter().map(|path| of_host(path)).collect::<Result<_>>()?;
            sources.push(Source { profiles: "this host's", models });
        }
        if sources.is_empty() {
            return Err(user_error("figure `clients` needs --profiles DIR or --host-profile MODEL.kg"));
        }
        Ok(sources)
    }
}

fn of_reef(folder: &Path) -> Result<BTreeMap<String, Model>> {
    let units = device_by_name("mi50").context("there is an MI50")?.compute_units;
    let read = |(model, file): (&str, &str)| Ok((model.to_owned(), read_reef(folder, model, file, units, 0)?));
    REEF_FILES.into_iter().map(read).collect()
}

fn of_host(path: &Path) -> Result<(String, Model)> {
    let units = available_parallelism().map_or(1, NonZeroUsize::get) as u32;
    let bundle = artifact::open(path, DeviceName::Host)?;
    let name = bundle.graph().name.clone();
    let model = host_profile(&name, &bundle, units)?;
    Ok((name, model))
}

/// The rows of all profiles.
pub(super) fn lanes_and_turns(args: &Args) -> Result<Vec<Cells>> {
    let mut rows = Vec::new();
    for source in Source::all(args)? {
        rows.extend(compare(&source, args.seconds, args.seed)?);
    }
    Ok(rows)
}

/// Throughput of clients that take turns on the whole device, and of clients with a lane each, for
/// each model.
pub(super) fn compare(source: &Source, seconds: u64, seed: u64) -> Result<Vec<Cells>> {
    let units = device()?.compute_units;
    let mut rows = Vec::new();
    for model in source.models.keys() {
        for count in CLIENTS {
            let ids: Vec<String> = (1..=count).map(|number| format!("client-{number}")).collect();
            let lane = |id: &String| LaneSetup {
                compute_units: units / count,
                span: None,
                clients: vec![id.clone()],
                closes_at: None,
            };
            let lanes: Vec<LaneSetup> = ids.iter().map(lane).collect();
            let mut turns = None;
            for (sharing, policy, lanes) in [("turns", "sequential", &[][..]), ("lanes", "reset", &lanes)] {
                let clients = ids.iter().map(|id| busy(id.clone(), model)).collect();
                let setting = Setting { policy, models: &source.models, clients, lanes, shares: &[] };
                let found = run_clients(setting, seconds, seed)?;
                let per_s = found.all_per_s();
                let over_turns = per_s / turns.get_or_insert(per_s).max(f64::MIN_POSITIVE);
                rows.push(vec![
                    ("profiles", source.profiles.into()),
                    ("model", model.as_str().into()),
                    ("clients", u64::from(count).into()),
                    ("sharing", sharing.into()),
                    ("per_s", per_s.into()),
                    ("over_turns", over_turns.into()),
                    ("p99_ms", found.p99_ms().into()),
                    ("occupancy", found.occupancy().into()),
                    ("paper", if sharing == "lanes" && count == 16 { PAPER } else { "" }.into()),
                ]);
            }
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Cell;
    use atoll_core::LaunchProfile;
    use atoll_kgraph::{NodeProfile, ShapeProfile};
    use atoll_sim::Kernel;
    use std::sync::Arc;

    /// As REEF's profiles of ResNet: grids of 1 to 256 blocks, eight at most on a compute unit.
    fn as_reef() -> Model {
        let kernel = |blocks: u32| {
            let wave_ns: Vec<u64> = (0..8).map(|more| 20_000 + 2_000 * more).collect();
            Arc::new(Kernel { name: "k".into(), profile: LaunchProfile::new(blocks, wave_ns) })
        };
        let kernels = [64, 98, 98, 112, 196, 256].map(kernel);
        Model { name: "m".into(), kernels: kernels.into(), before_ns: 0, after_ns: 0 }
    }

    /// As `atoll profile` measures kernels on two cores.
    fn as_host() -> Model {
        let launch = |blocks: u32| {
            let total_ns = u64::from(blocks) * 25_000;
            NodeProfile { node: 0, kernel: "k".into(), blocks, total_ns, gap_ns: 1_000, wave_ns: vec![50_000] }
        };
        let launches = [16, 49, 98].map(launch).into();
        let shape = ShapeProfile { symbols: Vec::new(), runs: 1, before_ns: 0, total_ns: 0, after_ns: 0, launches };
        Model::of_profile("m", &shape, 2)
    }

    #[test]
    fn lanes_beat_turns_at_16_clients() {
        for (profiles, model) in [("REEF's, MI50", as_reef()), ("this host's", as_host())] {
            let source = Source { profiles, models: BTreeMap::from([("m".to_owned(), model)]) };
            let rows = compare(&source, 1, 1).unwrap();
            let find = |row: &Cells, name: &str| row.iter().find(|(key, _)| *key == name).unwrap().1.clone();
            assert!(rows.iter().all(|row| find(row, "profiles") == Cell::from(profiles)), "{rows:?}");
            let last = rows.last().unwrap();
            assert_eq!((find(last, "clients"), find(last, "sharing")), (Cell::from(16), "lanes".into()));
            let Cell::Number(over_turns) = find(last, "over_turns") else { panic!("{last:?}") };
            assert!(over_turns > 1.2, "{profiles}: lanes have {over_turns} times the throughput of turns");
        }
    }

    #[test]
    fn profiles_are_needed() {
        let error = lanes_and_turns(&super::super::tests::args(&["clients"])).err().unwrap().to_string();
        assert!(error.contains("needs --profiles"), "{error}");
    }
}
