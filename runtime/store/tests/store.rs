//! The store: access rights, tiers, quotas, and recovery after a SIGKILL.

use atoll_core::{Class, Tenant};
use atoll_protocol::DataType;
use atoll_sealed::{Digest, Sealed};
use atoll_store::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn open(folder: &Path, memory_bytes: u64) -> Store {
    Store::open(&StoreConfig { folder: folder.into(), memory_bytes }).expect("a store")
}

fn tenant(name: &str) -> Tenant {
    name.parse().expect("a name")
}

fn put(store: &Store, who: &str, bytes: &[u8]) -> Result<Digest, StoreError> {
    store.put(&tenant(who), &Quota::NONE, Class::BestEffort, None, Sealed::of("test", bytes).expect("memory"))
}

fn get(store: &Store, who: &str, digest: Digest) -> Result<Vec<u8>, StoreError> {
    store.lease(&tenant(who), digest).map(|lease| lease.content.to_vec().expect("memory"))
}

#[test]
fn objects_survive_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let form = Form { datatype: DataType::Fp32, shape: vec![2] };
    let digest = {
        let store = open(folder.path(), 1 << 20);
        let content = Sealed::of("test", &[7; 8]).unwrap();
        let digest = store.put(&tenant("a"), &Quota::NONE, Class::RealTime, Some(form.clone()), content).unwrap();
        // As after a SIGKILL: nothing is closed.
        std::mem::forget(store);
        digest
    };
    assert_eq!(digest, Digest::of(&[7; 8]));
    // The leaked database still locks the index, so the test opens a copy, as another process would
    // find it.
    let copy = tempfile::tempdir().unwrap();
    fs::create_dir(copy.path().join("objects")).unwrap();
    for file in ["index.redb".to_string(), format!("objects/{digest}")] {
        fs::copy(folder.path().join(&file), copy.path().join(&file)).unwrap();
    }
    let store = open(copy.path(), 1 << 20);
    assert_eq!(get(&store, "a", digest).unwrap(), [7; 8]);
    let info = store.list(&tenant("a")).remove(0);
    assert_eq!(
        (info.digest, info.bytes, info.class, info.form, info.in_memory),
        (digest, 8, Class::RealTime, Some(form), true)
    );
    assert_eq!(store.statistics().read_from_disk, 1);
}

#[test]
fn an_object_is_visible_to_its_tenants_only() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 1 << 20);
    let secret = put(&store, "a", b"secret").unwrap();
    let nothing = Digest::of(b"nothing");
    for digest in [secret, nothing] {
        assert!(matches!(get(&store, "b", digest), Err(StoreError::NoObject(found)) if found == digest));
        assert!(matches!(store.remove(&tenant("b"), digest), Err(StoreError::NoObject(found)) if found == digest));
    }
    assert!(store.list(&tenant("b")).is_empty());
    // A tenant with the same bytes may store the same object; removing it does not affect other
    // tenants.
    assert_eq!(put(&store, "b", b"secret").unwrap(), secret);
    assert_eq!(
        (store.statistics().objects, store.usage(&tenant("a")).bytes, store.usage(&tenant("b")).bytes),
        (1, 6, 6)
    );
    store.remove(&tenant("a"), secret).unwrap();
    assert!(get(&store, "a", secret).is_err());
    assert_eq!(get(&store, "b", secret).unwrap(), b"secret");
    store.remove(&tenant("b"), secret).unwrap();
    assert_eq!(
        (store.statistics(), fs::read_dir(folder.path().join("objects")).unwrap().count()),
        (StoreStatistics { found_in_memory: 1, ..Default::default() }, 0)
    );
}

#[test]
fn a_leased_object_stays_readable() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 100);
    let digest = put(&store, "a", &[1; 80]).unwrap();
    let lease = store.lease(&tenant("a"), digest).unwrap();
    put(&store, "a", &[2; 80]).unwrap();
    store.remove(&tenant("a"), digest).unwrap();
    assert_eq!(lease.content.to_vec().unwrap(), [1; 80]);
    assert!(get(&store, "a", digest).is_err());
}

