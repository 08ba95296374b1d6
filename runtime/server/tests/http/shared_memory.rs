//! System shared memory over HTTP and gRPC, with real files in `/dev/shm`.

use crate::support::grpc::proto::infer_parameter::ParameterChoice;
use crate::support::grpc::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use crate::support::grpc::proto::*;
use crate::support::grpc::{refused, typed, with_token};
use crate::support::{Answer, Behaviour, Connection, Daemon, Options, eventually, skip, write_bundle};
use atoll_server::{Access, IdentityConfig, KeyFile};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use std::fs::File;
use std::os::unix::fs::{FileExt, chown, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tonic::Code;

const INFER: &str = "/v2/models/toy/infer";

/// A file of shared memory. It is removed when this is dropped.
struct Memory {
    name: String,
    file: File,
}

impl Memory {
    fn new(prefix: &str, bytes: u64) -> Memory {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{prefix}atoll-test-{}-{count}-{now}", std::process::id());
        let file =
            File::options().read(true).write(true).create_new(true).open(format!("/dev/shm/{name}")).expect("/dev/shm");
        file.set_len(bytes).unwrap();
        Memory { name, file }
    }

    fn path(&self) -> PathBuf {
        format!("/dev/shm/{}", self.name).into()
    }

    /// Registers the whole file as a region of this name.
    fn register(&self, daemon: &Daemon, region: &str) {
        let body = json!({ "key": format!("/{}", self.name), "byte_size": self.file.metadata().unwrap().len() });
        let answer = daemon.post(&register_path(region), &body.to_string());
        assert_eq!((answer.status, answer.text().as_str()), (200, ""));
    }

    fn put(&self, at: u64, values: &[f32]) {
        self.file.write_all_at(&bytes(values), at).unwrap();
    }

    fn get(&self, at: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.file.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.path());
    }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn register_path(region: &str) -> String {
    format!("/v2/systemsharedmemory/region/{region}/register")
}

/// A request with one row, whose input and output are in regions.
fn request(input: &Value, output: &Value) -> String {
    let input = json!({ "name": "in", "datatype": "FP32", "shape": [1, 4], "parameters": input });
    json!({ "inputs": [input], "outputs": [{ "name": "out", "parameters": output }] }).to_string()
}

fn range(region: &str, offset: u64, byte_size: u64) -> Value {
    json!({ "shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": byte_size })
}

fn error(answer: &Answer, status: u16, words: &[&str]) {
    assert_eq!(answer.status, status, "{}", answer.text());
    for word in words {
        assert!(answer.error().contains(word), "{:?} does not say {word:?}", answer.error());
    }
}

#[test]
fn regions_are_registered_listed_and_forgotten() {
    let daemon = Daemon::start();
    let memory = Memory::new("", 4096);
    let status = |path: &str| daemon.get(&format!("/v2/systemsharedmemory{path}/status"));
    assert_eq!(status("").json(), json!([]));
    let body = json!({ "key": memory.name, "offset": 64, "byte_size": 128 }).to_string();
    assert_eq!(daemon.post(&register_path("r%201"), &body).status, 200);
    let expected = json!([{ "name": "r 1", "key": memory.name, "offset": 64, "byte_size": 128 }]);
    assert_eq!(status("").json(), expected);
    assert_eq!(status("/region/r%201").json(), expected);
    error(&status("/region/other"), 400, &["\"other\"", "register it first"]);
    error(&daemon.post(&register_path("r%201"), &body), 400, &["\"r 1\" is registered already"]);
    memory.register(&daemon, "second");
    assert_eq!(daemon.metric("atoll_shared_memory_regions{tenant=\"local\"}"), 2);
    assert_eq!(daemon.metric("atoll_shared_memory_bytes{tenant=\"local\"}"), 128 + 4096);
    for _ in 0..2 {
        assert_eq!(daemon.post("/v2/systemsharedmemory/region/second/unregister", "").status, 200);
        assert_eq!(status("").json(), expected);
    }
    assert_eq!(daemon.post("/v2/systemsharedmemory/unregister", "").status, 200);
    assert_eq!(status("").json(), json!([]));
    assert_eq!(
        daemon.get("/v2").json()["extensions"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|e| **e == "system_shared_memory")
            .count(),
        1
    );
}

#[test]
fn inputs_and_outputs_are_in_regions_over_both_protocols() {
    let daemon = Daemon::start();
    let (input, output) = (Memory::new("", 4096), Memory::new("", 4096));
    input.register(&daemon, "in");
    output.register(&daemon, "out");
    input.put(32, &[0.5, 3.0, -1.0, 2.0]);
    let answer = daemon.post(INFER, &request(&range("in", 32, 16), &range("out", 100, 64)));
    let place = json!({ "shared_memory_region": "out", "shared_memory_offset": 100, "shared_memory_byte_size": 64 });
    let expected = json!({ "name": "out", "datatype": "FP32", "shape": [1, 4], "parameters": place });
    assert_eq!(answer.json()["outputs"], json!([expected]));
    assert_eq!(output.get(100, 16), bytes(&[0.5, 3.0, -1.0, 2.0]));
    assert_eq!((output.get(96, 4), output.get(116, 48)), (vec![0; 4], vec![0; 48]), "nothing else is written");
    assert_eq!(daemon.metric("atoll_shared_memory_read_bytes_total"), 16);
    assert_eq!(daemon.metric("atoll_shared_memory_written_bytes_total"), 16);

    input.put(0, &[7.0, 8.0, 9.0, 10.0]);
    let mut client = daemon.client();
    let message = ModelInferRequest {
        model_name: "toy".into(),
        inputs: vec![shared_input("in", 0, 16)],
        outputs: vec![InferRequestedOutputTensor { name: "out".into(), parameters: place_of("out", 0, 16) }],
        ..ModelInferRequest::default()
    };
    let answer = daemon.block_on(client.model_infer(message)).unwrap().into_inner();
    assert_eq!(answer.outputs[0].parameters, place_of("out", 0, 16));
    assert_eq!(answer.raw_output_contents, [Vec::<u8>::new()], "clients count the raw contents of all outputs");
    assert_eq!(output.get(0, 16), bytes(&[7.0, 8.0, 9.0, 10.0]));
    // A classified output is written as strings.
    let classes = json!({ "classification": 1, "shared_memory_region": "out", "shared_memory_byte_size": 64 });
    let answer = daemon.post(INFER, &request(&range("in", 0, 16), &classes));
    assert_eq!(answer.json()["outputs"][0]["datatype"], "BYTES");
    assert_eq!(output.get(0, 15), b"\x0b\0\0\x0010.000000:3");
}

fn shared_input(region: &str, offset: i64, byte_size: i64) -> InferInputTensor {
    InferInputTensor { contents: None, parameters: place_of(region, offset, byte_size), ..typed(&[0.0; 4]) }
}

fn place_of(region: &str, offset: i64, byte_size: i64) -> std::collections::HashMap<String, InferParameter> {
    let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
    let mut place = std::collections::HashMap::from([
        ("shared_memory_region".to_owned(), parameter(ParameterChoice::StringParam(region.into()))),
        ("shared_memory_byte_size".to_owned(), parameter(ParameterChoice::Int64Param(byte_size))),
    ]);
    if offset != 0 {
        place.insert("shared_memory_offset".into(), parameter(ParameterChoice::Int64Param(offset)));
    }
    place
}

#[test]
fn the_rpcs_are_the_same_as_the_routes() {
    let daemon = Daemon::start();
    let memory = Memory::new("", 64);
    let mut client = daemon.client();
    let register = |name: &str, key: &str, byte_size| SystemSharedMemoryRegisterRequest {
        name: name.into(),
        key: key.into(),
        offset: 0,
        byte_size,
    };
    daemon.block_on(client.system_shared_memory_register(register("r", &memory.name, 64))).unwrap();
    let big = daemon.block_on(client.system_shared_memory_register(register("s", &memory.name, 65)));
    refused(big, Code::InvalidArgument, &["\"s\"", "65 bytes at offset 0", "64 bytes"]);
    let status = |name: &str| SystemSharedMemoryStatusRequest { name: name.into() };
    for name in ["", "r"] {
        let regions = daemon.block_on(client.system_shared_memory_status(status(name))).unwrap().into_inner().regions;
        let region = &regions["r"];
        assert_eq!((regions.len(), &*region.name, &*region.key, region.byte_size), (1, "r", &*memory.name, 64));
    }
    refused(daemon.block_on(client.system_shared_memory_status(status("s"))), Code::InvalidArgument, &["\"s\""]);
    assert_eq!(daemon.get("/v2/systemsharedmemory/status").json()[0]["name"], "r");
    let all = SystemSharedMemoryUnregisterRequest::default();
    daemon.block_on(client.system_shared_memory_unregister(all)).unwrap();
    assert_eq!(daemon.get("/v2/systemsharedmemory/status").json(), json!([]));
}

#[test]
fn bad_registrations_are_refused_with_their_reason() {
    let daemon = Daemon::start();
    let memory = Memory::new("", 4096);
    let (link, pipe, second) = (Memory::new("", 1), Memory::new("", 1), Memory::new("", 1));
    std::fs::remove_file(link.path()).unwrap();
    symlink("/etc/passwd", link.path()).unwrap();
    std::fs::remove_file(pipe.path()).unwrap();
    rustix_mkfifo(&pipe.path());
    std::fs::remove_file(second.path()).unwrap();
    std::fs::hard_link(memory.path(), second.path()).unwrap();
    let two_names = Memory::new("", 4096);
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let folder_name = folder.path().file_name().unwrap().to_str().unwrap();
    let key = &two_names.name;
    let long = "x".repeat(256);
    let cases: Vec<(Value, &[&str])> = vec![
        (json!({}), &["not a name of shared memory"]),
        (json!({ "key": "", "byte_size": 1 }), &["not a name"]),
        (json!({ "key": "../etc/passwd", "byte_size": 1 }), &["without folders"]),
        (json!({ "key": "/../../etc/passwd", "byte_size": 1 }), &["without folders"]),
        (json!({ "key": "/etc/passwd", "byte_size": 1 }), &["without folders"]),
        (json!({ "key": "..", "byte_size": 1 }), &["not a name"]),
        (json!({ "key": "a\u{0}b", "byte_size": 1 }), &["not a name"]),
        (json!({ "key": "sem.lock", "byte_size": 1 }), &["no semaphore"]),
        (json!({ "key": long, "byte_size": 1 }), &["not a name"]),
        (json!({ "key": "/".repeat(900_000) + key, "byte_size": 1 }), &["the limit is 256"]),
        (json!({ "key": "atoll-test-nothing", "byte_size": 1 }), &["does not exist"]),
        (json!({ "key": link.name, "byte_size": 1 }), &["links are not followed"]),
        (json!({ "key": pipe.name, "byte_size": 1 }), &["not a file of shared memory"]),
        (json!({ "key": memory.name, "byte_size": 1 }), &["has several names"]),
        (json!({ "key": folder_name, "byte_size": 1 }), &["cannot be opened"]),
        (json!({ "key": key }), &["byte_size is 0"]),
        (json!({ "key": key, "byte_size": 4097 }), &["4097 bytes at offset 0", "4096 bytes"]),
        (json!({ "key": key, "byte_size": 1, "offset": 4096 }), &["1 bytes at offset 4096"]),
        (json!({ "key": key, "byte_size": 1, "offset": u64::MAX }), &["18446744073709551615"]),
        (json!({ "key": key, "byte_size": u64::MAX, "offset": 1 }), &["limit is 4294967296"]),
        (
            json!({ "key": key, "byte_size": 4_294_967_296_u64, "offset": u64::MAX }),
            &["at offset 18446744073709551615"],
        ),
        (json!({ "key": key, "byte_size": -1 }), &["not valid JSON"]),
        (json!({ "key": key, "byte_size": "1" }), &["not valid JSON"]),
        (json!({ "key": key, "byte_size": 1.5 }), &["not valid JSON"]),
        (json!({ "key": 5, "byte_size": 1 }), &["not valid JSON"]),
        (json!([1]), &["not valid JSON"]),
    ];
    for (body, words) in cases {
        let answer = daemon.post(&register_path("r"), &body.to_string());
        let status = if words[0].contains("limit is 42") { 503 } else { 400 };
        error(&answer, status, words);
    }
    error(
        &daemon.post(&register_path(&"n".repeat(257)), &json!({ "key": key, "byte_size": 1 }).to_string()),
        400,
        &["256 bytes"],
    );
    assert_eq!(daemon.get("/v2/systemsharedmemory/status").json(), json!([]));
}

fn rustix_mkfifo(path: &std::path::Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

#[test]
fn bad_ranges_are_refused_with_their_reason() {
    let daemon = Daemon::start();
    let memory = Memory::new("", 4096);
    let body = json!({ "key": memory.name, "offset": 4000, "byte_size": 96 }).to_string();
    assert_eq!(daemon.post(&register_path("r"), &body).status, 200);
    let (good, none) = (range("r", 0, 16), json!({}));
    let cases: Vec<(Value, Value, &[&str])> = vec![
        (range("other", 0, 16), none.clone(), &["\"other\"", "register it first"]),
        (range("r", 0, 15), none.clone(), &["`in`", "has 15 bytes", "needs 16 bytes"]),
        (range("r", 0, 0), none.clone(), &["has 0 bytes"]),
        (range("r", 81, 16), none.clone(), &["16 bytes at offset 81 exceed", "96 bytes"]),
        (range("r", u64::MAX, 16), none.clone(), &["exceed"]),
        (range("r", 16, u64::MAX), none.clone(), &["limit is"]),
        (range("r", 0, 4096), none.clone(), &["4096 bytes at offset 0 exceed"]),
        (json!({ "shared_memory_region": "r" }), none.clone(), &["no shared_memory_byte_size"]),
        (json!({ "shared_memory_byte_size": 16 }), none.clone(), &["no shared_memory_region"]),
        (json!({ "shared_memory_region": 5, "shared_memory_byte_size": 16 }), none.clone(), &["not a text"]),
        (range("r", 0, 16), range("other", 0, 16), &["\"other\""]),
        (range("r", 0, 16), range("r", 90, 16), &["16 bytes at offset 90 exceed"]),
        (range("r", 0, 16), range("r", u64::MAX, u64::MAX), &["exceed"]),
        (range("r", 0, 16), range("r", 80, 15), &["has room for 15 bytes of this output, which has 16 bytes"]),
        (range("r", 0, 16), json!({ "shared_memory_region": "r", "shared_memory_byte_size": -1 }), &["-1 is not"]),
    ];
    for (input, output, words) in cases {
        let answer = daemon.post(INFER, &request(&input, &output));
        error(&answer, if words[0] == "limit is" { 413 } else { 400 }, words);
    }
    // A request that does not match the model is refused before memory is read.
    let shaped = |name: &str, datatype: &str, shape: Value| {
        let input = json!({ "name": name, "datatype": datatype, "shape": shape, "parameters": good.clone() });
        json!({ "inputs": [input] }).to_string()
    };
    let read = daemon.metric("atoll_shared_memory_read_bytes_total");
    for (input, words) in [
        (shaped("in", "FP32", json!([4])), ["`in: FP32[4]`", "takes `in: FP32["]),
        (shaped("in", "INT32", json!([1, 4])), ["`in: INT32[1, 4]`", "takes `in: FP32["]),
        (shaped("other", "FP32", json!([1, 4])), ["no input `other`", "it has in: FP32["]),
    ] {
        error(&daemon.post(INFER, &input), 400, &words);
    }
    assert_eq!(daemon.metric("atoll_shared_memory_read_bytes_total"), read);
    // Too many inputs from one region.
    let input = |name: String| json!({ "name": name, "datatype": "FP32", "shape": [1, 4], "parameters": good.clone() });
    let many: Vec<Value> = (0..1025).map(|at| input(at.to_string())).collect();
    error(&daemon.post(INFER, &json!({ "inputs": many }).to_string()), 400, &["1025 inputs"]);
    let twice = json!({ "inputs": [input("in".into()), input("in".into())] }).to_string();
    error(&daemon.post(INFER, &twice), 400, &["given twice"]);
    assert_eq!(daemon.post(INFER, &request(&good, &range("r", 80, 16))).status, 200, "the last bytes of the region");
}

#[test]
fn memory_that_became_shorter_is_an_error_and_never_grows() {
    let daemon = Daemon::start();
    let memory = Memory::new("", 4096);
    memory.register(&daemon, "r");
    memory.file.set_len(20).unwrap();
    error(&daemon.post(INFER, &request(&range("r", 16, 16), &json!({}))), 400, &["\"r\"", "became shorter"]);
    error(&daemon.post(INFER, &request(&range("r", 0, 16), &range("r", 16, 16))), 400, &["became shorter"]);
    assert_eq!(memory.file.metadata().unwrap().len(), 20);
    // The file shrinks while a request runs.
    daemon.engine.behave(Behaviour::Hold);
    let mut connection = Connection::open(daemon.http);
    connection.send("POST", INFER, &[], request(&range("r", 0, 16), &range("r", 4, 16)).as_bytes());
    eventually(|| daemon.engine.held() == 1);
    memory.file.set_len(0).unwrap();
    daemon.engine.answer_all();
    error(&connection.receive(), 400, &["became shorter"]);
    // The file shrinks and grows all the time, from another thread.
    daemon.engine.behave(Behaviour::Echo);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                memory.file.set_len(0).unwrap();
                memory.file.set_len(4096).unwrap();
            }
        });
        for _ in 0..300 {
            let answer = daemon.post(INFER, &request(&range("r", 0, 16), &range("r", 4080, 16)));
            assert!(matches!(answer.status, 200 | 400), "{}", answer.text());
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert_eq!(daemon.post(INFER, &request(&range("r", 0, 16), &range("r", 0, 16))).status, 200);
}

