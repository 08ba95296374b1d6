//! The controller with an API server in memory and daemons that have the ledger of real ones, in
//! virtual time: what is placed where, drained nodes, deletions, and seeded runs in which messages
//! are lost, and controllers and daemons crash.
//!
//! A failing seed is printed; `ATOLL_SEED=N cargo test -p atoll-controller` replays it.

mod node;
mod refusals;
mod server;

use crate::controller::{Action, Call, Change, Controller, Settings, Write};
use crate::resources::{KINDS, Kind};
use atoll_core::rng::Rng;
use atoll_kubernetes::daemon::Answer;
use atoll_kubernetes::request::{Ask, Refused};
use node::Node;
use serde_json::{Value, json};
use server::{Reported, Server, ready, resource};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const TICK: Duration = Duration::from_millis(200);
const DRAIN: Duration = Duration::from_secs(10);
const GIB: u64 = 1 << 30;

/// A message in transit. The number is that of the controller that sent it, or that receives it.
enum Delivery {
    Call(u64, Duration, Call),
    Answer(u64, Duration, Call, Result<Answer, Refused>),
    Write(u64, Write),
    Written(u64, Write, Result<Option<Value>, Refused>),
    Change(u64, Reported),
}

struct World {
    rng: Rng,
    now: Duration,
    has_faults: bool,
    server: Server,
    daemons: BTreeMap<String, Node>,
    controller: Controller,
    /// Number of the present controller. What earlier ones sent still arrives.
    number: u64,
    deliveries: BTreeMap<(Duration, u64), Delivery>,
    sent: u64,
    asked: usize,
    /// A namespace without a token.
    denied: &'static str,
}

impl World {
    /// A cluster with nodes `gpu-0` and so on.
    fn new(seed: u64, nodes: usize, memory_bytes: u64) -> World {
        let mut server = Server::default();
        let mut daemons = BTreeMap::new();
        for at in 0..nodes {
            let name = format!("gpu-{at}");
            let labels = json!({"atoll.dev/controller": "true"});
            let node = json!({"metadata": {"name": name, "labels": labels}, "spec": {}});
            server.create(Kind::Node, node).unwrap();
            let ports = json!([{"name": "http", "containerPort": 8000}]);
            let pod = json!({
                "metadata": {"name": format!("atoll-{at}"), "namespace": "atoll-system"},
                "spec": {"nodeName": name, "containers": [{"ports": ports}]},
                "status": {"podIP": format!("10.0.0.{at}"), "phase": "Running"},
            });
            server.create(Kind::Pod, pod).unwrap();
            daemons.insert(name, Node::new(memory_bytes));
        }
        let mut world = World {
            rng: Rng::new(seed),
            now: Duration::from_secs(1000),
            has_faults: false,
            server,
            daemons,
            controller: Controller::default(),
            number: 0,
            deliveries: BTreeMap::new(),
            sent: 0,
            asked: 0,
            denied: "",
        };
        world.start_controller();
        world
    }

    /// The controller is replaced by a new one, which lists all resources.
    fn start_controller(&mut self) {
        self.number += 1;
        self.server.changes.clear();
        let labels = BTreeMap::from([("atoll.dev/controller".to_owned(), "true".to_owned())]);
        self.controller = Controller::new(Settings { drain: DRAIN, nodes: labels });
        for kind in KINDS {
            let all = self.server.of_kind(kind).map(resource).collect();
            self.controller.observe(Change::Listed(kind, all));
        }
    }

    fn deliver_in(&mut self, delay: Duration, delivery: Delivery) {
        self.sent += 1;
        self.deliveries.insert((self.now + delay, self.sent), delivery);
    }

    fn delay(&mut self) -> Duration {
        Duration::from_millis(self.rng.below(400))
    }

    fn is_lost(&mut self) -> bool {
        self.has_faults && self.rng.one_in(15)
    }

