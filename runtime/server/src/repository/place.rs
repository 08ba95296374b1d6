//! Puts versions onto the devices, and serves them instead of the present ones.
//!
//! The newest version answers requests that name none. It has the name of the model as its key in
//! the engines, so instances, shares and leases of the model are its own. Another version has the
//! key `NAME/VERSION`, which no file and no deployed function can have.
//!
//! New versions are loaded and warmed up beside the present ones. If a present version has the key of
//! a new one, the new one gets the key `NAME/VERSION/NUMBER` at first. Only when all are ready do they
//! take the place of the present ones, in one step. The present ones are unloaded when their requests
//! have ended, and the new ones are loaded once more, under their own keys. Versions with equal
//! contents share their constants on the device, so this loads no constants twice.

use super::Repository;
use super::error::LoadError;
use super::exchange::{Failure, Prepared};
use super::scan::Source;
use super::settings::{Settings, Warmup};
use super::slot::{Slot, State};
use super::warmup;
use crate::inference::{blocking, invoke};
use crate::limits::{EXCHANGE_GRACE, EXCHANGE_WAIT_MAX};
use crate::model::Model;
use crate::running::Permit;
use atoll_engine::{Class, EngineError, FunctionKey, FunctionOptions, InvocationRequest, LaneId};
use atoll_kgraph::Bundle;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often it is checked whether the requests of a version have ended.
const POLL: Duration = Duration::from_millis(2);

/// The key and the settings of a version.
struct Place {
    key: FunctionKey,
    settings: Settings,
}

/// The versions that take the place of the present ones.
#[derive(Default)]
struct Next<'a> {
    served: BTreeMap<u64, Arc<Model>>,
    /// Versions that are served under another key until their own is free.
    moving: Vec<(&'a Prepared, Place)>,
}

/// The key of a version that is not the newest.
fn key_of(model: &str, version: u64) -> FunctionKey {
    FunctionKey::local(format!("{model}/{version}"))
}

/// The key of a version until its own is free: one that no present version has.
fn key_beside(model: &str, version: u64, old: &BTreeMap<u64, Arc<Model>>) -> FunctionKey {
    let mut keys = (1..=old.len() + 1).map(|number| FunctionKey::local(format!("{model}/{version}/{number}")));
    // There is one, since there are more keys than present versions.
    let free = keys.find(|key| !old.values().any(|model| model.key == *key));
    free.unwrap_or_else(|| key_of(model, version))
}

/// The daemon's name of the GPU that a configuration names.
fn gpu_of(settings: &Settings, devices: &[String]) -> Option<String> {
    let gpu = settings.gpu?;
    let found = devices.iter().find(|device| [format!("cuda:{gpu}"), format!("hip:{gpu}")].contains(device));
    if found.is_none() {
        tracing::warn!(gpu, "the daemon does not have the GPU that config.pbtxt names; the placement policy decides");
    }
    found.cloned()
}

impl Repository {
    /// Serves these versions, the newest first, and no others. On an error before the new versions
    /// take requests, everything stays as it was.
    pub(super) async fn place(
        &self,
        slot: &Slot,
        source: &Source,
        versions: &[Prepared],
        settings: &Settings,
    ) -> Result<(), Failure> {
        let old = slot.ready();
        let next = self.load_beside(slot, source, versions, settings, &old).await?;
        slot.serve(&next.served);
        self.end(&old, &next).await?;
        self.move_to_own_keys(slot, source, next).await
    }

