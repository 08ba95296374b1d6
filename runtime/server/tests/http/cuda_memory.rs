//! CUDA shared memory over HTTP and gRPC, with a device that opens the memory of a client.

use crate::support::grpc::proto::infer_parameter::ParameterChoice;
use crate::support::grpc::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use crate::support::grpc::proto::*;
use crate::support::grpc::{refused, typed};
use crate::support::{Answer, Behaviour, ClientMemory, Connection, Daemon, Options, eventually, write_bundle};
use atoll_server::{Access, IdentityConfig, KeyFile};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use tonic::Code;

const INFER: &str = "/v2/models/toy/infer";

/// Names of allocations.
const INPUT: u8 = 1;
const OUTPUT: u8 = 2;

/// The device of [`ClientMemory`].
const DEVICE: i64 = 3;

/// A daemon with a device that opens memory, and two allocations of a client.
fn start() -> (Daemon, Arc<ClientMemory>) {
    let daemon = Daemon::start();
    let memory = Arc::new(ClientMemory::default());
    memory.allocate(INPUT, 4096);
    memory.allocate(OUTPUT, 4096);
    daemon.engine.import(memory.clone());
    (daemon, memory)
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let letters = bytes.chunks(3).flat_map(|part| {
        let word = part.iter().enumerate().fold(0, |word, (at, byte)| word | u32::from(*byte) << (16 - 8 * at));
        let letter = move |at: u32| LETTERS[(word >> (18 - 6 * at)) as usize & 63] as char;
        (0..=part.len() as u32).map(letter)
    });
    let text: String = letters.collect();
    let padding = "=".repeat((4 - text.len() % 4) % 4);
    text + &padding
}

fn region(path: &str) -> String {
    format!("/v2/cudasharedmemory/region/{path}")
}

fn body(name: u8, byte_size: u64) -> String {
    json!({ "raw_handle": { "b64": base64(&[name; 64]) }, "device_id": DEVICE, "byte_size": byte_size }).to_string()
}

