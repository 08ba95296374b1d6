//! Shares of functions on fake engines. They are set before the function accepts requests, on all
//! of its devices or on none.

use crate::support::{Notes, bundle, chain, fleet, ignore, load};
use atoll_core::DeviceId;
use atoll_core::placement::{PoolConfig, placement_by_name};
use atoll_engine::{ChainRequest, FunctionKey, ShareClient, ShareRequest, ShareSpec, Tenant};
use atoll_fleet::{FleetHandle, Inference, Placing, ShareRefusal, ShareRoom};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

fn client(instance: &str) -> ShareClient {
    ShareClient { tenant: Tenant::default(), instance: Some(instance.into()) }
}

fn share(quota_request: f64) -> ShareSpec {
    let request = ShareRequest { sm_partition: 100.0, quota_request, quota_limit: 1.0, group: 0 };
    ShareSpec::new(&request).unwrap()
}

fn set(fleet: &FleetHandle, instance: &str, function: &str) -> Result<(), String> {
    let function = FunctionKey::local(function);
    fleet.set_share(&client(instance), Some(&function), share(0.1)).map_err(|error| error.to_string())
}

/// Two devices that hold every function, each with room for a number of shares.
fn two(room: [usize; 2]) -> (FleetHandle, Vec<Arc<Notes>>) {
    let policy = placement_by_name("cost").unwrap();
    let (fleet, notes) = fleet(&["t", "t"], Placing::Pool(PoolConfig::new(policy)));
    notes.iter().zip(room).for_each(|(notes, room)| notes.shares_max.store(room, SeqCst));
    (fleet, notes)
}

fn held(notes: &[Arc<Notes>]) -> Vec<Vec<String>> {
    let names = |notes: &Arc<Notes>| notes.shares.lock().unwrap().keys().map(ToString::to_string).collect();
    notes.iter().map(names).collect()
}

#[test]
fn shares_are_on_a_device_before_the_function_takes_requests_and_leave_with_it() {
    let (fleet, notes) = two([4, 4]);
    set(&fleet, "a", "f").unwrap();
    assert_eq!(held(&notes), [[""; 0], []]);
    load(&fleet, "f", &bundle("t", 10, 1), None).unwrap();
    assert_eq!(held(&notes), [["a"], ["a"]]);
    let was_loaded = |notes: &Arc<Notes>| notes.shares.lock().unwrap()[&client("a")];
    assert!(!notes.iter().any(was_loaded), "the function took requests before its share was set");
    fleet.unload(&FunctionKey::local("f")).unwrap();
    assert_eq!(held(&notes), [[""; 0], []]);
    // A function that cannot be loaded leaves no share. A device that refuses the function has
    // none.
    notes.iter().for_each(|notes| notes.is_full.store(true, SeqCst));
    load(&fleet, "f", &bundle("t", 10, 1), None).unwrap_err();
    assert_eq!(held(&notes), [[""; 0], []]);
    notes[1].is_full.store(false, SeqCst);
    load(&fleet, "f", &bundle("t", 10, 1), None).unwrap();
    assert_eq!(held(&notes), [vec![], vec!["a"]]);
}

#[test]
fn a_share_that_one_device_refuses_holds_on_none_and_is_set_when_there_is_room() {
    let (fleet, notes) = two([2, 1]);
    set(&fleet, "a", "f").unwrap();
    set(&fleet, "b", "f").unwrap();
    load(&fleet, "f", &bundle("t", 10, 1), None).unwrap();
    assert_eq!(held(&notes), [["a"], ["a"]], "the first device had taken the second share");
    let refusals = fleet.share_refusals();
    let [ShareRefusal { client: refused, device, reason }] = &refusals[..] else { panic!("{refusals:?}") };
    assert_eq!((refused, device.as_str()), (&client("b"), "host:1"));
    assert!(reason.contains("1 clients with shares"), "{reason}");
    let error = set(&fleet, "c", "f").unwrap_err();
    assert!(error.contains("1 clients with shares"), "{error}");
    assert_eq!(held(&notes), [["a"], ["a"]]);
    // There is room once another share is gone.
    assert!(fleet.remove_share(&client("a")));
    assert_eq!((held(&notes), fleet.share_refusals()), (vec![vec!["b".to_owned()], vec!["b".to_owned()]], vec![]));
    // A refused share can be removed, and does not outlive its function.
    set(&fleet, "a", "f").unwrap_err();
    fleet.unload(&FunctionKey::local("f")).unwrap();
    assert_eq!(fleet.share_refusals(), []);
    assert!(fleet.remove_share(&client("b")) && !fleet.remove_share(&client("b")));
}

