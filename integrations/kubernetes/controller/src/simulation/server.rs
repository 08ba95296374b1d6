//! An API server in memory, as far as the controller uses it.

use crate::controller::{Verb, Write};
use crate::resources::{Key, Kind, Resource};
use atoll_kubernetes::request::Refused;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A change that watches report.
pub(super) type Reported = (Kind, Value, bool);

#[derive(Default)]
pub(super) struct Server {
    pub(super) objects: BTreeMap<(Kind, Key), Value>,
    version: u64,
    /// Changes that were not reported yet; the last field is true for resources that are gone.
    pub(super) changes: Vec<Reported>,
    /// Kind of the resource, name and reason of each event.
    pub(super) events: Vec<(String, String, String)>,
    /// Whether the controller may not create resources.
    pub(super) has_quota: bool,
}

impl Server {
    pub(super) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |((of, _), _)| *of == kind).map(|(_, object)| object)
    }

    pub(super) fn get(&self, kind: Kind, name: &str) -> Option<&Value> {
        self.of_kind(kind).find(|object| object["metadata"]["name"] == name)
    }

    /// Makes a resource. Its UID is new.
    pub(super) fn create(&mut self, kind: Kind, mut object: Value) -> Result<Value, Refused> {
        let key = key(&object);
        if self.objects.contains_key(&(kind, key.clone())) {
            return Err(refused(409, "it exists"));
        }
        self.version += 1;
        object["metadata"]["uid"] = format!("uid-{}", self.version).into();
        object["metadata"]["generation"] = 1.into();
        self.store(kind, object)
    }

    /// Changes a resource as a user does.
    pub(super) fn edit(&mut self, kind: Kind, name: &str, change: impl FnOnce(&mut Value)) {
        let Some(mut object) = self.get(kind, name).cloned() else { return };
        change(&mut object);
        let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
        object["metadata"]["generation"] = (generation + 1).into();
        self.store(kind, object).unwrap();
    }

    /// Deletes a resource as a user does.
    pub(super) fn delete(&mut self, kind: Kind, name: &str) {
        let Some(mut object) = self.get(kind, name).cloned() else { return };
        if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = "now".into();
        }
        self.store(kind, object).unwrap();
    }

    fn store(&mut self, kind: Kind, mut object: Value) -> Result<Value, Refused> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let key = key(&object);
        let finalizers = object["metadata"]["finalizers"].as_array().map_or(0, Vec::len);
        let is_gone = !object["metadata"]["deletionTimestamp"].is_null() && finalizers == 0;
        match is_gone {
            true => drop(self.objects.remove(&(kind, key))),
            false => drop(self.objects.insert((kind, key), object.clone())),
        }
        self.changes.push((kind, object.clone(), is_gone));
        Ok(object)
    }

    /// Carries out a write of the controller.
    pub(super) fn write(&mut self, write: &Write) -> Result<Option<Value>, Refused> {
        let Some(kind) = write.kind else {
            if let Verb::Create(event) = &write.verb {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let involved = &event["involvedObject"];
                self.events.push((text(&involved["kind"]), text(&involved["name"]), text(&event["reason"])));
            }
            return Ok(None);
        };
        let present = self.objects.get(&(kind, write.key.clone())).cloned();
        if let Verb::Create(body) = &write.verb {
            assert_eq!(key(body), write.key);
            if self.has_quota {
                return Err(refused(403, "exceeded quota"));
            }
            return self.create(kind, body.clone()).map(Some);
        }
        let mut object = present.ok_or_else(|| refused(404, "it is gone"))?;
        match &write.verb {
            Verb::Create(_) => {}
            Verb::Patch(body) => {
                if object["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"] {
                    return Err(refused(409, "it has changed"));
                }
                object["metadata"]["finalizers"] = body["metadata"]["finalizers"].clone();
            }
            Verb::PatchStatus(body) => {
                if object["status"].is_null() {
                    object["status"] = json!({});
                }
                for (name, value) in body["status"].as_object().unwrap() {
                    let status = object["status"].as_object_mut().unwrap();
                    match value.is_null() {
                        true => drop(status.remove(name)),
                        false => drop(status.insert(name.clone(), value.clone())),
                    }
                }
            }
            Verb::Delete(uid) => {
                if object["metadata"]["uid"] != uid.as_str() {
                    return Err(refused(409, "it is another one"));
                }
                object["metadata"]["deletionTimestamp"] = "now".into();
            }
        }
        self.store(kind, object).map(Some)
    }
}

fn key(object: &Value) -> Key {
    resource(object).metadata.key()
}

pub(super) fn resource(object: &Value) -> Resource {
    serde_json::from_value(object.clone()).unwrap()
}

fn refused(status: u16, message: &str) -> Refused {
    Refused { status: Some(status), message: message.into() }
}

/// Status and reason of the condition `Ready`.
pub(super) fn ready(object: &Value) -> (&str, &str) {
    let conditions = object["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let ready = conditions.iter().find(|one| one["type"] == "Ready");
    let text = |field: &str| ready.and_then(|one| one[field].as_str()).unwrap_or_default();
    (text("status"), text("reason"))
}
