//! Leases with a real store, and a device that accepts all shares unless it is told to refuse them.

use super::*;
use crate::instances::Instance;
use atoll_engine::{
    ChainRequest, EngineError, EngineStatistics, FunctionOptions, InvocationId, InvokeError, Reply, ShareClient,
};
use atoll_fleet::{DeviceState, FleetStatus, Placed};
use atoll_kgraph::Bundle;
use atoll_store::{DeploymentKey, StoreConfig};
use std::collections::BTreeSet;
use std::thread::scope;

/// One device. It does not hold the shares of these clients.
#[derive(Default)]
struct Device(Mutex<BTreeSet<ShareClient>>);

impl Inference for Device {
    fn devices(&self) -> &[String] {
        static NAMES: std::sync::LazyLock<[String; 1]> = std::sync::LazyLock::new(|| ["host:0".to_owned()]);
        &*NAMES
    }

    fn load(&self, _: Arc<Bundle>, options: FunctionOptions, _: Option<&str>) -> Result<Placed, EngineError> {
        Err(EngineError::NotLoaded(options.key))
    }

    fn unload(&self, function: &FunctionKey) -> Result<(), EngineError> {
        Err(EngineError::NotLoaded(function.clone()))
    }

    fn remove_share(&self, client: &ShareClient) -> bool {
        self.0.lock().unwrap().remove(client)
    }

    fn holds_share(&self, client: &ShareClient) -> bool {
        !self.0.lock().unwrap().contains(client)
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
        FleetStatus { devices: vec![DeviceState::default()], ..FleetStatus::default() }
    }
}

struct Daemon {
    _folder: tempfile::TempDir,
    device: Arc<Device>,
    instances: Instances,
    leases: Leases,
    caller: Principal,
}

/// A daemon; `operators` is the name of an instance that an operator created.
fn daemon(operators: Option<&str>) -> Daemon {
    let folder = tempfile::tempdir().unwrap();
    let config = StoreConfig { folder: folder.path().to_owned(), memory_bytes: 1 << 20 };
    let store = Arc::new(Store::open(&config).unwrap());
    let caller = Principal::of_test("vision");
    if let Some(name) = operators {
        let record = serde_json::to_string(&operators_instance()).unwrap();
        store.put_instance(DeploymentKey { tenant: caller.tenant.clone(), name: name.into() }, record).unwrap();
    }
    let device = Arc::new(Device::default());
    let instances = Instances::new(device.clone(), Some(store.clone()));
    let leases = Leases::open(store, device.clone(), &instances, 4).unwrap();
    Daemon { _folder: folder, device, instances, leases, caller }
}

fn operators_instance() -> Instance {
    Instance {
        function: "f".into(),
        class: None,
        sm_partition: 10.0,
        quota_request: 0.1,
        quota_limit: 0.2,
        gpu_mem: None,
        latency_ms: None,
        autoscaled: None,
        device: None,
        lease: None,
    }
}

impl Daemon {
    fn grant(&self, request_id: &str) -> Result<LeaseReport, LeaseError> {
        let spec = LeaseSpec {
            request_id: request_id.into(),
            holder: "a".into(),
            function: "f".into(),
            sm_partition: 10.0,
            quota_request: 0.1,
            quota_limit: 0.2,
            gpu_mem: 1,
            ttl_s: 5,
            ..LeaseSpec::default()
        };
        let class = atoll_engine::Class::BestEffort;
        let target = Target { tenant: self.caller.tenant.clone(), function: "f".into(), class, device: DeviceId(0) };
        self.leases.grant(&self.instances, &spec, &target)
    }

    fn key(&self, name: &str) -> FunctionKey {
        FunctionKey { tenant: self.caller.tenant.clone(), name: name.into() }
    }

    fn left(&self) -> Vec<u64> {
        self.leases.list(&self.caller).iter().map(|lease| lease.lease).collect()
    }
}

fn hold(lease: &LeaseReport) -> LeaseHold {
    LeaseHold { lease: lease.lease, epoch: lease.epoch, holder: lease.holder.clone() }
}

#[test]
fn leases_without_a_share_or_a_function_end_and_are_not_renewed() {
    let daemon = daemon(None);
    let [first, second, third] = ["1", "2", "3"].map(|id| daemon.grant(id).unwrap());
    let here = |_: &FunctionKey| Home::On(vec![DeviceId(0)]);
    daemon.leases.tick(&daemon.instances, here);
    daemon.leases.tick(&daemon.instances, |_| Home::Loading);
    assert_eq!(daemon.left(), [first.lease, second.lease, third.lease]);
    daemon.device.0.lock().unwrap().insert(client(&daemon.key(&second.instance)));
    daemon.leases.tick(&daemon.instances, here);
    assert_eq!(daemon.left(), [first.lease, third.lease], "the device refuses its share");
    assert!(daemon.instances.find(&daemon.key(&second.instance)).is_none());
    let renewed = daemon.leases.renew(&daemon.instances, &daemon.caller, &hold(&second));
    assert!(matches!(renewed, Err(LeaseError::Refused(Refusal::NoLease(_)))), "{renewed:?}");
    let repeated = daemon.grant("2");
    assert!(matches!(repeated, Err(LeaseError::Refused(Refusal::Ended))), "{repeated:?}");
    daemon.instances.remove_any(&daemon.key(&first.instance)).unwrap();
    daemon.leases.tick(&daemon.instances, here);
    assert_eq!(daemon.left(), [third.lease], "its instance is not there");
    daemon.leases.tick(&daemon.instances, |_| Home::Gone);
    assert_eq!((daemon.left(), daemon.instances.all().len()), (vec![], 0));
}

#[test]
fn an_instance_of_an_operator_is_never_that_of_a_lease() {
    // An older daemon accepted any name for an instance.
    let daemon = daemon(Some("lease-1"));
    let name = daemon.key("lease-1");
    let refused = daemon.grant("1");
    assert!(matches!(refused, Err(LeaseError::Instance(InstanceError::Exists(_)))), "{refused:?}");
    assert_eq!(*daemon.instances.find(&name).expect("it stays"), operators_instance());
    let granted = daemon.grant("1").unwrap();
    assert_eq!(daemon.left(), [granted.lease]);
    daemon.leases.release(&daemon.instances, &daemon.caller, &hold(&granted)).unwrap();
    assert_eq!(daemon.instances.all().len(), 1);
}

#[test]
fn each_holder_is_told_its_own_epoch_only() {
    let daemon = daemon(None);
    let old = daemon.grant("1").unwrap();
    let taker = LeaseHold { holder: "b".into(), ..hold(&old) };
    let (renewed, taken) = scope(|scope| {
        let renew = || daemon.leases.renew(&daemon.instances, &daemon.caller, &hold(&old));
        let renewals = scope.spawn(move || (0..200).map(|_| renew()).collect::<Vec<_>>());
        let taken = daemon.leases.take_over(&daemon.instances, &daemon.caller, &taker).unwrap();
        (renewals.join().unwrap(), taken)
    });
    assert_eq!((taken.holder.as_str(), taken.lease), ("b", old.lease));
    for lease in renewed.into_iter().flatten() {
        assert_eq!((lease.epoch, lease.holder.as_str()), (old.epoch, "a"));
    }
}