fn bind(fleet: &FleetHandle, instance: &str, device: u16) -> Result<(), String> {
    let function = FunctionKey::local("f");
    let set = fleet.set_share_on(&client(instance), &function, share(0.1), DeviceId(device));
    set.map_err(|error| error.to_string())
}

fn request(instance: &str) -> ChainRequest {
    ChainRequest { instance: Some(instance.into()), ..chain(&["f"]) }
}

#[test]
fn a_share_on_one_device_brings_its_requests_there() {
    let (fleet, notes) = two([4, 4]);
    bind(&fleet, "b", 1).unwrap();
    load(&fleet, "f", &bundle("t", 10, 1), None).unwrap();
    set(&fleet, "everywhere", "f").unwrap();
    assert_eq!(held(&notes), [vec!["everywhere"], vec!["b", "everywhere"]]);
    assert_eq!(fleet.device_of_share(&client("b")), Some(DeviceId(1)));
    assert_eq!(fleet.device_of_share(&client("everywhere")), None);
    for _ in 0..5 {
        fleet.submit(request("b"), ignore());
    }
    let on = |device: usize| notes[device].held.lock().unwrap().len();
    assert_eq!((on(0), on(1)), (0, 5), "the pool is not asked");
    let rooms = fleet.share_rooms();
    let names = |room: &ShareRoom| room.held.iter().map(|(client, _)| client.to_string()).collect::<Vec<_>>();
    assert_eq!(rooms.iter().map(names).collect::<Vec<_>>(), [vec!["everywhere"], vec!["b", "everywhere"]]);
    // It goes to another device, and leaves the first one.
    bind(&fleet, "b", 0).unwrap();
    assert_eq!(held(&notes), [vec!["b", "everywhere"], vec!["everywhere"]]);
    fleet.submit(request("b"), ignore());
    assert_eq!((on(0), on(1)), (1, 5));
    load(&fleet, "only", &bundle("t", 10, 2), Some("host:1")).unwrap();
    let wrong = fleet.set_share_on(&client("c"), &FunctionKey::local("only"), share(0.1), DeviceId(0));
    let wrong = wrong.unwrap_err().to_string();
    assert!(wrong.contains("bound to device 0, and it is on host:1 only"), "{wrong}");
}

#[test]
fn a_share_whose_device_is_lost_drained_or_full_does_not_hold() {
    let (fleet, notes) = two([4, 1]);
    load(&fleet, "f", &bundle("t", 10, 1), None).unwrap();
    bind(&fleet, "b", 1).unwrap();
    let full = bind(&fleet, "c", 1).unwrap_err();
    assert!(full.contains("1 clients with shares"), "{full}");
    bind(&fleet, "c", 0).unwrap();
    let holds = |instance: &str| fleet.holds_share(&client(instance));
    assert!(holds("b") && holds("c"));
    fleet.set_drained("host:1", true).unwrap();
    assert!(!holds("b") && holds("c"));
    assert!(!fleet.share_rooms()[1].is_open);
    fleet.set_drained("host:1", false).unwrap();
    assert!(holds("b"));
    notes[1].lose();
    assert!(!holds("b") && holds("c"));
    let lost = bind(&fleet, "d", 1).unwrap_err();
    assert!(lost.contains("bound to host:1, which is lost"), "{lost}");
    // A function that comes back without the device does not bring the share there.
    fleet.unload(&FunctionKey::local("f")).unwrap();
    load(&fleet, "f", &bundle("t", 10, 1), None).unwrap();
    assert!(!holds("b") && holds("c"));
    let refusals = fleet.share_refusals();
    let [ShareRefusal { client: refused, device, .. }] = &refusals[..] else { panic!("{refusals:?}") };
    assert_eq!((refused, device.as_str()), (&client("b"), "device 1"));
}
