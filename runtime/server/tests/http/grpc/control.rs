//! All RPCs except inference: metadata, configuration, statistics, the repository, settings.

use crate::support::grpc::proto::log_settings_request::SettingValue as LogValue;
use crate::support::grpc::proto::log_settings_request::setting_value::ParameterChoice as LogChoice;
use crate::support::grpc::proto::log_settings_response::setting_value::ParameterChoice as LogAnswer;
use crate::support::grpc::proto::model_repository_parameter::ParameterChoice;
use crate::support::grpc::proto::trace_setting_request::SettingValue as TraceValue;
use crate::support::grpc::proto::*;
use crate::support::grpc::{refused, request};
use crate::support::{Daemon, Options, write_bundle};
use atoll_server::ModelControl;
use tonic::{Code, Response};

/// Calls an RPC of a new client with a message.
macro_rules! call {
    ($daemon:expr, $rpc:ident, $message:expr) => {{
        let mut client = $daemon.client();
        $daemon.block_on(client.$rpc($message)).map(Response::into_inner)
    }};
}

#[test]
fn the_server_and_its_models_describe_themselves_as_over_http() {
    let daemon = Daemon::start();
    let server = call!(daemon, server_metadata, ServerMetadataRequest {}).unwrap();
    let http = daemon.get("/v2").json();
    assert_eq!((&*server.name, &*server.version), ("atoll", http["version"].as_str().unwrap()));
    assert_eq!(serde_json::json!(server.extensions), http["extensions"]);
    assert!(call!(daemon, server_live, ServerLiveRequest {}).unwrap().live);
    assert!(call!(daemon, server_ready, ServerReadyRequest {}).unwrap().ready);
    let toy = || "toy".to_owned();
    let ready = |name: &str, version: &str| {
        call!(daemon, model_ready, ModelReadyRequest { name: name.into(), version: version.into() })
    };
    assert!(ready("toy", "").unwrap().ready && ready("toy", "1").unwrap().ready);
    assert!(!ready("nothing", "").unwrap().ready && !ready("toy", "7").unwrap().ready);
    let model = call!(daemon, model_metadata, ModelMetadataRequest { name: toy(), version: "1".into() }).unwrap();
    assert_eq!((&*model.name, &*model.platform, &*model.versions), ("toy", "atoll_kgraph", &["1".to_owned()][..]));
    let input = &model.inputs[0];
    assert_eq!((&*input.name, &*input.datatype, &*input.shape), ("in", "FP32", &[-1, 4][..]));
    assert_eq!(model.outputs[0].name, "out");
    let config = call!(daemon, model_config, ModelConfigRequest { name: toy(), ..Default::default() });
    let config = config.unwrap().config.unwrap();
    assert_eq!((&*config.name, &*config.backend, config.max_batch_size), ("toy", "atoll", 0));
    assert_eq!((config.input[0].data_type(), &*config.input[0].dims), (DataType::TypeFp32, &[-1, 4][..]));
    assert_eq!(config.model_transaction_policy, Some(ModelTransactionPolicy { decoupled: false }));
}

#[test]
fn statistics_are_of_one_model_or_of_all() {
    let daemon = Daemon::with(Options::default(), |repository| {
        write_bundle(&repository.join("toy.kg"));
        write_bundle(&repository.join("other.kg"));
    });
    call!(daemon, model_infer, request("")).unwrap();
    let all = call!(daemon, model_statistics, ModelStatisticsRequest::default()).unwrap();
    assert_eq!(all.model_stats.iter().map(|model| &*model.name).collect::<Vec<_>>(), ["other", "toy"]);
    let one = call!(daemon, model_statistics, ModelStatisticsRequest { name: "toy".into(), ..Default::default() });
    let toy = one.unwrap().model_stats.remove(0);
    let stats = toy.inference_stats.unwrap();
    assert_eq!(stats.success, Some(StatisticDuration { count: 1, ns: 2_000 }));
    assert_eq!((stats.queue.unwrap().ns, stats.compute_infer.unwrap().ns), (500, 1_500));
    assert!(toy.last_inference > 0);
    let unknown = ModelStatisticsRequest { name: "nothing".into(), ..Default::default() };
    refused(call!(daemon, model_statistics, unknown), Code::NotFound, &["nothing"]);
}