    fn tick(&mut self) {
        self.now += TICK;
        while let Some(entry) = self.deliveries.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let delivery = entry.remove();
            self.deliver(delivery);
        }
        let now = self.now;
        self.daemons.values_mut().for_each(|daemon| daemon.tick(now));
        for action in self.controller.step(self.now, "2026-01-01T00:00:00Z") {
            match action {
                Action::Ask(call) => {
                    self.asked += usize::from(call.ask != Ask::Capacity);
                    let (number, sent) = (self.number, self.now);
                    match self.is_lost() {
                        true => self.no_answer(number, sent, call),
                        false => {
                            let delay = self.delay();
                            self.deliver_in(delay, Delivery::Call(number, sent, call));
                        }
                    }
                }
                // One thread writes, in order.
                Action::Write(write) => {
                    self.deliver_in(Duration::from_millis(50), Delivery::Write(self.number, write));
                }
            }
        }
        // Watches report in order.
        for change in std::mem::take(&mut self.server.changes) {
            self.deliver_in(Duration::from_millis(150), Delivery::Change(self.number, change));
        }
    }

    fn no_answer(&mut self, number: u64, sent: Duration, call: Call) {
        let refused = Refused { status: None, message: "no answer".into() };
        self.deliver_in(Duration::from_secs(3), Delivery::Answer(number, sent, call, Err(refused)));
    }

    fn deliver(&mut self, delivery: Delivery) {
        let now = self.now;
        match delivery {
            Delivery::Call(number, sent, call) => {
                if call.namespace == self.denied {
                    let refused = Refused { status: Some(401), message: "there is no token".into() };
                    return self.deliver_in(TICK, Delivery::Answer(number, sent, call, Err(refused)));
                }
                let daemon = self.daemons.get_mut(&call.daemon.node).filter(|daemon| daemon.is_up);
                let Some(answer) = daemon.map(|daemon| daemon.ask(now, &call.ask)) else {
                    return self.no_answer(number, sent, call);
                };
                match self.is_lost() {
                    true => self.no_answer(number, sent, call),
                    false => {
                        let delay = self.delay();
                        self.deliver_in(delay, Delivery::Answer(number, sent, call, answer));
                    }
                }
            }
            Delivery::Answer(number, sent, call, answer) if number == self.number => {
                self.controller.answered(sent, now, &call, answer);
            }
            Delivery::Write(number, write) => {
                let lost = || Err(Refused { status: None, message: "no answer".into() });
                let result = if self.is_lost() { lost() } else { self.server.write(&write) };
                // It is written, and the answer is lost.
                let result = if self.is_lost() { lost() } else { result };
                // Sooner or later than the watch reports the change.
                let delay = self.delay();
                self.deliver_in(delay, Delivery::Written(number, write, result));
            }
            Delivery::Written(number, write, result) if number == self.number => {
                let result = result.map(|object| object.as_ref().map(resource));
                self.controller.written(now, &write, result);
            }
            Delivery::Change(number, (kind, object, is_gone)) if number == self.number => {
                let resource = resource(&object);
                self.controller.observe(match is_gone {
                    true => Change::Gone(kind, resource.metadata.key(), resource.metadata.uid),
                    false => Change::Set(kind, Box::new(resource)),
                });
            }
            // Of a controller that is gone.
            Delivery::Answer(..) | Delivery::Written(..) | Delivery::Change(..) => {}
        }
    }

    fn run(&mut self, seconds: u64) {
        let until = self.now + Duration::from_secs(seconds);
        while self.now < until {
            self.tick();
        }
    }

    /// The instances whose condition `Ready` is true: name, node and number of the lease.
    fn ready(&self) -> Vec<(String, String, u64)> {
        let all = self.server.of_kind(Kind::Instance).filter(|one| ready(one).0 == "True");
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        all.map(|one| {
            let lease = one["status"]["lease"]["lease"].as_u64().unwrap();
            (text(&one["metadata"]["name"]), text(&one["spec"]["nodeName"]), lease)
        })
        .collect()
    }

    /// How many leases each node has.
    fn leases(&self) -> Vec<usize> {
        self.daemons.values().map(|daemon| daemon.leases().len()).collect()
    }

    fn function(&mut self, name: &str, replicas: u64, spread: &str) {
        let share = json!({"smPartition": 24, "quota": {"request": 1.0}, "gpuMem": "2Gi", "ttlSeconds": 15});
        let spec = json!({"function": "affine", "replicas": replicas, "spread": spread, "share": share});
        let object = json!({"metadata": {"name": name, "namespace": "apps"}, "spec": spec});
        // One of this name may still be there.
        drop(self.server.create(Kind::Function, object));
    }

    fn scale(&mut self, name: &str, replicas: u64) {
        self.server.edit(Kind::Function, name, |object| object["spec"]["replicas"] = replicas.into());
    }

    fn cordon(&mut self, name: &str, is_cordoned: bool) {
        self.server.edit(Kind::Node, name, |object| object["spec"]["unschedulable"] = is_cordoned.into());
    }

    /// Checks that the leases of the daemons are those of the instances, and all of these are ready.
    fn check_settled(&self) {
        let ready: BTreeSet<(String, u64)> = self.ready().into_iter().map(|(_, node, lease)| (node, lease)).collect();
        let granted = self.daemons.iter().flat_map(|(node, daemon)| {
            daemon.leases().into_keys().map(|lease| (node.clone(), lease)).collect::<Vec<_>>()
        });
        assert_eq!(granted.collect::<BTreeSet<_>>(), ready);
        assert_eq!(self.server.of_kind(Kind::Instance).count(), ready.len());
    }
}

