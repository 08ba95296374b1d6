//! Refused tokens and creations, and reports that arrive late.

use super::server::{ready, resource};
use super::{GIB, World};
use crate::controller::{Change, Controller};
use crate::resources::Kind;
use serde_json::json;

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