#[test]
fn the_least_recently_used_leaves_memory_and_best_effort_first() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 300);
    let a = tenant("a");
    let urgent = store.put(&a, &Quota::NONE, Class::RealTime, None, Sealed::of("test", &[0; 100]).unwrap()).unwrap();
    let [one, two, three] = [1, 2, 3].map(|byte| {
        let digest = put(&store, "a", &[byte; 100]).unwrap();
        if byte == 2 {
            get(&store, "a", Digest::of(&[1; 100])).unwrap();
        }
        digest
    });
    let in_memory = |store: &Store| -> Vec<Digest> {
        store.list(&a).into_iter().filter(|info| info.in_memory).map(|info| info.digest).collect()
    };
    let sorted = |mut digests: Vec<Digest>| {
        digests.sort();
        digests
    };
    assert_eq!(in_memory(&store), sorted(vec![urgent, one, three]), "two was used longest ago");
    assert_eq!(get(&store, "a", two).unwrap(), [2; 100]);
    assert_eq!(in_memory(&store), sorted(vec![urgent, two, three]));
    let large = put(&store, "a", &[9; 301]).unwrap();
    assert_eq!(
        in_memory(&store),
        sorted(vec![urgent, two, three]),
        "an object larger than the memory displaces no other object"
    );
    assert_eq!(get(&store, "a", large).unwrap(), [9; 301]);
    assert_eq!(store.statistics().memory_bytes, 300);
}

#[test]
fn an_object_that_another_tenant_stores_for_real_time_work_stays_longer_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 200);
    let urgent = |who: &str, byte: u8| {
        let content = Sealed::of("test", &[byte; 100]).unwrap();
        store.put(&tenant(who), &Quota::NONE, Class::RealTime, None, content).unwrap()
    };
    let in_memory = || -> Vec<Digest> {
        store.list(&tenant("a")).into_iter().filter(|info| info.in_memory).map(|info| info.digest).collect()
    };
    let shared = put(&store, "a", &[1; 100]).unwrap();
    put(&store, "a", &[2; 100]).unwrap();
    assert_eq!(urgent("b", 1), shared);
    let third = put(&store, "a", &[3; 100]).unwrap();
    let mut expected = [shared, third];
    expected.sort();
    assert_eq!(in_memory(), expected, "the second was stored for best-effort work only");
    // It is used, removed by both, and others need its memory.
    get(&store, "a", shared).unwrap();
    store.remove(&tenant("a"), shared).unwrap();
    store.remove(&tenant("b"), shared).unwrap();
    for byte in 4..8 {
        put(&store, "a", &[byte; 100]).unwrap();
    }
    assert_eq!((in_memory().len(), store.statistics().memory_bytes), (2, 200));
}

#[test]
fn what_is_read_stays_in_memory_and_an_object_may_fill_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 100);
    let in_memory = || -> Vec<Digest> {
        store.list(&tenant("a")).into_iter().filter(|info| info.in_memory).map(|info| info.digest).collect()
    };
    let read = put(&store, "a", &[1; 80]).unwrap();
    let lease = store.lease(&tenant("a"), read).unwrap();
    put(&store, "a", &[2; 80]).unwrap();
    assert_eq!((in_memory(), store.statistics().left_memory), (vec![read], 1), "it is being read");
    drop(lease);
    let third = put(&store, "a", &[3; 80]).unwrap();
    assert_eq!((in_memory(), store.statistics().left_memory), (vec![third], 2));
    let whole = put(&store, "a", &[4; 100]).unwrap();
    assert_eq!((in_memory(), store.statistics().memory_bytes), (vec![whole], 100));
}

