//! Refused tokens and creations, and reports and answers that arrive late.

use super::server::{ready, resource};
use super::{GIB, World};
use crate::controller::{Action, Change, Controller, Verb, Write};
use crate::resources::{KINDS, Kind};
use crate::status::FUNCTION_FINALIZER;
use serde_json::json;
use std::time::Duration;

#[test]
fn a_namespace_without_a_token_hinders_no_other_one() {
    let mut world = World::new(5, 2, 16 * GIB);
    world.denied = "a-first";
    world.function("f", 4, "Nodes");
    let mut other = world.server.get(Kind::Function, "f").unwrap().clone();
    other["metadata"] = json!({"name": "f", "namespace": "a-first"});
    world.server.create(Kind::Function, other).unwrap();
    world.run(60);
    assert_eq!((world.ready().len(), world.leases().iter().sum::<usize>()), (4, 4));
}

#[test]
fn a_creation_that_the_api_server_refuses_is_told() {
    let mut world = World::new(6, 1, 16 * GIB);
    world.server.has_quota = true;
    world.function("f", 1, "Nodes");
    world.run(10);
    let function = world.server.get(Kind::Function, "f").unwrap();
    assert_eq!(ready(function), ("False", "NotCreated"));
    let message = function["status"]["conditions"][0]["message"].as_str().unwrap();
    assert!(message.contains("f-0 cannot be created: exceeded quota"), "{message}");
    world.server.has_quota = false;
    world.run(60);
    assert_eq!(ready(world.server.get(Kind::Function, "f").unwrap()), ("True", "Granted"));
    world.check_settled();
}

#[test]
fn late_reports_of_a_resource_that_is_gone_do_not_change_its_successor() {
    let one = |uid: &str| resource(&json!({"metadata": {"name": "f-0", "namespace": "apps", "uid": uid}}));
    let key = one("").metadata.key();
    let set = |uid: &str| Change::Set(Kind::Instance, Box::new(one(uid)));
    let gone = |uid: &str| Change::Gone(Kind::Instance, key.clone(), uid.into());
    let mut controller = Controller::default();
    for (change, expected) in [
        (set("a"), Some("a")),
        (gone("a"), None),
        (set("a"), None),
        (set("b"), Some("b")),
        (set("a"), Some("b")),
        (gone("a"), Some("b")),
        (gone("b"), None),
    ] {
        controller.observe(change.clone());
        let found = controller.instances.get(&key).map(|one| one.metadata.uid.as_str());
        assert_eq!(found, expected, "{change:?}");
    }
}

#[test]
fn an_answer_to_a_write_does_not_undo_a_later_report() {
    // Its share is invalid, so the controller writes a status.
    let version = |version: &str, deleted: Option<&str>| {
        let metadata = json!({
            "name": "f", "namespace": "apps", "uid": "f", "resourceVersion": version,
            "deletionTimestamp": deleted, "finalizers": [FUNCTION_FINALIZER],
        });
        let spec = json!({"function": "affine", "replicas": 1, "share": {"smPartition": 130}});
        resource(&json!({"metadata": metadata, "spec": spec}))
    };
    let mut controller = Controller::default();
    for kind in KINDS {
        let all = if kind == Kind::Function { vec![version("1", None)] } else { Vec::new() };
        controller.observe(Change::Listed(kind, all));
    }
    let step = |controller: &mut Controller, seconds| -> Vec<Write> {
        let actions = controller.step(Duration::from_secs(seconds), "2026-01-01T00:00:00Z");
        let write = |action| match action {
            Action::Write(write) if write.kind == Some(Kind::Function) => Some(write),
            Action::Write(_) | Action::Ask(_) => None,
        };
        actions.into_iter().filter_map(write).collect()
    };
    let writes = step(&mut controller, 1);
    assert!(matches!(writes[..], [Write { verb: Verb::PatchStatus(_), .. }]), "{writes:?}");
    controller.observe(Change::Set(Kind::Function, Box::new(version("3", Some("now")))));
    controller.written(Duration::from_secs(2), &writes[0], Ok(Some(version("2", None))));
    let writes = step(&mut controller, 3);
    assert!(matches!(&writes[..], [Write { verb: Verb::Patch(_), .. }]), "its finalizer is removed: {writes:?}");
}
