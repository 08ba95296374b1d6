//! Statuses, finalizers and events, as the API server takes them.

use crate::resources::{Meta, Resource};
use atoll_kubernetes::hold::{Lease, Reason};
use serde_json::{Value, json};

/// Group and version of the resources.
pub(crate) const API_VERSION: &str = "atoll.dev/v1alpha1";

/// Kind of functions.
pub(crate) const FUNCTION: &str = "AtollFunction";

/// Kind of instances.
pub(crate) const INSTANCE: &str = "AtollInstance";

/// Keeps an instance until its lease has ended.
pub(crate) const INSTANCE_FINALIZER: &str = "atoll.dev/lease";

/// Keeps a function until its instances are gone.
pub(crate) const FUNCTION_FINALIZER: &str = "atoll.dev/instances";

/// Label of instances with the name of their function.
pub(crate) const FUNCTION_LABEL: &str = "atoll.dev/function";

/// Longest message of a condition or an event, in characters.
const MESSAGE_MAX: usize = 1000;

/// A condition of a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) kind: &'static str,
    pub(crate) is_true: bool,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Condition {
    /// The condition `Ready`.
    pub(crate) fn ready(is_true: bool, reason: &'static str, message: &str) -> Condition {
        Condition { kind: "Ready", is_true, reason, message: short(message) }
    }

    fn status(&self) -> &'static str {
        if self.is_true { "True" } else { "False" }
    }
}

/// The condition of a kind in a status.
fn condition<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    status["conditions"].as_array()?.iter().find(|one| one["type"] == kind)
}

/// Whether the condition `Ready` of a status is true.
pub(crate) fn is_ready(status: &Value) -> bool {
    condition(status, "Ready").is_some_and(|ready| ready["status"] == "True")
}

/// A status with conditions. The time of a condition is that of its last change between true and
/// false.
fn with_conditions(mut status: Value, before: &Resource, conditions: &[Condition], stamp: &str) -> Value {
    let generation = before.metadata.generation;
    let condition = |one: &Condition| {
        let known = condition(&before.status, one.kind).filter(|known| known["status"] == one.status());
        let since = known.and_then(|known| known["lastTransitionTime"].as_str()).unwrap_or(stamp);
        json!({
            "type": one.kind,
            "status": one.status(),
            "reason": one.reason,
            "message": one.message,
            "observedGeneration": generation,
            "lastTransitionTime": since,
        })
    };
    status["conditions"] = conditions.iter().map(condition).collect();
    status["observedGeneration"] = generation.into();
    status
}

/// The status of an instance.
pub(crate) fn of_instance(
    before: &Resource,
    ready: (Reason, &str),
    lease: Option<&Lease>,
    url: Option<&str>,
    stamp: &str,
) -> Value {
    let (reason, message) = ready;
    let status = json!({ "lease": lease, "url": lease.and(url) });
    let condition = Condition::ready(reason == Reason::Granted, reason.name(), message);
    with_conditions(status, before, &[condition], stamp)
}

/// The status of a function.
pub(crate) fn of_function(before: &Resource, counts: (usize, usize), conditions: &[Condition], stamp: &str) -> Value {
    let (replicas, ready) = counts;
    let selector = format!("{FUNCTION_LABEL}={}", label(&before.metadata.name));
    let status = json!({ "replicas": replicas, "readyReplicas": ready, "selector": selector });
    with_conditions(status, before, conditions, stamp)
}

/// Whether a field of the new status differs from that of the present one.
pub(crate) fn differs(before: &Value, after: &Value) -> bool {
    after.as_object().is_some_and(|fields| fields.iter().any(|(name, value)| before[name.as_str()] != *value))
}

/// The event for a condition `Ready` whose reason is new.
pub(crate) fn event(kind: &str, before: &Resource, after: &Value, stamp: &str) -> Option<Value> {
    let ready = condition(after, "Ready")?;
    if condition(&before.status, "Ready").is_some_and(|known| known["reason"] == ready["reason"]) {
        return None;
    }
    let Meta { name, namespace, uid, .. } = &before.metadata;
    // A name with a random suffix has at most 253 characters, as any name.
    let prefix: String = name.chars().take(200).collect();
    let message = ready["message"].as_str().filter(|message| !message.is_empty());
    Some(json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "generateName": format!("{}.", prefix.trim_end_matches(['.', '-'])), "namespace": namespace },
        "involvedObject": {
            "apiVersion": API_VERSION, "kind": kind, "name": name, "namespace": namespace, "uid": uid,
        },
        "reason": ready["reason"],
        "message": message.unwrap_or("the condition Ready is true"),
        "type": if ready["status"] == "True" { "Normal" } else { "Warning" },
        "source": { "component": "atoll-controller" },
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }))
}