#[test]
fn storing_an_object_again_changes_its_form_only_and_a_refused_one_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let form = |shape: &[i64]| Some(Form { datatype: DataType::Uint8, shape: shape.to_vec() });
    let put = |store: &Store, class, form| {
        store.put(&tenant("a"), &Quota::NONE, class, form, Sealed::of("test", &[7; 8]).unwrap()).unwrap()
    };
    let found = |store: &Store| {
        let info = store.list(&tenant("a")).remove(0);
        (info.class, info.form)
    };
    let store = open(folder.path(), 1 << 20);
    put(&store, Class::BestEffort, form(&[8]));
    put(&store, Class::RealTime, None);
    assert_eq!(found(&store), (Class::BestEffort, form(&[8])));
    put(&store, Class::RealTime, form(&[2, 4]));
    assert_eq!(found(&store), (Class::BestEffort, form(&[2, 4])));
    let usage = store.usage(&tenant("a"));
    assert_eq!((usage.count, usage.best_effort_count, usage.best_effort_bytes), (1, 1, 8));
    let quota = Quota { all: Limit { bytes: 0, count: 1 }, best_effort: Limit::NONE };
    let refused = store.put(&tenant("b"), &quota, Class::RealTime, None, Sealed::of("test", &[7; 8]).unwrap());
    assert!(matches!(refused, Err(StoreError::Quota { .. })), "{refused:?}");
    assert_eq!(store.tenants(), [tenant("a")]);
    drop(store);
    assert_eq!(found(&open(folder.path(), 0)), (Class::BestEffort, form(&[2, 4])));
}

#[test]
fn a_damaged_object_is_removed_from_all_its_tenants() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 0);
    let shared = put(&store, "a", b"shared").unwrap();
    put(&store, "b", b"shared").unwrap();
    let other = put(&store, "b", b"other").unwrap();
    fs::write(folder.path().join("objects").join(shared.to_string()), b"shArEd").unwrap();
    assert!(matches!(get(&store, "b", shared), Err(StoreError::Damaged(found)) if found == shared));
    assert!(matches!(get(&store, "a", shared), Err(StoreError::NoObject(_))));
    assert_eq!((store.usage(&tenant("a")), store.usage(&tenant("b")).count), (Usage::default(), 1));
    assert_eq!((store.tenants(), store.statistics().objects), (vec![tenant("b")], 1));
    drop(store);
    let store = open(folder.path(), 0);
    assert_eq!((store.tenants(), get(&store, "b", other).unwrap()), (vec![tenant("b")], b"other".to_vec()));
}

#[test]
fn a_bundle_that_a_deployment_replaces_is_deleted_with_its_last_use() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 0);
    let key = |name: &str| DeploymentKey { tenant: tenant("a"), name: name.into() };
    let deploy = |name: &str, bytes: &[u8]| {
        let held = store.write_bundle(&Sealed::of("test", bytes).unwrap(), Digest::of(bytes)).unwrap();
        let deployment = Deployment {
            bundle: held.digest(),
            bundle_bytes: bytes.len() as u64,
            class: Class::BestEffort,
            private: false,
            deployed_s: 1,
            device: None,
            signature: None,
            constants: 0,
        };
        store.deploy(key(name), deployment).unwrap();
        held.path()
    };
    let first = deploy("f", b"one");
    let second = deploy("f", b"two");
    assert!(!first.exists() && second.exists());
    assert_eq!(deploy("g", b"two"), second);
    let third = deploy("f", b"three");
    assert!(second.exists() && third.exists(), "`g` still has it");
    assert!(store.withdraw(&key("g")).unwrap());
    assert!(!second.exists() && third.exists());
}

#[test]
fn graphs_and_instances_are_kept_by_tenant_and_name() {
    let folder = tempfile::tempdir().unwrap();
    let key = |who: &str, name: &str| DeploymentKey { tenant: tenant(who), name: name.into() };
    let store = open(folder.path(), 0);
    for (who, name, text) in [("a", "x", "old"), ("a", "x", "new"), ("b", "x", "other"), ("a", "y", "gone")] {
        store.put_graph(key(who, name), format!("graph {text}")).unwrap();
        store.put_instance(key(who, name), format!("instance {text}")).unwrap();
    }
    assert!(store.remove_graph(&key("a", "y")).unwrap() && store.remove_instance(&key("a", "y")).unwrap());
    assert!(!store.remove_graph(&key("a", "y")).unwrap() && !store.remove_instance(&key("a", "y")).unwrap());
    assert!(store.has_graph(&key("a", "x")) && !store.has_graph(&key("a", "y")) && !store.has_graph(&key("c", "x")));
    let check = |store: &Store| {
        let expected = |kind| [(key("a", "x"), format!("{kind} new")), (key("b", "x"), format!("{kind} other"))];
        assert_eq!((store.graphs(), store.instances()), (expected("graph").into(), expected("instance").into()));
    };
    check(&store);
    drop(store);
    check(&open(folder.path(), 0));
}

