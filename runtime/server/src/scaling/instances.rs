//! The instances of a model, as the autoscaler observes and changes them.

use super::placing::{self, Room, free_key};
use super::state::{Kind, Scaled};
use crate::app::App;
use crate::instances::{Instance, InstanceError, client};
use crate::limits::SCALING_SMALLER_TRIES_MAX;
use crate::model::Model;
use crate::repository::scaling::ScalingSettings;
use atoll_core::packing::InstanceId;
use atoll_core::routing::Standing;
use atoll_core::scaling::{self, Change, INSTANCES_MAX, Point, Profile, Spot};
use atoll_engine::{Class, FunctionKey, ShareSpec};
use std::sync::Arc;

/// An instance of the model.
pub(super) struct Known {
    key: FunctionKey,
    instance: Arc<Instance>,
    standing: Option<Standing>,
    is_draining: bool,
    /// Whether its share is in force on a device, so that requests can run under it.
    holds: bool,
}

/// The instances of a model at one moment.
pub(super) struct Group {
    /// Instances that the autoscaler created. The index is their [`InstanceId`].
    own: Vec<Known>,
    others: Vec<Known>,
    /// Number of devices that serve the requests of an instance without a device of its own.
    devices: u64,
}

impl Group {
    pub(super) fn of(app: &App, model: &Model) -> Group {
        let function = &model.key;
        // Instances of leases do not count, since only requests that name them run under them.
        let of_function = |(key, instance): &(FunctionKey, Arc<Instance>)| {
            key.tenant == function.tenant && instance.function == function.name && instance.lease.is_none()
        };
        let known = |(key, instance): (FunctionKey, Arc<Instance>)| Known {
            standing: app.instances.standing(&key, &instance),
            is_draining: app.instances.is_draining(&key),
            holds: app.engine.holds_share(&client(&key)),
            key,
            instance,
        };
        let all = app.instances.all().into_iter().filter(of_function).map(known);
        let (own, others) = all.partition(|known| known.instance.autoscaled.is_some());
        let states = app.engine.devices_state().devices;
        let serves = |state: &&atoll_fleet::DeviceState| !state.is_lost && !state.is_drained;
        let devices = match states.is_empty() {
            true => model.devices.len(),
            false => model.on_its_devices(&states).filter(serves).count(),
        };
        Group { own, others, devices: devices.max(1) as u64 }
    }

    /// The instances that accept requests, each with its point: its throughput by the profile, or
    /// as measured.
    pub(super) fn running(&self, profile: Option<&Profile>) -> Vec<scaling::Instance> {
        let own = self.own.iter().zip(0..).filter(|(known, _)| known.holds && !known.is_draining);
        own.map(|(known, id)| scaling::Instance { id: InstanceId(id), point: self.point(known, profile) }).collect()
    }

    /// The point of an instance by the profile; without a profile, with its measured throughput.
    fn point(&self, known: &Known, profile: Option<&Profile>) -> Point {
        let percent = |value: f64| value.round().clamp(1.0, 100.0) as u32;
        let (partition, quota) = (percent(known.instance.sm_partition), percent(known.instance.quota_request * 100.0));
        let estimate = profile.and_then(|profile| profile.estimate(partition, quota));
        estimate.map_or_else(
            || Point { partition, quota, throughput: measured(known), latency_ns: 0 },
            |estimate| estimate.point,
        )
    }

    /// The devices that serve an instance.
    fn devices_of(&self, known: &Known) -> u64 {
        if known.instance.device.is_some() { 1 } else { self.devices }
    }

    /// Instances of operators that can serve all requests of the model. One with a class of its own
    /// counts only if all recent requests are of that class (`only`).
    fn helpers(&self, only: Option<Class>) -> impl Iterator<Item = &Known> {
        let serves_all = move |known: &&Known| known.instance.class.is_none_or(|class| Some(class) == only);
        self.others.iter().filter(|known| known.holds).filter(serves_all)
    }

    /// The throughput of the instances of operators: as measured, otherwise by the profile.
    pub(super) fn base(&self, profile: Option<&Profile>, only: Option<Class>) -> u64 {
        let of_one = |known: &Known| match measured(known) {
            0 => self.point(known, profile).throughput,
            measured => measured,
        };
        let of = |known: &Known| of_one(known).saturating_mul(self.devices_of(known));
        self.helpers(only).map(of).fold(0, u64::saturating_add)
    }

    /// Requests that were given to instances and that no device works on yet.
    pub(super) fn queued(&self, only: Option<Class>) -> u64 {
        let all = self.own.iter().chain(self.helpers(only));
        let beyond = |known: &Known| {
            let Standing { in_flight, batch, .. } = known.standing?;
            Some(u64::from(in_flight).saturating_sub(self.devices_of(known).saturating_mul(batch.into())))
        };
        all.filter_map(beyond).sum()
    }

