//! The devices of a node as `ResourceSlice` resources: what the scheduler sees.
//!
//! Each device of the daemon is a pool. How it can be shared depends on the features of the API
//! server, so there are several layouts, from best to worst.

use crate::names::{CAPACITIES, DRIVER, label, pool_name};
use crate::quantity;
use crate::share::{Partition, Share};
use atoll_kubernetes::capacity::Device;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The capacities as counters, whose names are DNS labels.
const COUNTERS: [&str; 3] = ["sm", "memory", "real-time-slots"];

/// How devices are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// A device for any number of claims, which consume its capacity.
    Capacity,
    /// Partitions of fixed sizes, which consume counters of another slice of the pool.
    Counters,
    /// The same with counters in the slice of the devices, as in Kubernetes 1.33 and 1.34.
    CountersInSlice,
    /// Whole devices.
    Whole,
}

/// All layouts, from best to worst.
pub(crate) const LAYOUTS: [Layout; 4] = [Layout::Capacity, Layout::Counters, Layout::CountersInSlice, Layout::Whole];

/// A slice that should be there.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slice {
    /// Its name.
    pub(crate) name: String,
    /// The name of its pool.
    pub(crate) pool: String,
    /// Its specification, without the generation of the pool.
    pub(crate) spec: Value,
}

/// The node as slices name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Its name.
    pub(crate) name: String,
    /// Its UID: slices are deleted with their node.
    pub(crate) uid: String,
}

impl Layout {
    /// Whether the API server kept the fields of this layout in a slice with devices.
    pub(crate) fn is_kept(self, slice: &Value) -> bool {
        let device = &slice["spec"]["devices"][0];
        let has_consumption = !device["consumesCounters"].is_null();
        match self {
            Layout::Capacity => device["allowMultipleAllocations"] == true,
            Layout::Counters => has_consumption,
            Layout::CountersInSlice => has_consumption && !slice["spec"]["sharedCounters"].is_null(),
            Layout::Whole => true,
        }
    }

    /// The slices of the devices that take leases.
    pub(crate) fn slices(self, node: &str, devices: &[Device]) -> Vec<Slice> {
        devices.iter().filter(|device| device.is_healthy).flat_map(|device| self.pool(node, device)).collect()
    }

    /// The slices of a device. The first one has devices.
    fn pool(self, node: &str, device: &Device) -> Vec<Slice> {
        let label = label(&device.name);
        let pool = pool_name(node, &device.name);
        let slice = |suffix: &str, count: u64, fields: Value| {
            let mut spec = json!({
                "driver": DRIVER, "nodeName": node, "pool": { "name": pool, "resourceSliceCount": count },
            });
            merge(&mut spec, fields);
            Slice { name: format!("{node}-{DRIVER}-{label}{suffix}"), pool: pool.clone(), spec }
        };
        let partitions = || Partition::all(device);
        let devices = |partitions: Vec<Partition>| -> Vec<Value> {
            partitions.into_iter().map(|partition| self.device(device, partition)).collect()
        };
        let counters = || json!([{ "name": label, "counters": amounts(COUNTERS, Share::whole(device)) }]);
        match self {
            Layout::Capacity | Layout::Whole => {
                vec![slice("", 1, json!({ "devices": devices(vec![Partition::Whole]) }))]
            }
            Layout::Counters => vec![
                slice("", 2, json!({ "devices": devices(partitions()) })),
                slice("-counters", 2, json!({ "sharedCounters": counters() })),
            ],
            Layout::CountersInSlice => {
                vec![slice("", 1, json!({ "devices": devices(partitions()), "sharedCounters": counters() }))]
            }
        }
    }

    fn device(self, device: &Device, partition: Partition) -> Value {
        let share = partition.share(device);
        let kind = device.name.split(':').next().unwrap_or_default();
        let mut made = json!({
            "name": format!("{}{}", label(&device.name), partition.suffix()),
            "attributes": {
                "kind": { "string": kind },
                "device": { "string": device.name },
                "realTime": { "bool": share.slots > 0 },
            },
            "capacity": amounts(CAPACITIES, share),
        });
        match self {
            Layout::Capacity => {
                made["allowMultipleAllocations"] = true.into();
                for (name, policy) in CAPACITIES.into_iter().zip(policies(share)) {
                    if let Some(policy) = policy {
                        made["capacity"][name]["requestPolicy"] = policy;
                    }
                }
            }
            Layout::Counters | Layout::CountersInSlice => {
                let counters = amounts(COUNTERS, share);
                made["consumesCounters"] = json!([{ "counterSet": label(&device.name), "counters": counters }]);
            }
            Layout::Whole => {}
        }
        made
    }
}