    /// Loads versions beside the present ones, and keeps a present one that would not change. On an
    /// error none of them stays loaded.
    async fn load_beside<'a>(
        &self,
        slot: &Slot,
        source: &Source,
        versions: &'a [Prepared],
        settings: &Settings,
        old: &BTreeMap<u64, Arc<Model>>,
    ) -> Result<Next<'a>, Failure> {
        let mut next = Next::default();
        let mut loaded: Vec<Arc<Model>> = Vec::new();
        for (at, version) in versions.iter().enumerate() {
            let number = version.number;
            let key = if at == 0 { FunctionKey::local(&source.name) } else { key_of(&source.name, number) };
            // The instances that follow the load are those of the newest version.
            let scaling = settings.scaling.filter(|_| at == 0);
            let own = Place { key, settings: Settings { scaling, ..settings.clone() } };
            if let Some(model) = old.get(&number).filter(|model| version.is_served_by(model, &own.settings))
                && model.key == own.key
            {
                next.served.insert(number, model.clone());
                continue;
            }
            let first = match old.values().any(|model| model.key == own.key) {
                false => own,
                true => {
                    let key = key_beside(&source.name, number, old);
                    let settings = Settings { scaling: None, ..own.settings.clone() };
                    next.moving.push((version, own));
                    Place { key, settings }
                }
            };
            slot.set_unserved(number, State::Loading("loading weights and code onto the device".into()));
            match self.put(source, version, first).await {
                Ok(model) => {
                    loaded.push(model.clone());
                    next.served.insert(number, model);
                }
                Err(error) => {
                    self.unload_all(&loaded).await;
                    return Err(Failure { version: Some(number), error });
                }
            }
        }
        Ok(next)
    }

    /// Unloads versions behind an error, which is the one to report.
    async fn unload_all(&self, models: &[Arc<Model>]) {
        for model in models {
            if let Err(error) = self.unload_function(model).await {
                tracing::error!(model = model.name, version = model.version, %error, "not unloaded");
            }
        }
    }

    /// Unloads the present versions that are served no more, when their requests have ended.
    async fn end(&self, old: &BTreeMap<u64, Arc<Model>>, next: &Next<'_>) -> Result<(), LoadError> {
        let is_served = |model: &Arc<Model>| next.served.values().any(|served| Arc::ptr_eq(served, model));
        for model in old.values().filter(|model| !is_served(model)) {
            self.wait_for_requests(model).await;
            let follows = |(version, place): &(&Prepared, Place)| {
                place.key == model.key && model.is_version(version.number, &version.bundle)
            };
            // Where only settings change, requests that wait for an instance are served by the
            // function that follows.
            match next.moving.iter().any(follows) {
                true => self.unload_key(&model.key).await?,
                false => self.unload_function(model).await?,
            }
        }
        Ok(())
    }

    /// Loads versions once more, under their own keys, which are free now, and serves them there. A
    /// version whose load fails is served under its first key.
    async fn move_to_own_keys(&self, slot: &Slot, source: &Source, next: Next<'_>) -> Result<(), Failure> {
        for (version, place) in next.moving {
            let failure = |error| Failure { version: Some(version.number), error };
            let model = self.put(source, version, place).await.map_err(failure)?;
            slot.set(version.number, State::Ready(model));
            if let Some(first) = next.served.get(&version.number) {
                self.unload_ended(first).await?;
            }
        }
        Ok(())
    }

    /// Loads a version at a place and runs its samples. It takes no requests yet.
    async fn put(&self, source: &Source, version: &Prepared, place: Place) -> Result<Arc<Model>, LoadError> {
        let samples = place.settings.warmup.clone();
        let model = self.load_function(place, version.number, version.bundle.clone()).await?.named(&source.name);
        let model = model.with_labels(version.labels.clone()).with_controls(version.controls.clone());
        let model = model.with_reshapes(version.reshapes.clone()).with_decoder(version.decoder.clone());
        let model = Arc::new(model);
        if let Err(error) = self.warm_up(&model, source, samples).await {
            self.unload_function(&model).await?;
            return Err(error);
        }
        Ok(model)
    }

    /// Runs the samples of a model. One that fails is logged, as with Triton; one that does not fit
    /// the model is an error.
    async fn warm_up(&self, model: &Arc<Model>, source: &Source, samples: Vec<Warmup>) -> Result<(), LoadError> {
        for sample in samples {
            let (name, runs) = (sample.name.clone(), sample.runs);
            let (read, folder) = (model.clone(), source.files_folder().to_owned());
            let inputs =
                blocking(move || warmup::inputs(&read, &folder, &sample)).await.ok_or(LoadError::Panicked)??;
            for _ in 0..runs {
                let request = InvocationRequest {
                    function: model.key.clone(),
                    inputs: inputs.clone(),
                    class: Some(Class::BestEffort),
                    priority: 0,
                    instance: None,
                    deadline: None,
                };
                if let Err(error) = invoke(&self.engine, &Permit::of_daemon(), request.into()).await {
                    tracing::warn!(model = model.name, sample = name, %error, "a sample of model_warmup failed");
                    break;
                }
            }
            tracing::debug!(model = model.name, sample = name, runs, "warmed up");
        }
        Ok(())
    }

    async fn load_function(&self, place: Place, version: u64, bundle: Arc<Bundle>) -> Result<Model, LoadError> {
        let engine = self.engine.clone();
        let load = move || {
            let Place { key, settings } = place;
            let options = FunctionOptions {
                key: key.clone(),
                class: settings.class,
                queue_capacity: settings.queue_capacity.map(std::num::NonZeroUsize::get),
                lane: LaneId::DEFAULT,
                batching: settings.batching_of(bundle.graph()),
            };
            let device = settings.device.clone().or_else(|| gpu_of(&settings, engine.devices()));
            let placed = engine.load(bundle.clone(), options, device.as_deref())?;
            tracing::debug!(
                model = %key,
                devices = ?placed.devices,
                target = placed.info.target,
                weights_bytes = placed.info.weights_bytes,
                "on the device"
            );
            Ok(Model::new(key, version.to_string(), &bundle, settings, placed.devices))
        };
        blocking(load).await.ok_or(LoadError::Panicked)?
    }

    /// Waits until the requests of a model that further ones do not find have ended, but no longer
    /// than [`EXCHANGE_WAIT_MAX`].
    async fn wait_for_requests(&self, model: &Model) {
        let begun = Instant::now();
        tokio::time::sleep(EXCHANGE_GRACE).await;
        while model.is_in_use() && begun.elapsed() < EXCHANGE_WAIT_MAX {
            tokio::time::sleep(POLL).await;
        }
    }

    /// Unloads the function of a model that requests do not find any more, once those that found it
    /// have ended.
    pub(super) async fn unload_ended(&self, model: &Model) -> Result<(), LoadError> {
        self.wait_for_requests(model).await;
        self.unload_function(model).await
    }

    /// Unloads the function of a model, which takes no requests any more. Returns when its running
    /// requests have ended.
    pub(super) async fn unload_function(&self, model: &Model) -> Result<(), LoadError> {
        model.retire();
        self.unload_key(&model.key).await
    }

    async fn unload_key(&self, key: &FunctionKey) -> Result<(), LoadError> {
        let (engine, key) = (self.engine.clone(), key.clone());
        match blocking(move || engine.unload(&key)).await.ok_or(LoadError::Panicked)? {
            // The model is already unloaded: nothing left to do.
            Ok(()) | Err(EngineError::NotLoaded(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