    /// Starts to drain instances of the autoscaler whose share is in force on no device any more.
    /// They serve no requests, and new ones are created where there is room.
    pub(super) fn remove_refused(&self, app: &App, scaled: &mut Scaled) {
        for known in self.own.iter().filter(|known| !known.holds && !known.is_draining) {
            tracing::warn!(
                instance = %known.key,
                device = known.instance.device,
                "the share of an instance is not in force any more; the instance will be removed, and another one \
                 created if there is room"
            );
            app.instances.set_draining(&known.key, true);
            scaled.count(Kind::Remove);
        }
    }

    /// Gives the autoscaler's instances this target latency.
    pub(super) fn set_target(&self, app: &App, latency_ms: u64) {
        for known in self.own.iter().filter(|known| known.instance.latency_ms != Some(latency_ms)) {
            let change = |instance: &mut Instance| {
                if instance.autoscaled.is_some() {
                    instance.latency_ms = Some(latency_ms);
                }
            };
            if let Err(error) = app.instances.resize(&known.key, change) {
                tracing::warn!(instance = %known.key, %error, "an instance keeps its target latency");
            }
        }
    }

    /// The mean device time of a request in nanoseconds, over the autoscaler's instances with this
    /// partition.
    pub(super) fn service_ns(&self, partition: u32) -> Option<u64> {
        let has_it = |known: &&Known| known.instance.sm_partition == f64::from(partition);
        let own = self.own.iter().filter(has_it).filter_map(|known| known.standing?.service_ns);
        let times: Vec<u64> = own.collect();
        times.iter().sum::<u64>().checked_div(times.len() as u64)
    }

    /// Applies a change, and stores `why` in the instances that it creates or resizes. Returns the
    /// part of the change that succeeded.
    pub(super) fn apply(&self, app: &App, model: &Model, scaled: &mut Scaled, change: &Change, why: &str) -> Change {
        let mut done = Change::default();
        for (id, key) in change.remove.iter().filter_map(|id| Some((id, self.key_of(*id)?))) {
            tracing::info!(instance = %key, why, "an instance gets no more requests and will be removed");
            app.instances.set_draining(key, true);
            scaled.count(Kind::Remove);
            done.remove.push(*id);
        }
        for (id, point) in &change.resize {
            let Some(key) = self.key_of(*id) else { continue };
            match resize(app, model, scaled, key, *point, why) {
                Ok(true) => {
                    scaled.count(Kind::Resize);
                    done.resize.push((*id, *point));
                }
                Ok(false) => {}
                Err(error) => scaled.refuse(model, &error),
            }
        }
        let mut may_stay: Vec<&Known> = self.own.iter().filter(|known| known.is_draining && known.holds).collect();
        // The largest first, as they are placed.
        let mut add = change.add.clone();
        add.sort_by_key(|point| std::cmp::Reverse(point.area()));
        for point in &add {
            let is_like = |known: &&Known| {
                let is_near = |a: f64, b: u32| (a - f64::from(b)).abs() < 0.5;
                is_near(known.instance.sm_partition, point.partition)
                    && is_near(known.instance.quota_request * 100.0, point.quota)
            };
            if let Some(at) = may_stay.iter().position(is_like) {
                let known = may_stay.remove(at);
                if app.instances.set_draining(&known.key, false) {
                    scaled.count(Kind::Create);
                    done.add.push(*point);
                    continue;
                }
            }
            let created = create(app, model, scaled, *point, why);
            done.add.extend(created);
            if created != Some(*point) {
                // There is no room for the remaining ones, either.
                break;
            }
        }
        done
    }

    fn key_of(&self, id: InstanceId) -> Option<&FunctionKey> {
        self.own.get(id.0 as usize).map(|known| &known.key)
    }
}

/// Resizes an instance, unless an operator has changed it meanwhile. If its device has no room for
/// that, an instance on another device may replace it. Returns whether it was resized or replaced;
/// `false` also if that has to wait until leaving instances are gone.
fn resize(
    app: &App,
    model: &Model,
    scaled: &mut Scaled,
    key: &FunctionKey,
    point: Point,
    why: &str,
) -> Result<bool, InstanceError> {
    let instance = made(&scaled.meter.settings, model, point, why.into(), None);
    let share = instance.share(&model.key.tenant).map_err(InstanceError::Share)?;
    if let Some(Spot::Later { .. }) = placing::resized(app, key, share) {
        scaled.awaits_room = true;
        return Ok(false);
    }
    match resize_here(app, model, scaled, key, point, why) {
        // Its device has no room for that; another one may have.
        Err(error) => match replace(app, model, scaled, key, instance, share) {
            Room::On(_) => Ok(true),
            Room::Later => Ok(false),
            Room::Nowhere(_) => Err(error),
        },
        other => other,
    }
}