/// A share as capacities or counters.
fn amounts(names: [&str; 3], share: Share) -> Value {
    let values = [share.sm_pct.to_string(), quantity::bytes(share.memory_bytes), share.slots.to_string()];
    let amounts = names.into_iter().zip(values).map(|(name, value)| (name.to_owned(), json!({ "value": value })));
    Value::Object(amounts.collect::<Map<_, _>>())
}

/// What a claim may consume of each capacity. One that names no amount gets the whole device, without
/// real-time slots. There is no policy where a device has no room for two steps.
fn policies(share: Share) -> [Option<Value>; 3] {
    const MIB: u64 = 1 << 20;
    let policy = |default: String, min: &str, step: &str| {
        let range = json!({ "min": min, "step": step });
        json!({ "default": default, "validRange": range })
    };
    [
        Some(policy(share.sm_pct.to_string(), "1", "1")),
        (share.memory_bytes >= 2 * MIB).then(|| policy(quantity::bytes(share.memory_bytes), "1Mi", "1Mi")),
        (share.slots > 0).then(|| policy("0".into(), "0", "1")),
    ]
}

/// Adds fields to an object.
fn merge(target: &mut Value, fields: Value) {
    if let (Some(target), Value::Object(fields)) = (target.as_object_mut(), fields) {
        target.extend(fields);
    }
}

/// A write that makes the slices of the API server those that should be there.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Write {
    /// Creates a slice.
    Create(Value),
    /// Replaces the slice with this name.
    Replace(String, Value),
    /// Deletes the slice with this name.
    Delete(String),
}

