//! The instances of a model, as its scaling sees and changes them.

use super::meter::Meter;
use super::state::{Kind, Scaled};
use crate::app::App;
use crate::instances::{Instance, InstanceError};
use crate::limits::{FUNCTION_NAME_BYTES_MAX, SCALING_SMALLER_TRIES_MAX};
use crate::model::Model;
use crate::repository::scaling::ScalingSettings;
use atoll_core::packing::InstanceId;
use atoll_core::routing::Standing;
use atoll_core::scaling::{self, Change, INSTANCES_MAX, Point, Profile};
use atoll_engine::FunctionKey;
use std::sync::Arc;

/// Room for `-auto-` and a number in an instance's name.
const SUFFIX_BYTES: usize = 12;

/// An instance of the model.
pub(super) struct Known {
    key: FunctionKey,
    instance: Arc<Instance>,
    standing: Option<Standing>,
    is_draining: bool,
}

/// The instances of a model at one moment.
pub(super) struct Group {
    /// Those that the scaling made; their index is their number.
    own: Vec<Known>,
    others: Vec<Known>,
    /// Devices that serve an instance's requests.
    pub(super) devices: u64,
}

impl Group {
    pub(super) fn of(app: &App, model: &Model) -> Group {
        let function = &model.key;
        // Requests reach the instance of a lease by its name only.
        let of_function = |(key, instance): &(FunctionKey, Arc<Instance>)| {
            key.tenant == function.tenant && instance.function == function.name && instance.lease.is_none()
        };
        let known = |(key, instance): (FunctionKey, Arc<Instance>)| Known {
            standing: app.instances.standing(&key, &instance),
            is_draining: app.instances.is_draining(&key),
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

    /// The instances that take requests, with what a profile says they serve.
    pub(super) fn running(&self, profile: Option<&Profile>) -> Vec<scaling::Instance> {
        let own = self.own.iter().zip(0..).filter(|(known, _)| !known.is_draining);
        own.map(|(known, id)| scaling::Instance { id: InstanceId(id), point: self.point(known, profile) }).collect()
    }

    /// What the profile says of an instance, or what was measured of it.
    fn point(&self, known: &Known, profile: Option<&Profile>) -> Point {
        let percent = |value: f64| value.round().clamp(1.0, 100.0) as u32;
        let (partition, quota) = (percent(known.instance.sm_partition), percent(known.instance.quota_request * 100.0));
        let estimate = profile.and_then(|profile| profile.estimate(partition, quota));
        estimate.map_or_else(
            || Point { partition, quota, throughput: self.measured(known), latency_ns: 0 },
            |estimate| estimate.point,
        )
    }

    fn measured(&self, known: &Known) -> u64 {
        let of_one = known.standing.and_then(|standing| standing.throughput).unwrap_or(0);
        of_one.saturating_mul(self.devices)
    }

    /// What instances that an operator made serve: as measured, or else as profiled.
    pub(super) fn base(&self, profile: Option<&Profile>) -> u64 {
        let of = |known: &Known| match self.measured(known) {
            0 => self.point(known, profile).throughput,
            measured => measured,
        };
        self.others.iter().map(of).fold(0, u64::saturating_add)
    }

    /// Requests that were given to instances beyond those that devices work on.
    pub(super) fn queued(&self) -> u64 {
        let all = self.own.iter().chain(&self.others).filter_map(|known| known.standing);
        all.map(|standing| u64::from(standing.in_flight).saturating_sub(self.devices)).sum()
    }

    /// The mean device time of a request on instances that the scaling made with a partition.
    pub(super) fn service_ns(&self, partition: u32) -> Option<u64> {
        let has_it = |known: &&Known| known.instance.sm_partition == f64::from(partition);
        let own = self.own.iter().filter(has_it).filter_map(|known| known.standing?.service_ns);
        let times: Vec<u64> = own.collect();
        times.iter().sum::<u64>().checked_div(times.len() as u64)
    }

    /// Applies a change, and says why in the instances that it makes or resizes.
    pub(super) fn apply(&self, app: &App, model: &Model, scaled: &mut Scaled, change: &Change, why: &str) {
        let key_of = |id: &InstanceId| self.own.get(id.0 as usize).map(|known| &known.key);
        for key in change.remove.iter().filter_map(key_of) {
            tracing::info!(instance = %key, why, "an instance gets no more requests and will be removed");
            app.instances.set_draining(key, true);
            scaled.count(Kind::Remove);
        }
        for (id, point) in &change.resize {
            let Some(key) = key_of(id) else { continue };
            let (settings, why) = (scaled.meter.settings, why.to_owned());
            let sized = app.instances.resize(key, |instance| *instance = made(&settings, model, *point, why));
            match sized {
                Ok(()) => scaled.count(Kind::Resize),
                Err(error) => scaled.refuse(model, &error),
            }
        }
        let mut may_stay: Vec<&Known> = self.own.iter().filter(|known| known.is_draining).collect();
        for point in &change.add {
            let is_like = |known: &&Known| {
                let is_near = |a: f64, b: u32| (a - f64::from(b)).abs() < 0.5;
                is_near(known.instance.sm_partition, point.partition)
                    && is_near(known.instance.quota_request * 100.0, point.quota)
            };
            if let Some(at) = may_stay.iter().position(is_like) {
                let known = may_stay.remove(at);
                if app.instances.set_draining(&known.key, false) {
                    scaled.count(Kind::Create);
                    continue;
                }
            }
            if !create(app, model, scaled, *point, why) {
                // There is no room for the others either.
                break;
            }
        }
    }
}

/// An instance at a point.
fn made(settings: &ScalingSettings, model: &Model, point: Point, why: String) -> Instance {
    let limit = settings.quota_limit.unwrap_or(point.quota).max(point.quota);
    Instance {
        function: model.key.name.clone(),
        class: None,
        sm_partition: point.partition.into(),
        quota_request: f64::from(point.quota) / 100.0,
        quota_limit: f64::from(limit) / 100.0,
        gpu_mem: None,
        autoscaled: Some(why),
        lease: None,
    }
}

/// Creates an instance at a point, or at the largest smaller one for which there is room. Says
/// whether there was room for the first one.
fn create(app: &App, model: &Model, scaled: &mut Scaled, point: Point, why: &str) -> bool {
    let began = std::time::Instant::now();
    let mut error = match create_one(app, model, &scaled.meter, point, why) {
        Ok(()) => {
            scaled.created(began.elapsed());
            return true;
        }
        Err(error) => error,
    };
    let all = scaled.points(1);
    let mut smaller: Vec<Point> =
        all.iter().flat_map(Profile::points).filter(|other| other.area() < point.area()).copied().collect();
    smaller.sort_by_key(|point| std::cmp::Reverse((point.throughput, std::cmp::Reverse(point.area()))));
    for point in smaller.into_iter().take(SCALING_SMALLER_TRIES_MAX) {
        match create_one(app, model, &scaled.meter, point, why) {
            Ok(()) => {
                scaled.created(began.elapsed());
                return false;
            }
            Err(other) => error = other,
        }
    }
    scaled.refuse(model, &error);
    false
}

fn create_one(app: &App, model: &Model, meter: &Meter, point: Point, why: &str) -> Result<(), InstanceError> {
    let stem: String = model.key.name.chars().take(FUNCTION_NAME_BYTES_MAX - SUFFIX_BYTES).collect();
    for number in 1..=INSTANCES_MAX + 1 {
        let key = FunctionKey { tenant: model.key.tenant.clone(), name: format!("{stem}-auto-{number}") };
        if app.instances.find(&key).is_some() {
            continue;
        }
        return app.instances.create(key, made(&meter.settings, model, point, why.into()), true);
    }
    Err(InstanceError::Exists(format!("{stem}-auto-{INSTANCES_MAX}")))
}