#[test]
fn instances_are_packed_as_predicted_and_one_too_many_is_pending_with_the_reason() {
    let mut world = World::new(1, 2, 16 * GIB);
    world.function("f", 9, "Nodes");
    world.run(30);
    // Four times 24 % fit a device.
    assert_eq!(world.leases(), [4, 4]);
    let function = world.server.get(Kind::Function, "f").unwrap();
    assert_eq!(ready(function), ("False", "NoRoom"));
    assert_eq!(function["status"]["readyReplicas"], 8);
    let message = function["status"]["conditions"][0]["message"].as_str().unwrap();
    assert!(message.contains("8 of 9") && message.contains("24 % of the compute units"), "{message}");
    world.scale("f", 8);
    world.run(10);
    assert_eq!(ready(world.server.get(Kind::Function, "f").unwrap()), ("True", "Granted"));
    let reasons: Vec<&str> =
        world.server.events.iter().filter(|event| event.0 == "AtollFunction").map(|event| event.2.as_str()).collect();
    assert!(reasons.contains(&"NoRoom") && reasons.last() == Some(&"Granted"), "{reasons:?}");
    world.check_settled();
    // Memory is the limit, and instances go to few nodes.
    let mut world = World::new(1, 3, 5 * GIB);
    world.function("f", 4, "Pack");
    world.run(30);
    let mut leases = world.leases();
    leases.sort_unstable();
    assert_eq!(leases, [0, 2, 2], "the node that reports first is filled first");
    world.scale("f", 1);
    world.run(30);
    assert_eq!(world.leases().iter().sum::<usize>(), 1);
    world.check_settled();
}

#[test]
fn a_node_is_drained_without_a_lost_request() {
    let mut world = World::new(2, 3, 16 * GIB);
    world.function("f", 6, "Nodes");
    world.run(20);
    assert_eq!(world.leases(), [2, 2, 2]);
    // Requests of clients: the node and the lease of a ready instance, and when they end.
    let mut requests: Vec<(String, u64, Duration)> = Vec::new();
    let mut served = 0;
    for second in 0..120 {
        match second {
            10 => world.cordon("gpu-1", true),
            60 => world.cordon("gpu-1", false),
            // All instances are replaced by larger ones.
            70 => world.server.edit(Kind::Function, "f", |one| one["spec"]["share"]["smPartition"] = 25.into()),
            _ => {}
        }
        for _ in 0..5 {
            world.tick();
            let ready = world.ready();
            assert!(ready.len() >= 6, "at {second} s there are {}", ready.len());
            let (_, node, lease) = ready[world.rng.below(ready.len() as u64) as usize].clone();
            // A client knows the status of up to two seconds ago, and a request takes up to six.
            requests.push((node, lease, world.now + Duration::from_millis(world.rng.below(8000))));
            requests.retain(|(node, lease, until)| {
                let is_granted = world.daemons[node].leases().contains_key(lease);
                assert!(is_granted, "at {second} s a request runs under a lease that has ended");
                served += usize::from(*until <= world.now);
                *until > world.now
            });
        }
        if second == 50 {
            assert_eq!(world.leases(), [3, 0, 3]);
        }
    }
    assert!(served > 400, "{served}");
    world.run(60);
    world.check_settled();
}

#[test]
fn impossible_resources_reach_no_daemon() {
    let mut world = World::new(3, 1, 16 * GIB);
    for (name, field, value) in [
        ("a", "smPartition", json!(130)),
        ("b", "gpuMem", json!(-2048)),
        ("c", "gpuMem", json!("-2Gi")),
        ("d", "quota", json!({"request": 1.3})),
    ] {
        world.function(name, 2, "Nodes");
        world.server.edit(Kind::Function, name, |object| object["spec"]["share"][field] = value.clone());
        let function = world.server.get(Kind::Function, name).unwrap();
        let spec = json!({"function": "affine", "nodeName": "gpu-0", "share": function["spec"]["share"]});
        let object = json!({"metadata": {"name": name, "namespace": "apps"}, "spec": spec});
        world.server.create(Kind::Instance, object).unwrap();
    }
    world.run(20);
    for kind in [Kind::Function, Kind::Instance] {
        assert!(world.server.of_kind(kind).all(|one| ready(one) == ("False", "Invalid")), "{kind:?}");
    }
    assert_eq!((world.asked, world.leases()), (0, vec![0]));
    for name in ["a", "b", "c", "d"] {
        world.server.delete(Kind::Function, name);
        world.server.delete(Kind::Instance, name);
    }
    world.run(20);
    assert_eq!(world.server.of_kind(Kind::Instance).count() + world.server.of_kind(Kind::Function).count(), 0);
}

