//! What a client that sends many objects, or keeps what it gets, can take.

use atoll_core::{Class, Tenant};
use atoll_sealed::{Digest, Sealed};
use atoll_store::*;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Barrier};

fn open(folder: &Path, memory_bytes: u64) -> Store {
    Store::open(&StoreConfig { folder: folder.into(), memory_bytes }).expect("a store")
}

fn tenant(name: &str) -> Tenant {
    name.parse().expect("a name")
}

#[test]
fn objects_that_are_stored_at_the_same_time_do_not_exceed_the_quota_together() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 0);
    let (bytes, who) = (8 << 20, tenant("a"));
    let quota = Quota { all: Limit { bytes: 2 * bytes as u64, count: 100 }, best_effort: Limit::NONE };
    let ready = Barrier::new(8);
    let stored = std::thread::scope(|scope| {
        let put = |byte: u8| {
            let content = Sealed::of("test", &vec![byte; bytes]).unwrap();
            ready.wait();
            let stored = store.put(&who, &quota, Class::RealTime, None, content);
            // Every file counts from its first byte, also one without a name.
            let files = fs::read_dir(folder.path().join("objects")).unwrap().count();
            assert!(files <= 2, "{files} files");
            stored
        };
        let threads: Vec<_> = (0..8).map(|byte| scope.spawn(move || put(byte))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let refused = stored.iter().filter(|result| matches!(result, Err(StoreError::Quota { .. }))).count();
    let usage = store.usage(&who);
    assert_eq!((usage.count as usize, usage.bytes), (8 - refused, (8 - refused) as u64 * bytes as u64));
    assert!((1..=2).contains(&usage.count), "{usage:?}");
    // The room of those that were refused is free again.
    store.list(&who).into_iter().for_each(|info| store.remove(&who, info.digest).unwrap());
    for byte in 0..2 {
        store.put(&who, &quota, Class::RealTime, None, Sealed::of("test", &vec![byte; bytes]).unwrap()).unwrap();
    }
}

#[test]
fn a_copy_for_a_client_is_the_file_of_a_client_or_in_no_other_hands() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 1 << 20);
    let who = tenant("a");
    let received = |bytes: &[u8]| {
        let content = Sealed::of("test", bytes).unwrap();
        Sealed::received(content.as_fd().try_clone_to_owned().unwrap()).unwrap()
    };
    let copied = |digest: Digest| {
        let content = store.copy(&who, digest).unwrap().content;
        (content.is_received(), Arc::strong_count(&content), content.to_vec().unwrap())
    };
    let sent = store.put(&who, &Quota::NONE, Class::RealTime, None, received(b"sent")).unwrap();
    assert_eq!(copied(sent), (true, 2, b"sent".to_vec()));
    let made =
        store.put(&who, &Quota::NONE, Class::BestEffort, None, Sealed::of("test", b"made here").unwrap()).unwrap();
    assert_eq!((copied(made), store.statistics().read_from_disk), ((false, 1, b"made here".to_vec()), 1));
    assert!(matches!(store.copy(&tenant("b"), made), Err(StoreError::NoObject(_))));
    // An invocation finds both in memory.
    for digest in [sent, made] {
        store.lease(&who, digest).unwrap();
    }
    assert_eq!((store.statistics().read_from_disk, store.find(&who, made).unwrap().bytes), (1, 9));
    // After a restart there are no files of clients.
    drop(store);
    let store = open(folder.path(), 1 << 20);
    let copy = store.copy(&who, sent).unwrap();
    assert!(!copy.content.is_received() && !store.find(&who, sent).unwrap().in_memory);
    assert!(matches!(store.find(&tenant("b"), sent), Err(StoreError::NoObject(_))));
}