#[test]
fn a_region_that_is_forgotten_serves_the_requests_that_run() {
    let daemon = Daemon::start();
    let memory = Memory::new("", 64);
    memory.put(0, &[1.0, 2.0, 3.0, 4.0]);
    memory.register(&daemon, "r");
    daemon.engine.behave(Behaviour::Hold);
    let mut connection = Connection::open(daemon.http);
    connection.send("POST", INFER, &[], request(&range("r", 0, 16), &range("r", 16, 16)).as_bytes());
    eventually(|| daemon.engine.held() == 1);
    assert_eq!(daemon.post("/v2/systemsharedmemory/region/r/unregister", "").status, 200);
    memory.put(0, &[9.0; 4]);
    daemon.engine.answer_all();
    assert_eq!(connection.receive().status, 200);
    assert_eq!(memory.get(16, 16), bytes(&[1.0, 2.0, 3.0, 4.0]), "the input was copied before");
    error(&daemon.post(INFER, &request(&range("r", 0, 16), &range("r", 16, 16))), 400, &["register it first"]);
}

#[test]
fn the_number_of_regions_is_limited() {
    let daemon = Daemon::start();
    let memory = Memory::new("", 64);
    let mut connection = Connection::open(daemon.http);
    let body = json!({ "key": memory.name, "byte_size": 64 }).to_string();
    let mut register = |at: usize| connection.request("POST", &register_path(&at.to_string()), &[], body.as_bytes());
    for at in 0..512 {
        assert_eq!(register(at).status, 200);
    }
    error(&register(512), 503, &["512 regions"]);
    assert_eq!(daemon.post("/v2/systemsharedmemory/region/7/unregister", "").status, 200);
    assert_eq!(register(512).status, 200);
}