#[test]
fn a_deletion_during_a_grant_leaves_nothing() {
    for millis in (0..4000).step_by(200) {
        let mut world = World::new(millis, 2, 16 * GIB);
        world.function("f", 4, "Nodes");
        let until = world.now + Duration::from_millis(millis);
        while world.now < until {
            world.tick();
        }
        world.server.delete(Kind::Function, "f");
        // The controller may crash with its requests on their way.
        if millis % 400 == 0 {
            world.start_controller();
        }
        world.run(60);
        assert_eq!(world.leases(), [0, 0], "{millis}");
        assert_eq!(world.server.of_kind(Kind::Instance).count(), 0, "{millis}");
        assert_eq!(world.server.of_kind(Kind::Function).count(), 0, "{millis}");
    }
}

#[test]
fn instances_of_a_dead_node_are_made_elsewhere() {
    let mut world = World::new(4, 2, 16 * GIB);
    world.function("f", 3, "Nodes");
    world.run(20);
    world.daemons.get_mut("gpu-0").unwrap().is_up = false;
    world.run(90);
    let elsewhere = |world: &World| world.ready().iter().filter(|(_, node, _)| node == "gpu-1").count();
    assert_eq!(elsewhere(&world), 3);
    // Its daemon starts again with old leases, which have no holder: they end.
    let now = world.now;
    world.daemons.get_mut("gpu-0").unwrap().restart(now);
    world.run(60);
    assert_eq!(world.leases(), [0, 3]);
    world.check_settled();
}

/// A disturbance, or a change of a user.
fn disturb(world: &mut World) {
    let node = format!("gpu-{}", world.rng.below(3));
    let (now, replicas) = (world.now, world.rng.below(5));
    let name = if world.rng.one_in(2) { "f" } else { "g" };
    match world.rng.below(16) {
        0 => world.start_controller(),
        1 => world.daemons.get_mut(&node).unwrap().restart(now),
        2 => world.daemons.get_mut(&node).unwrap().is_up = false,
        3 | 4 => {
            let daemon = world.daemons.get_mut(&node).unwrap();
            if !daemon.is_up {
                daemon.restart(now);
            }
        }
        5 => world.cordon(&node, true),
        6 => world.cordon(&node, false),
        7 => world.server.delete(Kind::Function, name),
        8 => world.function(name, replicas, "Pack"),
        9 => {
            let part = 20 + replicas;
            world.server.edit(Kind::Function, name, |object| object["spec"]["share"]["smPartition"] = part.into());
        }
        10 => {
            let names: Vec<String> = world.ready().into_iter().map(|(name, ..)| name).collect();
            if let Some(name) = names.first() {
                world.server.delete(Kind::Instance, name);
            }
        }
        _ => world.scale(name, replicas),
    }
}

#[test]
fn all_settles_after_crashes_and_lost_messages() {
    let seeds = match std::env::var("ATOLL_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("ATOLL_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 1..9,
    };
    for seed in seeds {
        let settled = std::panic::catch_unwind(|| {
            let mut world = World::new(seed, 3, 16 * GIB);
            world.function("f", 4, "Nodes");
            world.has_faults = true;
            for _ in 0..60 {
                world.run(1);
                disturb(&mut world);
            }
            world.has_faults = false;
            for node in ["gpu-0", "gpu-1", "gpu-2"] {
                world.cordon(node, false);
                let now = world.now;
                world.daemons.get_mut(node).unwrap().restart(now);
            }
            // Longer than all pauses: nodes that refused are left out for a minute, and an instance
            // whose daemon does not answer is kept for twice its time to live.
            world.run(240);
            world.check_settled();
            for function in world.server.of_kind(Kind::Function) {
                assert_eq!(ready(function), ("True", "Granted"), "{function}");
            }
        });
        assert!(settled.is_ok(), "replay with ATOLL_SEED={seed}");
    }
}