/// What to write, from the slices of this node and driver that are there. All slices of a pool get a
/// new generation if one of them changes, as the scheduler asks.
pub(crate) fn writes(node: &Node, there: &[Value], wanted: &[Slice]) -> Vec<Write> {
    let mut pools: BTreeMap<&str, Vec<&Slice>> = BTreeMap::new();
    for slice in wanted {
        pools.entry(&slice.pool).or_default().push(slice);
    }
    let named = |name: &str| there.iter().find(|slice| slice["metadata"]["name"] == name);
    let mut writes = Vec::new();
    for (pool, slices) in pools {
        let of_pool = || there.iter().filter(|slice| slice["spec"]["pool"]["name"] == pool);
        let generations = || of_pool().filter_map(|slice| slice["spec"]["pool"]["generation"].as_i64());
        let is_one = generations().min() == generations().max() && of_pool().count() == slices.len();
        let is_same = |slice: &&Slice| named(&slice.name).is_some_and(|found| plain(&found["spec"]) == slice.spec);
        if is_one && slices.iter().all(is_same) {
            continue;
        }
        let generation = generations().max().unwrap_or(0) + 1;
        for slice in slices {
            let mut spec = slice.spec.clone();
            spec["pool"]["generation"] = generation.into();
            let mut resource = json!({
                "kind": "ResourceSlice",
                "metadata": {
                    "name": slice.name,
                    "ownerReferences": [
                        { "apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid, "controller": true },
                    ],
                },
                "spec": spec,
            });
            writes.push(match named(&slice.name) {
                None => Write::Create(resource),
                Some(found) => {
                    resource["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"].clone();
                    Write::Replace(slice.name.clone(), resource)
                }
            });
        }
    }
    for slice in there {
        let name = slice["metadata"]["name"].as_str().unwrap_or_default();
        if !wanted.iter().any(|wanted| wanted.name == name) {
            writes.push(Write::Delete(name.into()));
        }
    }
    writes
}

/// A specification without the generation and without empty fields.
fn plain(spec: &Value) -> Value {
    let mut spec = spec.clone();
    if let Some(fields) = spec.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    if let Some(pool) = spec["pool"].as_object_mut() {
        pool.remove("generation");
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, slots: u32) -> Device {
        Device { name: name.into(), is_healthy: true, memory_bytes: 1 << 30, real_time_slots: slots }
    }

    fn node() -> Node {
        Node { name: "gpu-1".into(), uid: "u".into() }
    }

    #[test]
    fn a_device_is_consumed_by_several_claims() {
        let lost = Device { is_healthy: false, ..device("cuda:1", 2) };
        let slices = Layout::Capacity.slices("gpu-1", &[device("cuda:0", 2), lost]);
        let expected = json!({
            "driver": DRIVER, "nodeName": "gpu-1", "pool": { "name": "gpu-1/cuda-0", "resourceSliceCount": 1 },
            "devices": [{
                "name": "cuda-0",
                "attributes": {
                    "kind": { "string": "cuda" }, "device": { "string": "cuda:0" }, "realTime": { "bool": true },
                },
                "allowMultipleAllocations": true,
                "capacity": {
                    "sm": {
                        "value": "100",
                        "requestPolicy": { "default": "100", "validRange": { "min": "1", "step": "1" } },
                    },
                    "memory": {
                        "value": "1Gi",
                        "requestPolicy": { "default": "1Gi", "validRange": { "min": "1Mi", "step": "1Mi" } },
                    },
                    "realTimeSlots": {
                        "value": "2",
                        "requestPolicy": { "default": "0", "validRange": { "min": "0", "step": "1" } },
                    },
                },
            }],
        });
        let [slice] = slices.as_slice() else { panic!("{slices:?}") };
        assert_eq!(slice.spec, expected);
        assert_eq!(slice.name, "gpu-1-gpu.atoll.dev-cuda-0");
        let without = &Layout::Capacity.slices("gpu-1", &[device("cuda:0", 0)])[0].spec["devices"][0];
        assert!(without["capacity"]["realTimeSlots"]["requestPolicy"].is_null());
    }

    #[test]
    fn parts_of_a_device_consume_its_counters() {
        for (layout, count) in [(Layout::Counters, 2), (Layout::CountersInSlice, 1)] {
            let slices = layout.slices("gpu-1", &[device("host:0", 1)]);
            assert_eq!(slices.len(), count);
            let counters = &slices[count - 1].spec["sharedCounters"];
            let expected = json!([{
                "name": "host-0",
                "counters": {
                    "sm": { "value": "100" }, "memory": { "value": "1Gi" }, "real-time-slots": { "value": "1" },
                },
            }]);
            assert_eq!(*counters, expected);
            let devices = slices[0].spec["devices"].as_array().unwrap();
            let named = |name: &str| devices.iter().find(|device| device["name"] == name).unwrap();
            assert_eq!(named("host-0")["consumesCounters"][0]["counters"], expected[0]["counters"]);
            let part = named("host-0-25-0-rt");
            let amounts = json!({
                "sm": { "value": "25" }, "memory": { "value": "256Mi" }, "real-time-slots": { "value": "1" },
            });
            assert_eq!(part["consumesCounters"], json!([{ "counterSet": "host-0", "counters": amounts }]));
            assert_eq!(part["capacity"]["realTimeSlots"]["value"], "1");
            assert_eq!(named("host-0-25-3")["attributes"]["realTime"]["bool"], false);
        }
    }

    #[test]
    fn a_layout_counts_only_if_its_fields_are_kept() {
        for layout in LAYOUTS {
            let mut slice = json!({ "spec": layout.slices("n", &[device("host:0", 1)])[0].spec });
            assert!(layout.is_kept(&slice), "{layout:?}");
            let first = slice["spec"]["devices"][0].as_object_mut().unwrap();
            first.remove("allowMultipleAllocations");
            first.remove("consumesCounters");
            assert_eq!(layout.is_kept(&slice), layout == Layout::Whole);
        }
    }

    /// The slices of an API server after writes.
    fn applied(mut there: Vec<Value>, writes: Vec<Write>) -> Vec<Value> {
        for write in writes {
            match write {
                Write::Create(slice) => there.push(slice),
                Write::Replace(name, slice) => {
                    *there.iter_mut().find(|one| one["metadata"]["name"] == name.as_str()).unwrap() = slice;
                }
                Write::Delete(name) => there.retain(|one| one["metadata"]["name"] != name.as_str()),
            }
        }
        there
    }

    #[test]
    fn slices_become_those_that_should_be_there() {
        let both = [device("cuda:0", 1), device("cuda:1", 1)];
        let wanted = Layout::Counters.slices("gpu-1", &both);
        let there = applied(Vec::new(), writes(&node(), &[], &wanted));
        assert_eq!(there.len(), 4);
        let owner = json!([{ "apiVersion": "v1", "kind": "Node", "name": "gpu-1", "uid": "u", "controller": true }]);
        assert!(there.iter().all(|slice| slice["metadata"]["ownerReferences"] == owner));
        assert_eq!(writes(&node(), &there, &wanted), []);
        // One of a pool was deleted: both get a new generation, and the other pool does not.
        let rest: Vec<Value> = there[1..].to_vec();
        let repaired = writes(&node(), &rest, &wanted);
        assert_eq!(repaired.len(), 2);
        let there = applied(rest, repaired);
        assert_eq!(writes(&node(), &there, &wanted), []);
        let generations = |there: &[Value], pool: &str| -> Vec<i64> {
            let of_pool = there.iter().filter(|slice| slice["spec"]["pool"]["name"] == pool);
            of_pool.map(|slice| slice["spec"]["pool"]["generation"].as_i64().unwrap()).collect()
        };
        assert_eq!(generations(&there, "gpu-1/cuda-0"), [2, 2]);
        assert_eq!(generations(&there, "gpu-1/cuda-1"), [1, 1]);
        // Another layout: slices that it does not have are deleted.
        let wanted = Layout::Capacity.slices("gpu-1", &both[..1]);
        let there = applied(there.clone(), writes(&node(), &there, &wanted));
        assert_eq!((there.len(), generations(&there, "gpu-1/cuda-0")), (1, vec![3]));
        assert_eq!(writes(&node(), &there, &wanted), []);
    }
}
