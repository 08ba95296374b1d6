//! Publishes the devices of the node as slices, and keeps them as they should be.

use crate::api::Api;
use crate::slices::{LAYOUTS, Layout, Node, writes};
use atoll_kubernetes::capacity::{Capacity, Device};
use atoll_kubernetes::request::Refused;
use clap::ValueEnum;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Pause between two looks at the capacity of the daemon.
const LOOK: Duration = Duration::from_millis(250);

/// Pause between two reads of the slices: the kubelet deletes them when the driver is away for long.
const ROUND: Duration = Duration::from_secs(15);

/// Longest pause after a failure.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Pause between two times of asking which features the API server has.
const FEATURES: Duration = Duration::from_secs(600);

/// How devices are shared, as the command line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sharing {
    /// As well as the API server can: capacity, else counters, else whole
    Auto,
    /// Claims consume any part of a device (KEP-5075)
    Capacity,
    /// Claims get parts of fixed sizes, which consume shared counters (KEP-4815)
    Counters,
    /// A claim gets a whole device
    Whole,
}

impl Sharing {
    /// The layouts to try, in order.
    fn layouts(self) -> Vec<Layout> {
        let is_possible = |layout: &Layout| match self {
            Sharing::Auto => true,
            Sharing::Capacity => *layout == Layout::Capacity,
            Sharing::Counters => matches!(layout, Layout::Counters | Layout::CountersInSlice),
            Sharing::Whole => *layout == Layout::Whole,
        };
        LAYOUTS.into_iter().filter(is_possible).collect()
    }
}

/// Publishes the devices of a node.
#[derive(Debug)]
pub(crate) struct Publisher {
    api: Arc<Api>,
    node: String,
    sharing: Sharing,
    /// The layout that the API server keeps, and when it was asked.
    layout: Option<(Layout, Instant)>,
}

impl Publisher {
    pub(crate) fn new(api: Arc<Api>, node: String, sharing: Sharing) -> Publisher {
        Publisher { api, node, sharing, layout: None }
    }

    /// Publishes for as long as the daemon is watched.
    pub(crate) fn run(mut self, mut capacity: watch::Receiver<Arc<Capacity>>) {
        let (mut failures, mut next) = (0, Instant::now());
        loop {
            match capacity.has_changed() {
                Err(_) => return,
                Ok(is_new) if is_new || Instant::now() >= next => {}
                Ok(_) => {
                    std::thread::sleep(LOOK);
                    continue;
                }
            }
            let current = Arc::clone(&capacity.borrow_and_update());
            // Before the first answer of the daemon its devices are not known: what an earlier process
            // has published stays.
            if current.devices.is_empty() {
                next = Instant::now() + LOOK;
                continue;
            }
            let pause = match self.round(&current.devices) {
                Ok(()) => {
                    failures = 0;
                    ROUND
                }
                Err(Refused { status, message }) => {
                    if status == Some(404) {
                        self.api.forget();
                    }
                    self.layout = None;
                    failures = u32::min(failures + 1, 8);
                    tracing::warn!(message, "the devices are not published");
                    Duration::from_millis(500).saturating_mul(1 << failures).min(PAUSE_MAX)
                }
            };
            next = Instant::now() + pause;
        }
    }

    /// Makes the slices of the API server those of the devices.
    fn round(&mut self, devices: &[Device]) -> Result<(), Refused> {
        let there = self.api.slices(&self.node)?;
        let Some(layout) = self.layout(devices)? else { return Ok(()) };
        let wanted = layout.slices(&self.node, devices);
        // The node is read only if something is to be written.
        let unknown = Node { name: self.node.clone(), uid: String::new() };
        if writes(&unknown, &there, &wanted).is_empty() {
            return Ok(());
        }
        let node = self.api.node(&self.node)?;
        let writes = writes(&node, &there, &wanted);
        tracing::info!(slices = wanted.len(), writes = writes.len(), ?layout, "publishing the devices");
        for write in writes {
            self.api.write(write)?;
        }
        Ok(())
    }

    /// The best layout that the API server keeps. `None` if it was never asked and no device takes
    /// leases.
    fn layout(&mut self, devices: &[Device]) -> Result<Option<Layout>, Refused> {
        if let Some((layout, asked_at)) = self.layout
            && asked_at.elapsed() < FEATURES
        {
            return Ok(Some(layout));
        }
        // Whether a device takes leases has no influence on what is kept.
        let Some(device) = devices.first() else { return Ok(None) };
        let device = Device { is_healthy: true, ..device.clone() };
        for layout in self.sharing.layouts() {
            let slices = layout.slices(&self.node, std::slice::from_ref(&device));
            let Some(slice) = slices.first() else { continue };
            let is_kept = match self.api.tried(slice) {
                Ok(stored) => layout.is_kept(&stored),
                // Not every version has every layout.
                Err(Refused { status: Some(400 | 422), message }) => {
                    tracing::debug!(message, ?layout, "the API server does not take this layout");
                    false
                }
                Err(refused) => return Err(refused),
            };
            if is_kept {
                self.layout = Some((layout, Instant::now()));
                return Ok(Some(layout));
            }
        }
        let name = self.sharing.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        Err(Refused { status: None, message: format!("the API server does not have the feature for --sharing={name}") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_limits_the_layouts() {
        assert_eq!(Sharing::Auto.layouts(), LAYOUTS);
        assert_eq!(Sharing::Capacity.layouts(), [Layout::Capacity]);
        assert_eq!(Sharing::Counters.layouts(), [Layout::Counters, Layout::CountersInSlice]);
        assert_eq!(Sharing::Whole.layouts(), [Layout::Whole]);
    }
}
