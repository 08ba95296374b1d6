//! Fits the instances of a function to a load, within the limits of its settings.

use super::algorithm::{Change, Instance, ScaleError, scale, scale_down};
use super::config::ScalingConfig;
use super::profile::{Point, Profile};
use crate::packing::InstanceId;

impl ScalingConfig {
    /// Adds instances for a load, up to the maximum; then enlarges existing ones. New instances
    /// have the point `of_each`; if it is `None`, the algorithm chooses their points.
    ///
    /// # Errors
    /// As [`scale`].
    pub(super) fn grow(
        &self,
        profile: &Profile,
        running: &[Instance],
        load: u64,
        slo_ns: u64,
        of_each: Option<Point>,
    ) -> Result<Change, ScaleError> {
        let capacity = capacity_of(running);
        let room = (self.max_instances as usize).saturating_sub(running.len());
        // A load that the maximum number of instances cannot cover is no error: instances are
        // enlarged below.
        let of_one = of_each.or_else(|| profile.most_efficient(slo_ns)).map_or(0, |point| point.throughput);
        let coverable = capacity.saturating_add(of_one.saturating_mul(room as u64));
        let mut change = match of_each {
            Some(point) => {
                let count = load.min(coverable).saturating_sub(capacity).div_ceil(of_one.max(1));
                Change { add: vec![point; count as usize], ..Change::default() }
            }
            None => scale(profile, running, load.min(coverable), slo_ns)?,
        };
        // If the capacity exceeds the load, the algorithm removes instances, which is not wanted
        // here.
        change.remove.clear();
        let smallest = || profile.within(slo_ns).min_by_key(|point| (point.throughput, point.area()));
        while running.len() + change.add.len() < self.min_instances as usize {
            let Some(point) = smallest() else { break };
            change.add.push(point);
        }
        if change.add.len() >= room {
            let added: u64 = change.add.iter().map(|point| point.throughput).sum();
            let missing = load.saturating_sub(capacity).saturating_sub(added);
            change.resize.extend(enlarged(profile, running, missing, slo_ns));
        }
        Ok(change)
    }

    /// Removes instances that a load does not need, down to the minimum; then shrinks the largest.
    ///
    /// # Errors
    /// As [`scale`].
    pub(super) fn shrink(&self, profile: &Profile, running: &[Instance], load: u64) -> Result<Change, ScaleError> {
        // The highest load of the cool-down may exceed the capacity; nothing is added here.
        let load = load.min(capacity_of(running));
        let mut change = scale(profile, running, load, self.slo_ns)?;
        let least = self.min_instances as usize;
        change.remove.truncate(running.len().saturating_sub(least));
        let stays = |instance: &&Instance| !change.remove.contains(&instance.id);
        let left: Vec<Instance> = running.iter().filter(stays).copied().collect();
        let left = capacity_of(&left);
        let largest = running.iter().filter(stays).max_by_key(|instance| instance.point.area());
        let surplus = left.saturating_sub(load);
        let is_least = running.len() <= least.max(1) && change.remove.is_empty();
        if let Some(largest) = largest.filter(|_| is_least && surplus > 0) {
            let needed = largest.point.throughput.saturating_sub(surplus).max(1);
            let sufficient = profile.within(self.slo_ns).filter(|point| point.throughput >= needed);
            let smaller = sufficient.min_by_key(|point| (point.area(), point.throughput));
            change.resize = smaller
                .filter(|point| point.area() < largest.point.area())
                .map(|point| (largest.id, point))
                .into_iter()
                .collect();
        }
        Ok(change)
    }
}

/// Removes the instances that a load does not need, the least efficient ones first, but keeps at
/// least `least`. Then resizes larger instances to `point` where the load allows it.
pub(super) fn fitted(running: &[Instance], load: u64, point: Point, least: usize) -> Change {
    let capacity = capacity_of(running);
    let mut change = scale_down(running, capacity.saturating_sub(load));
    change.remove.truncate(running.len().saturating_sub(least));
    let mut left: Vec<Instance> = running.to_vec();
    left.retain(|instance| !change.remove.contains(&instance.id));
    left.sort_by_key(|instance| (std::cmp::Reverse(instance.point.area()), instance.id));
    let mut capacity = capacity_of(&left);
    for instance in left.iter().filter(|instance| instance.point.area() > point.area()) {
        let after = (capacity - instance.point.throughput).saturating_add(point.throughput);
        if after >= load {
            capacity = after;
            change.resize.push((instance.id, point));
        }
    }
    change
}

/// The throughput of instances together, in thousandths of a request per second.
pub(super) fn capacity_of(running: &[Instance]) -> u64 {
    running.iter().map(|instance| instance.point.throughput).fold(0, u64::saturating_add)
}

/// The latency target that the profile can keep: the SLO, or the profile's lowest latency if no
/// point keeps the SLO. The latter comes with the error.
pub(super) fn kept(profile: &Profile, slo_ns: u64) -> (u64, Option<ScaleError>) {
    match profile.points().iter().map(|point| point.latency_ns).min() {
        Some(best_ns) if best_ns > slo_ns => (best_ns, Some(ScaleError::Slo { slo_ns, best_ns })),
        _ => (slo_ns, None),
    }
}

/// Enlarges the smallest instance: to a point that serves `missing` more, or to the point with the
/// highest throughput if none does.
fn enlarged(profile: &Profile, running: &[Instance], missing: u64, slo_ns: u64) -> Option<(InstanceId, Point)> {
    let smallest = running.iter().min_by_key(|instance| (instance.point.throughput, instance.id))?;
    let needed = smallest.point.throughput.saturating_add(missing);
    let sufficient = profile.within(slo_ns).filter(|point| point.throughput >= needed);
    let point = sufficient
        .min_by_key(|point| (point.area(), point.throughput))
        .or_else(|| profile.within(slo_ns).max_by_key(|point| point.throughput))?;
    (missing > 0 && point.throughput > smallest.point.throughput).then_some((smallest.id, point))
}
