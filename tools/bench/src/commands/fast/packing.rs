//! Figure 11: the devices that a set of pods needs, and how they use them.

use super::Args;
use super::figures::{host, need};
use super::pods::{BERT, Pod, RESNET, RNNT, Run, Shape, Units, run};
use crate::figures::Cells;
use anyhow::Result;
use atoll_core::ClientId;
use atoll_core::packing::{InstanceId, Layout, Place};
use atoll_core::scaling::{Constants, Host, Need, Placed, Spot, Stay, assign};
use std::collections::BTreeMap;

/// The pods of §5.4: how many of which, their partition and their quota.
const PODS: [(Shape, usize, u32, u32); 3] = [(RESNET, 4, 12, 40), (RNNT, 2, 24, 40), (BERT, 2, 50, 60)];

/// How pods come to devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheduler {
    /// Each pod has a whole device for its part of the time.
    TimeSharing,
    /// All pods are known, and the largest one is placed first.
    Packing,
    /// Each pod is placed before the next one is known, and stays on its device.
    ListedOrder,
}

impl Scheduler {
    const ALL: [Scheduler; 3] = [Scheduler::TimeSharing, Scheduler::Packing, Scheduler::ListedOrder];

    fn name(self) -> &'static str {
        match self {
            Scheduler::TimeSharing => "time sharing",
            Scheduler::Packing => "packing",
            Scheduler::ListedOrder => "packing in listed order",
        }
    }

    /// What the paper found: devices, and utilisation and occupancy over time sharing.
    fn paper(self) -> &'static str {
        match self {
            Scheduler::TimeSharing => "4 devices",
            Scheduler::Packing => "1 device, utilisation 1.34, occupancy 3.13",
            Scheduler::ListedOrder => "",
        }
    }

    /// The device of each pod; `None` if there is no room.
    fn devices(self, needs: &[Need]) -> Vec<Option<usize>> {
        let hosts: Vec<Host> = vec![host(); needs.len()];
        let wanted: Vec<(InstanceId, Need)> = (0..).map(InstanceId).zip(needs.iter().copied()).collect();
        // Those that are placed together.
        let together = if self == Scheduler::ListedOrder { 1 } else { wanted.len() };
        let mut devices = vec![None; needs.len()];
        let mut placed = Vec::new();
        for wanted in wanted.chunks(together) {
            for (id, spot) in assign(&hosts, &placed, wanted, 0).spots {
                let Spot::Now { device, .. } = spot else { continue };
                devices[id.0 as usize] = Some(device);
                placed.push(Placed { id, need: needs[id.0 as usize], device, stay: Stay::Fixed });
            }
        }
        devices
    }

    fn pods(self) -> Vec<Pod> {
        let pods = PODS.iter().flat_map(|&(shape, count, partition, quota)| {
            let partition = if self == Scheduler::TimeSharing { 100 } else { partition };
            let pod = Pod { shape, quotas: Some((quota, quota)), partition, units: Units::Any };
            std::iter::repeat_n(pod, count)
        });
        pods.collect()
    }
}

fn need_of(pod: &Pod) -> Need {
    let quota = pod.quotas.map_or(100, |(request, _)| request);
    need(pod.partition, quota, 0, Constants { function: 0, bytes: 0 })
}

/// Binds the pods of a device to the units of their rectangles in its plan.
fn bind(pods: &mut [Pod]) {
    let mut layout = Layout::new(host().divisible);
    for (at, pod) in (0..).zip(&*pods) {
        layout.set(ClientId(at), &need_of(pod).share);
    }
    for (client, place) in layout.places() {
        if let Place::Bound(span) = place {
            pods[client.0 as usize].units = Units::Span(span);
        }
    }
}

/// Figure 11: eight pods that share devices in time only, and that are packed.
pub(super) fn packed(args: &Args) -> Result<Vec<Cells>> {
    let mut rows: Vec<Cells> = Vec::new();
    let mut yardstick = None;
    for scheduler in Scheduler::ALL {
        let pods = scheduler.pods();
        let needs: Vec<Need> = pods.iter().map(need_of).collect();
        let mut devices: BTreeMap<usize, Vec<Pod>> = BTreeMap::new();
        for (pod, device) in pods.iter().zip(scheduler.devices(&needs)) {
            if let Some(device) = device {
                devices.entry(device).or_default().push(*pod);
            }
        }
        devices.values_mut().for_each(|pods| bind(pods));
        let bound = devices.values().flatten().filter(|pod| pod.units != Units::Any).count() as u64;
        let runs = devices.values().map(|pods| run(pods, args.seconds, args.seed)).collect::<Result<Vec<Run>>>()?;
        let mean = |of: fn(&Run) -> f64| runs.iter().map(of).sum::<f64>() / runs.len().max(1) as f64;
        let (utilisation, occupancy) = (mean(Run::utilisation), mean(Run::occupancy));
        let (over_utilisation, over_occupancy) = *yardstick.get_or_insert((utilisation, occupancy));
        rows.push(vec![
            ("scheduler", scheduler.name().into()),
            ("devices", (devices.len() as u64).into()),
            ("pods", devices.values().map(|pods| pods.len() as u64).sum::<u64>().into()),
            ("bound_pods", bound.into()),
            ("utilisation", utilisation.into()),
            ("occupancy", occupancy.into()),
            ("utilisation_over_time_sharing", (utilisation / over_utilisation).into()),
            ("occupancy_over_time_sharing", (occupancy / over_occupancy).into()),
            ("per_s", runs.iter().map(Run::all_per_s).sum::<f64>().into()),
            ("paper", scheduler.paper().into()),
        ]);
    }
    Ok(rows)
}