/// Resizes an instance on its device.
fn resize_here(
    app: &App,
    model: &Model,
    scaled: &Scaled,
    key: &FunctionKey,
    point: Point,
    why: &str,
) -> Result<bool, InstanceError> {
    let mut is_own = false;
    let change = |instance: &mut Instance| {
        is_own = instance.autoscaled.is_some();
        if is_own {
            let device = instance.device.take();
            *instance = made(&scaled.meter.settings, model, point, why.to_owned(), device);
        }
    };
    match app.instances.resize(key, change) {
        Ok(()) => Ok(is_own),
        // The instance was removed meanwhile.
        Err(InstanceError::Unknown(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Replaces an instance, for whose new size its device has no room, by `successor` on another
/// device. Returns the place of the successor. The old instance drains.
fn replace(
    app: &App,
    model: &Model,
    scaled: &mut Scaled,
    key: &FunctionKey,
    successor: Instance,
    share: ShareSpec,
) -> Room {
    let nowhere = || Room::Nowhere("no other device has room".into());
    match placing::room(app, model, share, 0) {
        Room::On(device @ Some(_)) => {
            let successor = Instance { device: device.clone(), ..successor };
            let create = |key: FunctionKey| app.instances.create(key, successor, true);
            if free_key(app, &model.key).is_none_or(|key| create(key).is_err()) {
                return nowhere();
            }
            app.instances.set_draining(key, true);
            Room::On(device)
        }
        Room::Later => {
            scaled.awaits_room = true;
            Room::Later
        }
        Room::On(None) | Room::Nowhere(_) => nowhere(),
    }
}

/// A new instance with the size of a point.
fn made(settings: &ScalingSettings, model: &Model, point: Point, why: String, device: Option<String>) -> Instance {
    let limit = settings.quota_limit.unwrap_or(point.quota).max(point.quota);
    Instance {
        function: model.key.name.clone(),
        class: None,
        sm_partition: point.partition.into(),
        quota_request: f64::from(point.quota) / 100.0,
        quota_limit: f64::from(limit) / 100.0,
        gpu_mem: None,
        latency_ms: Some(settings.latency_ms),
        autoscaled: Some(why),
        device,
        lease: None,
    }
}

/// What the profile or its requests say of an instance on one device.
fn measured(known: &Known) -> u64 {
    known.standing.and_then(|standing| standing.throughput).unwrap_or(0)
}

/// Creates an instance with the size of a point or, if there is no room, of the smaller point with
/// the highest throughput that fits. Returns its point; `None` also if the instance has to wait
/// until others have moved.
///
/// Where no device has a rectangle, the instance is not bound to compute units: it has its fraction
/// of time on a device that still promises it.
fn create(app: &App, model: &Model, scaled: &mut Scaled, point: Point, why: &str) -> Option<Point> {
    let all = scaled.points();
    let mut smaller: Vec<Point> =
        all.iter().flat_map(Profile::points).filter(|other| other.area() < point.area()).copied().collect();
    smaller.sort_by_key(|point| std::cmp::Reverse((point.throughput, std::cmp::Reverse(point.area()))));
    smaller.truncate(SCALING_SMALLER_TRIES_MAX);
    let points: Vec<Point> = std::iter::once(point).chain(smaller).collect();
    let pay_ns = scaled.meter.settings.cool_down_ms.saturating_mul(1_000_000);
    let mut last = None;
    for &point in &points {
        let instance = made(&scaled.meter.settings, model, point, why.into(), None);
        let share = match instance.share(&model.key.tenant) {
            Ok(share) => share,
            Err(error) => {
                last = Some(InstanceError::Share(error));
                continue;
            }
        };
        match placing::room(app, model, share, pay_ns) {
            Room::On(device) => match create_at(app, model, scaled, Instance { device, ..instance }) {
                Ok(()) => return Some(point),
                Err(error) => last = Some(error),
            },
            Room::Later => {
                scaled.awaits_room = true;
                return None;
            }
            Room::Nowhere(reason) => last = Some(InstanceError::NoPlace { function: model.key.clone(), reason }),
        }
    }
    for device in placing::open_devices(app, model) {
        for &point in &points {
            let instance = made(&scaled.meter.settings, model, point, why.into(), device.clone());
            match create_at(app, model, scaled, instance) {
                Ok(()) => return Some(point),
                // Keeps the earlier error: that no device has room says more than the sum of the
                // shares on this device.
                Err(InstanceError::Share(_)) if last.is_some() => {}
                Err(error) => last = Some(error),
            }
        }
    }
    if let Some(error) = last {
        scaled.refuse(model, &error);
    }
    None
}

/// Creates an instance under the next free name.
fn create_at(app: &App, model: &Model, scaled: &mut Scaled, instance: Instance) -> Result<(), InstanceError> {
    let began = std::time::Instant::now();
    let none = || InstanceError::Exists(format!("{}-auto-{INSTANCES_MAX}", model.key.name));
    let key = free_key(app, &model.key).ok_or_else(none)?;
    app.instances.create(key, instance, true)?;
    scaled.created(began.elapsed());
    Ok(())
}
