//! Instances of the autoscaler on three devices that accept all shares, with a real store.

use super::*;
use atoll_engine::{ChainRequest, EngineStatistics, FunctionOptions, InvocationId, InvokeError, Reply};
use atoll_fleet::{DeviceState, FleetStatus, Placed};
use atoll_kgraph::Bundle;
use atoll_store::StoreConfig;

/// Devices with these names. Some of the clients that are bound to them have lost theirs.
struct Devices {
    names: Vec<String>,
    bound: Mutex<BTreeMap<ShareClient, DeviceId>>,
    lost: Mutex<BTreeSet<ShareClient>>,
}

impl Devices {
    fn new(count: usize) -> Arc<Devices> {
        let names = (0..count).map(|number| format!("host:{number}")).collect();
        Arc::new(Devices { names, bound: Mutex::default(), lost: Mutex::default() })
    }
}

impl Inference for Devices {
    fn devices(&self) -> &[String] {
        &self.names
    }

    fn load(&self, _: Arc<Bundle>, options: FunctionOptions, _: Option<&str>) -> Result<Placed, EngineError> {
        Err(EngineError::NotLoaded(options.key))
    }

    fn unload(&self, function: &FunctionKey) -> Result<(), EngineError> {
        Err(EngineError::NotLoaded(function.clone()))
    }

    fn set_share_on(
        &self,
        client: &ShareClient,
        _: &FunctionKey,
        _: ShareSpec,
        device: DeviceId,
    ) -> Result<(), EngineError> {
        self.bound.lock().unwrap().insert(client.clone(), device);
        Ok(())
    }

    fn device_of_share(&self, client: &ShareClient) -> Option<DeviceId> {
        self.bound.lock().unwrap().get(client).copied()
    }

    fn holds_share(&self, client: &ShareClient) -> bool {
        !self.lost.lock().unwrap().contains(client)
    }

    fn submit(&self, _: ChainRequest, reply: Reply) -> InvocationId {
        reply(Err(InvokeError::UnknownFunction));
        InvocationId(0)
    }

    fn cancel(&self, _: InvocationId) {}

    fn statistics(&self) -> Vec<EngineStatistics> {
        Vec::new()
    }

    fn devices_state(&self) -> FleetStatus {
        let devices = self.names.iter().map(|_| DeviceState::default()).collect();
        FleetStatus { devices, ..FleetStatus::default() }
    }
}

fn instance(device: Option<&str>) -> Instance {
    Instance {
        function: "f".into(),
        class: None,
        sm_partition: 10.0,
        quota_request: 0.1,
        quota_limit: 0.2,
        gpu_mem: None,
        latency_ms: None,
        autoscaled: Some("a request found no instance".into()),
        device: device.map(str::to_owned),
        lease: None,
    }
}

#[test]
fn instances_of_older_stores_and_of_missing_devices_are_left_to_the_autoscaler() {
    let folder = tempfile::tempdir().unwrap();
    let config = StoreConfig { folder: folder.path().to_owned(), memory_bytes: 1 << 20 };
    let store = Arc::new(Store::open(&config).unwrap());
    let operators = Instance { autoscaled: None, ..instance(None) };
    let mut old = serde_json::to_value(instance(None)).unwrap();
    old.as_object_mut().unwrap().remove("device");
    let put = |name: &str, record: String| {
        store.put_instance(DeploymentKey { tenant: Tenant::default(), name: name.into() }, record).unwrap();
    };
    put("bound", serde_json::to_string(&instance(Some("host:0"))).unwrap());
    put("gone", serde_json::to_string(&instance(Some("host:7"))).unwrap());
    put("old", old.to_string());
    put("operators", serde_json::to_string(&operators).unwrap());
    let restored = |devices: usize| {
        let instances = Instances::new(Devices::new(devices), Some(store.clone()));
        let device = |(key, instance): (FunctionKey, Arc<Instance>)| (key.name, instance.device.clone());
        instances.all().into_iter().map(device).collect::<Vec<_>>()
    };
    let on = |name: &str, device: Option<&str>| (name.to_owned(), device.map(str::to_owned));
    let expected = [on("bound", Some("host:0")), on("old", Some("host:0")), on("operators", None)];
    assert_eq!(restored(1), expected, "an instance of the older form is on the only device");
    assert_eq!(restored(2), [on("bound", Some("host:0")), on("operators", None)]);
    let left: Vec<String> = store.instances().into_iter().map(|(key, _)| key.name).collect();
    assert_eq!(left, ["bound", "operators"], "the store keeps no record that is not restored");
}

#[test]
fn a_request_that_loses_two_devices_is_not_given_to_a_third() {
    let devices = Devices::new(3);
    let instances = Instances::new(devices.clone(), None);
    for (name, device) in [("a", "host:0"), ("b", "host:1"), ("c", "host:2")] {
        let key = FunctionKey { tenant: Tenant::default(), name: name.into() };
        instances.create(key, instance(Some(device)), true).unwrap();
    }
    let function = FunctionKey { tenant: Tenant::default(), name: "f".into() };
    let urgency = Urgency { class: Class::BestEffort, priority: 0, deadline: None };
    let mut route = instances.route(&function, urgency, None, 1);
    let lost = Err(InvokeError::Device("lost".into()));
    let mut tried = BTreeSet::new();
    for is_refused in [true, false] {
        let name = route.next().expect("an instance is there");
        let client = ShareClient { tenant: Tenant::default(), instance: Some(name.clone()) };
        devices.lost.lock().unwrap().insert(client);
        assert!(tried.insert(name), "an instance is tried twice");
        assert_eq!(route.is_refused(&lost), is_refused);
    }
}