#[test]
fn models_are_loaded_and_unloaded() {
    let daemon = Daemon::start();
    let index = |ready| {
        let index = call!(daemon, repository_index, RepositoryIndexRequest { ready, ..Default::default() });
        let entries = index.unwrap().models.into_iter().map(|model| (model.name, model.state));
        entries.collect::<Vec<_>>()
    };
    let load = |name: &str| RepositoryModelLoadRequest { model_name: name.into(), ..Default::default() };
    let unload = |name: &str| RepositoryModelUnloadRequest { model_name: name.into(), ..Default::default() };
    assert_eq!(index(true), [("toy".to_owned(), "READY".to_owned())]);
    call!(daemon, repository_model_unload, unload("toy")).unwrap();
    assert_eq!((index(true).len(), &*index(false)[0].1), (0, "UNAVAILABLE"));
    refused(call!(daemon, model_infer, request("")), Code::Unavailable, &["toy"]);
    let ready = ModelReadyRequest { name: "toy".into(), ..Default::default() };
    assert!(!call!(daemon, model_ready, ready).unwrap().ready);
    call!(daemon, repository_model_load, load("toy")).unwrap();
    assert!(call!(daemon, model_infer, request("")).is_ok());
    refused(call!(daemon, repository_model_load, load("nothing")), Code::InvalidArgument, &["no model `nothing`"]);
    let with = |name: &str, choice| {
        let mut message = load("toy");
        message.parameters.insert(name.into(), ModelRepositoryParameter { parameter_choice: Some(choice) });
        call!(daemon, repository_model_load, message)
    };
    with("config", ParameterChoice::StringParam(r#"{"response_cache": {"enable": true}}"#.into())).unwrap();
    let (code, file) = (Code::InvalidArgument, "file:1/model.onnx");
    refused(with("config", ParameterChoice::StringParam("{".into())), code, &["load parameter `config`", "JSON"]);
    refused(with("config", ParameterChoice::BoolParam(true)), code, &["must have string type"]);
    refused(with(file, ParameterChoice::StringParam("x".into())), code, &["must have bytes type"]);
    refused(with(file, ParameterChoice::BytesParam(vec![0; 2 << 20])), code, &["'config' must be specified"]);
    let mut long = load("toy");
    let parameter = |choice| ModelRepositoryParameter { parameter_choice: Some(choice) };
    long.parameters.insert("config".into(), parameter(ParameterChoice::StringParam("{}".into())));
    long.parameters.insert(format!("file:{}", "A".repeat(256)), parameter(ParameterChoice::BytesParam(vec![1])));
    // Triton's example of model control looks for this code.
    refused(call!(daemon, repository_model_load, long), Code::Internal, &["failed to poll from model repository"]);
    assert!(call!(daemon, model_infer, request("")).is_ok());
}

#[test]
fn a_mode_that_excludes_requests_refuses_them() {
    let options = Options { model_control: Some(ModelControl::None), ..Options::default() };
    let daemon = Daemon::with(options, |repository| write_bundle(&repository.join("toy.kg")));
    let unload = RepositoryModelUnloadRequest { model_name: "toy".into(), ..Default::default() };
    refused(call!(daemon, repository_model_unload, unload), Code::PermissionDenied, &["--model-control-mode none"]);
}

#[test]
fn settings_are_read_and_not_changed() {
    let daemon = Daemon::start();
    let logging = call!(daemon, log_settings, LogSettingsRequest::default()).unwrap().settings;
    assert_eq!(logging["log_format"].parameter_choice, Some(LogAnswer::StringParam("default".into())));
    assert!(matches!(logging["log_info"].parameter_choice, Some(LogAnswer::BoolParam(_))));
    let log = |name: &str, choice| LogSettingsRequest {
        settings: [(name.to_owned(), LogValue { parameter_choice: Some(choice) })].into(),
    };
    assert!(call!(daemon, log_settings, log("log_format", LogChoice::StringParam("default".into()))).is_ok());
    let other = log("log_format", LogChoice::StringParam("ISO8601".into()));
    refused(call!(daemon, log_settings, other), Code::InvalidArgument, &["`log_format`", "--log"]);
    let unknown = log("log_colour", LogChoice::BoolParam(true));
    refused(call!(daemon, log_settings, unknown), Code::InvalidArgument, &["no setting `log_colour`"]);
    let trace = |name: &str, value: &[&str]| {
        let value = value.iter().map(|text| (*text).to_owned()).collect();
        TraceSettingRequest { settings: [(name.to_owned(), TraceValue { value })].into(), ..Default::default() }
    };
    let now = call!(daemon, trace_setting, TraceSettingRequest::default()).unwrap().settings;
    assert_eq!(
        (&*now["trace_level"].value, &*now["trace_rate"].value),
        (&["OFF".to_owned()][..], &["1000".into()][..])
    );
    for same in [trace("trace_level", &["OFF"]), trace("trace_level", &[]), trace("trace_rate", &["1000"])] {
        assert!(call!(daemon, trace_setting, same).is_ok());
    }
    let level = trace("trace_level", &["TIMESTAMPS"]);
    refused(call!(daemon, trace_setting, level), Code::InvalidArgument, &["`trace_level`", "--otlp-endpoint"]);
    let model = TraceSettingRequest { model_name: "nothing".into(), ..Default::default() };
    refused(call!(daemon, trace_setting, model), Code::NotFound, &["nothing"]);
}

#[test]
fn cuda_shared_memory_is_told_to_be_missing() {
    let daemon = Daemon::start();
    let status = call!(daemon, cuda_shared_memory_status, CudaSharedMemoryStatusRequest::default()).unwrap();
    assert!(status.regions.is_empty());
    let name = || "region".to_owned();
    let one = CudaSharedMemoryStatusRequest { name: name() };
    refused(call!(daemon, cuda_shared_memory_status, one), Code::InvalidArgument, &["unable to find", "\"region\""]);
    let cuda = CudaSharedMemoryRegisterRequest { name: name(), ..Default::default() };
    let words = ["`region`", "CUDA shared memory is not supported"];
    refused(call!(daemon, cuda_shared_memory_register, cuda), Code::Unimplemented, &words);
    assert!(call!(daemon, cuda_shared_memory_unregister, CudaSharedMemoryUnregisterRequest { name: name() }).is_ok());
}