/// A patch that sets or removes a finalizer. It has no effect on a resource that has changed since.
pub(crate) fn finalizers(meta: &Meta, finalizer: &str, is_set: bool) -> Value {
    let mut finalizers: Vec<&str> =
        meta.finalizers.iter().map(String::as_str).filter(|one| *one != finalizer).collect();
    finalizers.extend(is_set.then_some(finalizer));
    json!({ "metadata": { "resourceVersion": meta.resource_version, "finalizers": finalizers } })
}

/// A new instance of a function. Its number is part of its name, so that a request that is sent
/// twice makes one instance.
pub(crate) fn new_instance(function: &Resource, name: &str, node: &str) -> Value {
    let meta = &function.metadata;
    json!({
        "apiVersion": API_VERSION,
        "kind": INSTANCE,
        "metadata": {
            "name": name,
            "namespace": meta.namespace,
            "labels": { FUNCTION_LABEL: label(&meta.name) },
            "finalizers": [INSTANCE_FINALIZER],
            "ownerReferences": [{
                "apiVersion": API_VERSION,
                "kind": FUNCTION,
                "name": meta.name,
                "uid": meta.uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": { "function": function.spec["function"], "nodeName": node, "share": function.spec["share"] },
    })
}

/// The value of a label for a name: at most 63 characters, and none of `.`, `-` and `_` at its end.
fn label(name: &str) -> String {
    name.chars().take(63).collect::<String>().trim_end_matches(['.', '-', '_']).to_owned()
}

fn short(message: &str) -> String {
    message.chars().take(MESSAGE_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(status: Value) -> Resource {
        let meta = json!({"name": "f-0", "namespace": "apps", "uid": "u", "generation": 3, "resourceVersion": "7",
            "finalizers": ["other"]});
        serde_json::from_value(json!({ "metadata": meta, "status": status })).unwrap()
    }

    #[test]
    fn a_status_is_written_when_it_changes() {
        let lease = Lease { lease: 1, epoch: 2, holder: "h".into(), instance: "lease-1".into(), device: "d".into() };
        let first = of_instance(&resource(Value::Null), (Reason::NoRoom, "full"), None, Some("http://d"), "t1");
        assert!(first["lease"].is_null() && first["url"].is_null());
        assert!(differs(&Value::Null, &first));
        let known = resource(first.clone());
        let again = of_instance(&known, (Reason::NoRoom, "full"), None, Some("http://d"), "t2");
        assert!(!differs(&known.status, &again), "{again}");
        let other = of_instance(&known, (Reason::Refused, "no"), None, None, "t3");
        assert!(differs(&known.status, &other));
        assert_eq!(other["conditions"][0]["lastTransitionTime"], "t1", "it is false since then");
        let granted = of_instance(&known, (Reason::Granted, ""), Some(&lease), Some("http://d"), "t4");
        assert_eq!(granted["conditions"][0]["lastTransitionTime"], "t4");
        assert_eq!(
            (granted["url"].as_str(), granted["lease"]["instance"].as_str()),
            (Some("http://d"), Some("lease-1"))
        );
        assert_eq!(granted["observedGeneration"], 3);
    }

    #[test]
    fn an_event_tells_of_each_new_reason() {
        let full = of_instance(&resource(Value::Null), (Reason::NoRoom, "full"), None, None, "t");
        let told = event(INSTANCE, &resource(Value::Null), &full, "t").unwrap();
        assert_eq!((told["reason"].as_str(), told["type"].as_str()), (Some("NoRoom"), Some("Warning")));
        assert_eq!((told["message"].as_str(), told["involvedObject"]["uid"].as_str()), (Some("full"), Some("u")));
        let more = of_instance(&resource(full.clone()), (Reason::NoRoom, "still full"), None, None, "t");
        assert_eq!(event(INSTANCE, &resource(full), &more, "t"), None);
    }

    #[test]
    fn finalizers_of_others_stay() {
        let meta = resource(Value::Null).metadata;
        let set = finalizers(&meta, INSTANCE_FINALIZER, true);
        assert_eq!(set["metadata"]["finalizers"], json!(["other", INSTANCE_FINALIZER]));
        assert_eq!(set["metadata"]["resourceVersion"], "7");
        assert_eq!(finalizers(&meta, INSTANCE_FINALIZER, false)["metadata"]["finalizers"], json!(["other"]));
    }

    #[test]
    fn names_become_labels() {
        assert_eq!(label("resnet50"), "resnet50");
        let long = format!("{}.{}", "a".repeat(62), "b".repeat(9));
        assert_eq!(label(&long), "a".repeat(62));
    }
}