#[test]
fn tenants_share_memory_of_their_own_names_and_users_only() {
    let folder = tempfile::tempdir().unwrap();
    let (keys, config) = (folder.path().join("keys.json"), folder.path().join("atoll.toml"));
    let own = std::fs::metadata(folder.path()).map(|about| std::os::unix::fs::MetadataExt::uid(&about)).unwrap();
    let tenants = "[tenant.vision]\nshared_memory = true\nuids = [12345]\n[tenant.speech]\nshared_memory = true\n\
        [tenant.quiet]\n[tenant.local]\nshared_memory = false\n";
    std::fs::write(&config, tenants).unwrap();
    let mut token = |tenant: &str| KeyFile::create(&keys, tenant.parse().unwrap(), None, "").unwrap().to_string();
    let [vision, speech, quiet, local] = ["vision", "speech", "quiet", "local"].map(&mut token);
    let access = Access::read(&config, own).unwrap();
    let identity = IdentityConfig { keys: Some(keys), access, ..IdentityConfig::own() };
    let daemon = Daemon::with(Options { identity: Some(identity), ..Options::default() }, |repository| {
        write_bundle(&repository.join("toy.kg"));
    });
    let (plain, its) = (Memory::new("", 64), Memory::new("vision:", 64));
    let register = |token: &str, memory: &Memory, region: &str| {
        let body = json!({ "key": memory.name, "byte_size": 64 }).to_string();
        daemon.ask_as(token, &register_path(region), Some(&body))
    };
    for token in [&quiet, &local] {
        let answer = register(token, &its, "r");
        error(&answer, 403, &["may not register shared memory", "shared_memory"]);
        assert_eq!(answer.json()["reason"], "shared_memory");
    }
    assert_eq!(daemon.metric("atoll_denied_requests_total{reason=\"shared_memory\"}"), 2);
    error(&register(&vision, &plain, "r"), 403, &["begins with `vision:`"]);
    error(&register(&speech, &its, "r"), 403, &["begins with `speech:`"]);
    assert_eq!(register(&vision, &its, "r").status, 200);
    // Another tenant sees neither the region nor its name, and may use the same name.
    assert_eq!(daemon.ask_as(&speech, "/v2/systemsharedmemory/status", None).json(), json!([]));
    let ask = request(&range("r", 0, 16), &range("r", 16, 16));
    error(&daemon.ask_as(&speech, INFER, Some(&ask)), 400, &["register it first"]);
    assert_eq!(daemon.ask_as(&speech, "/v2/systemsharedmemory/unregister", Some("")).status, 200);
    let theirs = Memory::new("speech:", 64);
    assert_eq!(register(&speech, &theirs, "r").status, 200);
    assert_eq!(daemon.ask_as(&vision, INFER, Some(&ask)).status, 200);
    let mut client = daemon.client();
    let status = with_token(&speech, SystemSharedMemoryStatusRequest::default());
    let regions = daemon.block_on(client.system_shared_memory_status(status)).unwrap().into_inner().regions;
    assert_eq!(regions["r"].key, theirs.name);
    // The owner of a file must be a user who may act for the tenant.
    if chown(its.path(), Some(12345), None).is_err() {
        return skip("only root may give files away");
    }
    chown(theirs.path(), Some(12345), None).unwrap();
    if own == 0 {
        assert_eq!(register(&vision, &its, "s").status, 200);
        let answer = register(&speech, &theirs, "s");
        error(&answer, 403, &["belongs to user 12345", "[tenant.speech]"]);
    }
}

