//! An earlier release reads what this one writes, so a package can be replaced by an earlier one: the
//! objects and functions are still there. The truth is the index that a daemon of f95a0d3 wrote.

use atoll_core::{Class, Tenant};
use atoll_protocol::DataType;
use atoll_sealed::Sealed;
use atoll_store::*;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

// The tables of f95a0d3.
const ABOUT: TableDefinition<&str, u64> = TableDefinition::new("about");
const OBJECTS: TableDefinition<&[u8; 32], u64> = TableDefinition::new("objects");
const HOLDINGS: TableDefinition<(&str, &[u8; 32]), &[u8]> = TableDefinition::new("holdings");
const DEPLOYMENTS: TableDefinition<(&str, &str), &[u8]> = TableDefinition::new("deployments");

/// What a daemon of f95a0d3 reads of an index.
struct Found {
    format: u64,
    objects: Vec<([u8; 32], u64)>,
    holdings: Vec<Value>,
    deployments: Vec<(String, Value)>,
}

fn read(folder: &Path) -> Found {
    let database = Database::open(folder.join("index.redb")).unwrap();
    let transaction = database.begin_read().unwrap();
    let record = |json: &[u8]| -> Value { serde_json::from_slice(json).unwrap() };
    let objects = transaction.open_table(OBJECTS).unwrap();
    let holdings = transaction.open_table(HOLDINGS).unwrap();
    let deployments = transaction.open_table(DEPLOYMENTS).unwrap();
    Found {
        format: transaction.open_table(ABOUT).unwrap().get("format").unwrap().unwrap().value(),
        objects: objects
            .iter()
            .unwrap()
            .map(|entry| {
                let (digest, bytes) = entry.unwrap();
                (*digest.value(), bytes.value())
            })
            .collect(),
        holdings: holdings.iter().unwrap().map(|entry| record(entry.unwrap().1.value())).collect(),
        deployments: deployments
            .iter()
            .unwrap()
            .map(|entry| {
                let (key, deployment) = entry.unwrap();
                (key.value().1.to_owned(), record(deployment.value()))
            })
            .collect(),
    }
}

/// Asserts that each field of the earlier record is there with a value of the same kind.
fn assert_has_fields_of(earlier: &Value, now: &Value) {
    for (name, value) in earlier.as_object().unwrap() {
        let same = match (value, &now[name]) {
            (Value::Object(_), found @ Value::Object(_)) => {
                assert_has_fields_of(value, found);
                true
            }
            (Value::String(_), Value::String(_)) | (Value::Bool(_), Value::Bool(_)) => true,
            (Value::Array(_), Value::Array(_)) | (Value::Null, Value::Null) => true,
            (Value::Number(value), Value::Number(found)) => value.is_u64() == found.is_u64(),
            _ => false,
        };
        assert!(same, "`{name}` was {value}, and is {}", now[name]);
    }
}

#[test]
fn an_earlier_daemon_finds_objects_and_functions_in_an_index_of_this_one() {
    let earlier = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/f95a0d3/state");
    let folder = tempfile::tempdir().unwrap();
    fs::copy(earlier.join("index.redb"), folder.path().join("index.redb")).unwrap();
    for part in ["functions", "objects"] {
        fs::create_dir(folder.path().join(part)).unwrap();
        for entry in fs::read_dir(earlier.join(part)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), folder.path().join(part).join(entry.file_name())).unwrap();
        }
    }
    let before = read(folder.path());
    let tenant = Tenant::default();
    let store = Store::open(&StoreConfig { folder: folder.path().into(), memory_bytes: 1 << 20 }).unwrap();
    let form = Form { datatype: DataType::Fp32, shape: vec![2] };
    let content = Sealed::of("test", &[7; 8]).unwrap();
    let object = store.put(&tenant, &Quota::NONE, Class::BestEffort, Some(form), content).unwrap();
    let (_, known) = store.deployments().remove(0);
    let key = |name: &str| DeploymentKey { tenant: tenant.clone(), name: name.into() };
    let added = Deployment { device: Some("host:0".into()), signature: Some("s".into()), constants: 2, ..known };
    store.deploy(key("added"), added).unwrap();
    store.put_graph(key("graph"), "name = \"graph\"".into()).unwrap();
    drop(store);
    let after = read(folder.path());
    assert_eq!((before.format, after.format), (1, 1));
    assert!(before.objects.iter().all(|object| after.objects.contains(object)), "objects stay");
    assert!(after.objects.contains(&(*object.as_bytes(), 8)));
    assert!(before.deployments.iter().all(|(name, _)| after.deployments.iter().any(|(other, _)| other == name)));
    assert_eq!((before.deployments.len(), after.deployments.len()), (2, 3));
    for (name, deployment) in &after.deployments {
        assert_has_fields_of(&before.deployments[0].1, deployment);
        let class = &deployment["class"];
        assert!(class == "real-time" || class == "best-effort", "{name}: {class}");
    }
    for holding in &after.holdings {
        assert_has_fields_of(&before.holdings[0], holding);
        assert_eq!((&holding["class"], &holding["form"]["datatype"]), (&json!("best-effort"), &json!("FP32")));
    }
    for part in ["functions", "objects"] {
        for entry in fs::read_dir(earlier.join(part)).unwrap() {
            let path = folder.path().join(part).join(entry.unwrap().file_name());
            assert!(path.is_file(), "{} is gone", path.display());
        }
    }
}