#[test]
fn damaged_files_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let [changed, cut, gone] = {
        let store = open(folder.path(), 0);
        [b"one!", b"two!", b"tri!"].map(|bytes| put(&store, "a", bytes).unwrap())
    };
    let path = |digest: &Digest| folder.path().join("objects").join(digest.to_string());
    fs::write(path(&changed), b"on3!").unwrap();
    fs::write(path(&cut), b"tw").unwrap();
    fs::remove_file(path(&gone)).unwrap();
    let store = open(folder.path(), 0);
    assert!(matches!(get(&store, "a", changed), Err(StoreError::Damaged(_))), "the same size, other bytes");
    for digest in [changed, cut, gone] {
        assert!(matches!(get(&store, "a", digest), Err(StoreError::NoObject(_))));
        assert!(!path(&digest).exists());
    }
    assert_eq!((store.usage(&tenant("a")), store.statistics().damaged), (Usage::default(), 1));
    put(&store, "a", b"one!").unwrap();
    assert_eq!(get(&store, "a", changed).unwrap(), b"one!");
}

#[test]
fn garbage_is_deleted_and_unknown_files_are_left() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path(), 0));
    let objects = folder.path().join("objects");
    for name in [".partial-abc", &Digest::of(b"x").to_string(), "README"] {
        fs::write(objects.join(name), b"x").unwrap();
    }
    let _store = open(folder.path(), 0);
    let left: Vec<_> = fs::read_dir(objects).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["README"]);
}

#[test]
fn quota_errors_name_the_exhausted_resource() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 1 << 20);
    let quota = Quota { all: Limit { bytes: 100, count: 3 }, best_effort: Limit { bytes: 50, count: 2 } };
    let put = |class, bytes: &[u8]| store.put(&tenant("a"), &quota, class, None, Sealed::of("test", bytes).unwrap());
    let refusal = |result: Result<Digest, StoreError>| result.unwrap_err().to_string();
    assert!(refusal(put(Class::RealTime, &[0; 101])).contains("needs 101 bytes; of object bytes, 0 of 100 are used"));
    put(Class::BestEffort, &[1; 30]).unwrap();
    put(Class::BestEffort, &[1; 30]).unwrap();
    assert!(refusal(put(Class::BestEffort, &[2; 30])).contains("of best-effort object bytes, 30 of 50 are used"));
    put(Class::BestEffort, &[3; 1]).unwrap();
    assert!(refusal(put(Class::BestEffort, &[4; 1])).contains("of best-effort objects, 2 of 2 are used"));
    put(Class::RealTime, &[4; 1]).unwrap();
    assert!(refusal(put(Class::RealTime, &[5; 1])).contains("of objects, 3 of 3 are used"));
    store.remove(&tenant("a"), Digest::of(&[1; 30])).unwrap();
    put(Class::RealTime, &[5; 1]).unwrap();
}

#[test]
fn other_users_cannot_read_the_store() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let _store = open(&state, 0);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&state), mode(&state.join("objects")), mode(&state.join("index.redb"))), (0o700, 0o700, 0o600));
}

#[test]
fn a_folder_belongs_to_one_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let _store = open(folder.path(), 0);
    let second = Store::open(&StoreConfig { folder: folder.path().into(), memory_bytes: 0 });
    assert!(matches!(second, Err(StoreError::InUse { .. })));
}