#[test]
fn any_range_gives_exactly_its_bytes_or_an_error() {
    let daemon = Daemon::start();
    let memory = Memory::new("", 4096);
    let values: Vec<f32> = (0..1024_u16).map(f32::from).collect();
    memory.put(0, &values);
    let body = json!({ "key": memory.name, "offset": 128, "byte_size": 512 }).to_string();
    assert_eq!(daemon.post(&register_path("r"), &body).status, 200);
    let any = (0..u64::MAX, 0..u64::MAX);
    let near = (0..600_u64, prop_oneof![0..40_u64, Just(16)]);
    let ranges = prop_oneof![3 => near, 1 => any];
    let mut runner = TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
    let tried = runner.run(&(ranges, any_output()), |((offset, size), place)| {
        let output = place.map_or(json!({ "binary_data": false }), |(offset, size)| range("r", offset, size));
        let fits = |offset: u64, size: u64| offset.checked_add(size).is_some_and(|end| end <= 512);
        let is_good = size == 16 && fits(offset, 16) && place.is_none_or(|(at, room)| room >= 16 && fits(at, room));
        let before = memory.get(0, 4096);
        let answer = daemon.post(INFER, &request(&range("r", offset, size), &output));
        prop_assert_eq!(answer.status == 200, is_good, "{}", answer.text());
        let mut after = before.clone();
        if let (true, Some((at, _))) = (is_good, place) {
            let (from, to) = (128 + offset as usize, 128 + at as usize);
            after[to..to + 16].copy_from_slice(&before[from..from + 16]);
        }
        prop_assert!(memory.get(0, 4096) == after, "bytes outside of the output were written");
        Ok(())
    });
    tried.unwrap();
}

/// A random offset and size of an output, mostly near the region; `None` to send the output in the
/// answer.
fn any_output() -> impl Strategy<Value = Option<(u64, u64)>> {
    proptest::option::of(prop_oneof![4 => (0..600_u64, 0..40_u64), 1 => (0..u64::MAX, 0..u64::MAX)])
}