fn register(daemon: &Daemon, name: &str, allocation: u8, byte_size: u64) {
    let answer = daemon.post(&region(&format!("{name}/register")), &body(allocation, byte_size));
    assert_eq!((answer.status, answer.text().as_str()), (200, ""));
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn range(region: &str, offset: u64, byte_size: u64) -> Value {
    json!({ "shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": byte_size })
}

/// A request with one row, whose input and output are in regions.
fn request(input: &Value, output: &Value) -> String {
    let input = json!({ "name": "in", "datatype": "FP32", "shape": [1, 4], "parameters": input });
    json!({ "inputs": [input], "outputs": [{ "name": "out", "parameters": output }] }).to_string()
}

fn error(answer: &Answer, status: u16, words: &[&str]) {
    assert_eq!(answer.status, status, "{}", answer.text());
    for word in words {
        assert!(answer.error().contains(word), "{:?} does not say {word:?}", answer.error());
    }
}

#[test]
fn regions_are_registered_listed_and_closed() {
    let (daemon, memory) = start();
    let status = |path: &str| daemon.get(&format!("/v2/cudasharedmemory{path}/status"));
    let extensions = daemon.get("/v2").json()["extensions"].clone();
    assert!(extensions.as_array().unwrap().contains(&json!("cuda_shared_memory")), "{extensions}");
    assert_eq!(status("").json(), json!([]));
    register(&daemon, "r%201", INPUT, 128);
    let expected = json!([{ "name": "r 1", "device_id": DEVICE, "byte_size": 128 }]);
    assert_eq!((status("").json(), status("/region/r%201").json()), (expected.clone(), expected.clone()));
    error(&status("/region/other"), 400, &["unable to find CUDA shared memory region \"other\""]);
    error(&daemon.post(&region("r%201/register"), &body(OUTPUT, 128)), 400, &["\"r 1\" is registered already"]);
    register(&daemon, "second", OUTPUT, 4096);
    assert_eq!(daemon.metric("atoll_cuda_shared_memory_regions{tenant=\"local\"}"), 2);
    assert_eq!(daemon.metric("atoll_cuda_shared_memory_bytes{tenant=\"local\"}"), 128 + 4096);
    assert_eq!(daemon.metric("atoll_shared_memory_regions{tenant=\"local\"}"), 0);
    assert_eq!(memory.opened(), 2);
    // The routes of system shared memory do not see them.
    assert_eq!(daemon.get("/v2/systemsharedmemory/status").json(), json!([]));
    error(&daemon.get("/v2/systemsharedmemory/region/second/status"), 400, &["unable to find system"]);
    assert_eq!(daemon.post("/v2/systemsharedmemory/unregister", "").status, 200);
    assert_eq!(memory.opened(), 2);
    for _ in 0..2 {
        assert_eq!(daemon.post(&region("second/unregister"), "").status, 200);
        assert_eq!((status("").json(), memory.opened()), (expected.clone(), 1));
    }
    assert_eq!(daemon.post("/v2/cudasharedmemory/unregister", "").status, 200);
    assert_eq!((status("").json(), memory.opened()), (json!([]), 0));
}

#[test]
fn inputs_and_outputs_are_in_device_memory_over_both_protocols() {
    let (daemon, memory) = start();
    register(&daemon, "in", INPUT, 4096);
    register(&daemon, "out", OUTPUT, 4096);
    memory.put(INPUT, 32, &bytes(&[0.5, 3.0, -1.0, 2.0]));
    let answer = daemon.post(INFER, &request(&range("in", 32, 16), &range("out", 100, 64)));
    let place = json!({ "shared_memory_region": "out", "shared_memory_offset": 100, "shared_memory_byte_size": 64 });
    let expected = json!({ "name": "out", "datatype": "FP32", "shape": [1, 4], "parameters": place });
    assert_eq!(answer.json()["outputs"], json!([expected]));
    assert_eq!(memory.get(OUTPUT, 100, 16), bytes(&[0.5, 3.0, -1.0, 2.0]));
    assert_eq!((memory.get(OUTPUT, 96, 4), memory.get(OUTPUT, 116, 48)), (vec![0; 4], vec![0; 48]));
    assert_eq!(daemon.metric("atoll_cuda_shared_memory_read_bytes_total"), 16);
    assert_eq!(daemon.metric("atoll_cuda_shared_memory_written_bytes_total"), 16);
    assert_eq!(daemon.metric("atoll_shared_memory_read_bytes_total"), 0);

    let mut client = daemon.client();
    let register = |name: &str| CudaSharedMemoryRegisterRequest {
        name: name.into(),
        raw_handle: vec![INPUT; 64],
        device_id: DEVICE,
        byte_size: 64,
    };
    daemon.block_on(client.cuda_shared_memory_register(register("again"))).unwrap();
    let twice = daemon.block_on(client.cuda_shared_memory_register(register("again")));
    refused(twice, Code::InvalidArgument, &["\"again\" is registered already"]);
    memory.put(INPUT, 0, &bytes(&[7.0, 8.0, 9.0, 10.0]));
    let message = ModelInferRequest {
        model_name: "toy".into(),
        inputs: vec![InferInputTensor { contents: None, parameters: place_of("again"), ..typed(&[0.0; 4]) }],
        outputs: vec![InferRequestedOutputTensor { name: "out".into(), parameters: place_of("out") }],
        ..ModelInferRequest::default()
    };
    let answer = daemon.block_on(client.model_infer(message)).unwrap().into_inner();
    assert_eq!(answer.outputs[0].parameters, place_of("out"));
    assert_eq!(memory.get(OUTPUT, 0, 16), bytes(&[7.0, 8.0, 9.0, 10.0]));
    for (asked, count) in [("", 3), ("again", 1)] {
        let status = CudaSharedMemoryStatusRequest { name: asked.into() };
        let regions = daemon.block_on(client.cuda_shared_memory_status(status)).unwrap().into_inner().regions;
        let region = &regions["again"];
        assert_eq!((regions.len(), &*region.name, region.device_id, region.byte_size), (count, "again", 3, 64));
    }
    let all = CudaSharedMemoryUnregisterRequest::default();
    daemon.block_on(client.cuda_shared_memory_unregister(all)).unwrap();
    assert_eq!((daemon.get("/v2/cudasharedmemory/status").json(), memory.opened()), (json!([]), 0));
}

fn place_of(region: &str) -> HashMap<String, InferParameter> {
    let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
    HashMap::from([
        ("shared_memory_region".to_owned(), parameter(ParameterChoice::StringParam(region.into()))),
        ("shared_memory_byte_size".to_owned(), parameter(ParameterChoice::Int64Param(16))),
    ])
}

fn of(handle: Value, device_id: i64, byte_size: u64) -> Value {
    json!({ "raw_handle": handle, "device_id": device_id, "byte_size": byte_size })
}

#[test]
fn bad_registrations_are_refused_with_their_reason() {
    let (daemon, memory) = start();
    let (good, unknown) = (json!({ "b64": base64(&[INPUT; 64]) }), json!({ "b64": base64(&[9; 64]) }));
    let cases: Vec<(Value, u16, &[&str])> = vec![
        (json!({}), 400, &["its byte_size is 0"]),
        (of(good.clone(), DEVICE, 0), 400, &["\"r\"", "its byte_size is 0"]),
        (of(json!({}), DEVICE, 1), 400, &["raw_handle has 0 bytes", "has 64"]),
        (of(json!({ "b64": base64(&[INPUT; 63]) }), DEVICE, 1), 400, &["raw_handle has 63 bytes"]),
        (of(json!({ "b64": base64(&[INPUT; 5000]) }), DEVICE, 1), 400, &["raw_handle has 5000 bytes"]),
        (of(json!({ "b64": "*" }), DEVICE, 1), 400, &["not valid Base64"]),
        (of(json!("x"), DEVICE, 1), 400, &["not valid JSON"]),
        (of(good.clone(), 0, 1), 400, &["device_id is 0", "the daemon's GPUs are: 3"]),
        (of(good.clone(), -1, 1), 400, &["device_id is -1"]),
        (of(good.clone(), i64::MAX, 1), 400, &["device_id is 9223372036854775807"]),
        (of(good.clone(), DEVICE, 4097), 400, &["byte_size is 4097", "has 4096 bytes"]),
        (of(good, DEVICE, u64::MAX), 503, &["the limit is 4294967296"]),
        (of(unknown, DEVICE, 1), 400, &["cannot be opened: there is no such memory", "cudaMalloc"]),
    ];
    for (body, status, words) in cases {
        error(&daemon.post(&region("r/register"), &body.to_string()), status, words);
    }
    error(&daemon.post(&region(&format!("{}/register", "n".repeat(257))), &body(INPUT, 1)), 400, &["256 bytes"]);
    memory.set_away(true);
    error(&daemon.post(&region("r/register"), &body(INPUT, 1)), 503, &["the executor is away"]);
    assert_eq!((daemon.get("/v2/cudasharedmemory/status").json(), memory.opened()), (json!([]), 0));
}

#[test]
fn bad_ranges_are_refused_and_nothing_is_copied() {
    let (daemon, memory) = start();
    register(&daemon, "r", INPUT, 96);
    let cases: Vec<(Value, Value, &[&str])> = vec![
        (range("other", 0, 16), json!({}), &["\"other\"", "register it first"]),
        (range("r", 81, 16), json!({}), &["16 bytes at offset 81 exceed", "96 bytes"]),
        (range("r", u64::MAX, 16), json!({}), &["exceed"]),
        (range("r", 0, 15), json!({}), &["`in`", "has 15 bytes", "needs 16 bytes"]),
        (range("r", 0, 16), range("r", 90, 16), &["16 bytes at offset 90 exceed"]),
    ];
    for (input, output, words) in cases {
        error(&daemon.post(INFER, &request(&input, &output)), 400, words);
    }
    assert_eq!(daemon.metric("atoll_cuda_shared_memory_read_bytes_total"), 0);
    let small = request(&range("r", 0, 16), &range("r", 80, 15));
    error(&daemon.post(INFER, &small), 400, &["has room for 15 bytes of this output, which has 16 bytes"]);
    assert_eq!(memory.get(INPUT, 0, 4096), [0; 4096]);
}

#[test]
fn memory_that_is_gone_is_an_error_of_the_request_with_its_cause() {
    let (daemon, memory) = start();
    register(&daemon, "in", INPUT, 64);
    register(&daemon, "out", OUTPUT, 64);
    let ask = request(&range("in", 0, 16), &range("out", 0, 16));
    // The executor that had opened the memory is replaced.
    memory.set_away(true);
    error(&daemon.post(INFER, &ask), 503, &["\"in\" cannot be read: the executor is away"]);
    memory.set_away(false);
    assert_eq!(daemon.post(INFER, &ask).status, 200);
    // The client frees its memory, or ends, while the request runs.
    daemon.engine.behave(Behaviour::Hold);
    let mut connection = Connection::open(daemon.http);
    connection.send("POST", INFER, &[], ask.as_bytes());
    eventually(|| daemon.engine.held() == 1);
    memory.free(OUTPUT);
    daemon.engine.answer_all();
    error(&connection.receive(), 400, &["\"out\" cannot be written: there is no such memory"]);
    daemon.engine.behave(Behaviour::Echo);
    memory.free(INPUT);
    error(&daemon.post(INFER, &ask), 400, &["\"in\" cannot be read: there is no such memory"]);
    assert_eq!(daemon.post("/v2/cudasharedmemory/unregister", "").status, 200);
}

#[test]
fn a_region_that_is_forgotten_serves_the_requests_that_run() {
    let (daemon, memory) = start();
    register(&daemon, "r", INPUT, 64);
    memory.put(INPUT, 0, &bytes(&[1.0, 2.0, 3.0, 4.0]));
    daemon.engine.behave(Behaviour::Hold);
    let mut connection = Connection::open(daemon.http);
    connection.send("POST", INFER, &[], request(&range("r", 0, 16), &range("r", 16, 16)).as_bytes());
    eventually(|| daemon.engine.held() == 1);
    assert_eq!(daemon.post(&region("r/unregister"), "").status, 200);
    assert_eq!(memory.opened(), 1, "the request uses it");
    daemon.engine.answer_all();
    assert_eq!(connection.receive().status, 200);
    assert_eq!(memory.get(INPUT, 16, 16), bytes(&[1.0, 2.0, 3.0, 4.0]));
    eventually(|| memory.opened() == 0);
}

#[test]
fn tenants_need_the_right_and_have_regions_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let (keys, config) = (folder.path().join("keys.json"), folder.path().join("atoll.toml"));
    let tenants = "[tenant.vision]\ncuda_shared_memory = true\n[tenant.speech]\ncuda_shared_memory = true\n\
        [tenant.quiet]\nshared_memory = true\n";
    std::fs::write(&config, tenants).unwrap();
    let own = std::fs::metadata(folder.path()).map(|about| std::os::unix::fs::MetadataExt::uid(&about)).unwrap();
    let mut token = |tenant: &str| KeyFile::create(&keys, tenant.parse().unwrap(), None, "").unwrap().to_string();
    let [vision, speech, quiet] = ["vision", "speech", "quiet"].map(&mut token);
    let access = Access::read(&config, own).unwrap();
    let identity = IdentityConfig { keys: Some(keys), access, ..IdentityConfig::own() };
    let daemon = Daemon::with(Options { identity: Some(identity), ..Options::default() }, |repository| {
        write_bundle(&repository.join("toy.kg"));
    });
    let memory = Arc::new(ClientMemory::default());
    memory.allocate(INPUT, 64);
    memory.allocate(OUTPUT, 64);
    daemon.engine.import(memory.clone());
    let register = |token: &str, allocation| daemon.ask_as(token, &region("r/register"), Some(&body(allocation, 64)));
    let answer = register(&quiet, INPUT);
    error(&answer, 403, &["may not use CUDA shared memory", "cuda_shared_memory"]);
    assert_eq!(answer.json()["reason"], "cuda_shared_memory");
    assert_eq!(daemon.metric("atoll_denied_requests_total{reason=\"cuda_shared_memory\"}"), 1);
    assert_eq!(register(&vision, INPUT).status, 200);
    // Another tenant sees neither the region nor its name, and may use the same name.
    assert_eq!(daemon.ask_as(&speech, "/v2/cudasharedmemory/status", None).json(), json!([]));
    let ask = request(&range("r", 0, 16), &range("r", 16, 16));
    error(&daemon.ask_as(&speech, INFER, Some(&ask)), 400, &["register it first"]);
    assert_eq!(daemon.ask_as(&speech, "/v2/cudasharedmemory/unregister", Some("")).status, 200);
    assert_eq!(register(&speech, OUTPUT).status, 200);
    memory.put(INPUT, 0, &[5; 16]);
    assert_eq!(daemon.ask_as(&vision, INFER, Some(&ask)).status, 200);
    assert_eq!((memory.get(INPUT, 16, 16), memory.get(OUTPUT, 16, 16)), (vec![5; 16], vec![0; 16]));
}