#[test]
fn deployments_are_kept_with_their_bundles() {
    let folder = tempfile::tempdir().unwrap();
    let key = |name: &str| DeploymentKey { tenant: tenant("a"), name: name.into() };
    let deployment = |bundle, private| Deployment {
        bundle,
        bundle_bytes: 3,
        class: Class::RealTime,
        private,
        deployed_s: 5,
        device: private.then(|| "host:1".into()),
        signature: private.then(|| "untrusted comment".into()),
        constants: 7,
    };
    let store = open(folder.path(), 0);
    let write = |bytes: &[u8]| store.write_bundle(&Sealed::of("test", bytes).unwrap(), Digest::of(bytes)).unwrap();
    let held = write(b"kg!");
    let (digest, path) = (held.digest(), held.path());
    let held_again = write(b"kg!");
    drop(held);
    assert!(path.exists(), "another deployment still holds it");
    store.deploy(key("f"), deployment(digest, false)).unwrap();
    store.deploy(key("g"), deployment(digest, true)).unwrap();
    drop(held_again);
    let unused = write(b"bad");
    let unused_path = unused.path();
    assert!(unused_path.exists());
    drop(unused);
    assert!(!unused_path.exists() && path.exists());
    drop(store);
    let store = open(folder.path(), 0);
    assert_eq!(store.deployments(), [(key("f"), deployment(digest, false)), (key("g"), deployment(digest, true))]);
    assert!(store.withdraw(&key("f")).unwrap() && path.exists());
    assert!(!store.withdraw(&key("f")).unwrap());
    assert!(store.withdraw(&key("g")).unwrap() && !path.exists());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Each tenant sees exactly the objects that it stored and did not remove, memory stays within
    /// its limit, and a new store on the same folder has the same contents.
    #[test]
    fn a_store_is_a_map_per_tenant(
        steps in prop::collection::vec((0_u8..4, 0_usize..3, 0_u8..12), 1..60),
        memory_bytes in 0_u64..400,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let names = ["a", "b", "c"];
        let content = |id: u8| vec![id; usize::from(id) * 10];
        let mut model: [BTreeMap<Digest, Vec<u8>>; 3] = Default::default();
        let mut store = open(folder.path(), memory_bytes);
        for (what, who, id) in steps {
            let (name, bytes) = (names[who], content(id));
            let digest = Digest::of(&bytes);
            match what {
                0 => {
                    prop_assert_eq!(put(&store, name, &bytes).unwrap(), digest);
                    model[who].insert(digest, bytes);
                }
                1 => prop_assert_eq!(store.remove(&tenant(name), digest).is_ok(), model[who].remove(&digest).is_some()),
                2 => prop_assert_eq!(get(&store, name, digest).ok(), model[who].get(&digest).cloned()),
                _ => {
                    drop(store);
                    store = open(folder.path(), memory_bytes);
                }
            }
            prop_assert!(store.statistics().memory_bytes <= memory_bytes);
        }
        for (who, held) in model.iter().enumerate() {
            let listed: Vec<Digest> = store.list(&tenant(names[who])).into_iter().map(|info| info.digest).collect();
            prop_assert_eq!(listed, held.keys().copied().collect::<Vec<_>>());
            let bytes: u64 = held.values().map(|bytes| bytes.len() as u64).sum();
            let usage = store.usage(&tenant(names[who]));
            prop_assert_eq!((usage.bytes, usage.count), (bytes, held.len() as u64));
        }
    }
}

#[test]
fn leases_and_their_keys_survive_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let grant =
        LeaseChange { keep: vec![(1, "one".into()), (3, "three".into())], last: Some(4), ..LeaseChange::default() };
    {
        let store = open(folder.path(), 1 << 20);
        assert_eq!(store.leases().unwrap(), LeaseRecords::default());
        store.change_leases(&grant).unwrap();
        let end =
            LeaseChange { end: vec![(1, [7; 16]), (2, [8; 16])], forget: vec![[8; 16]], ..LeaseChange::default() };
        store.change_leases(&end).unwrap();
        store.change_leases(&LeaseChange { keep: vec![(3, "changed".into())], ..LeaseChange::default() }).unwrap();
        // As after a SIGKILL: nothing is closed.
        std::mem::forget(store);
    }
    let copy = tempfile::tempdir().unwrap();
    fs::copy(folder.path().join("index.redb"), copy.path().join("index.redb")).unwrap();
    let found = open(copy.path(), 1 << 20).leases().unwrap();
    assert_eq!(found, LeaseRecords { leases: vec![(3, "changed".into())], ended: vec![[7; 16]], last: 4 });
}
