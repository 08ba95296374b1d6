//! KServe v2 over gRPC, with the extensions of Triton, health and reflection.
//!
//! A request passes the same checks as over HTTP, in this order: `:authority` and `origin`
//! (`callers.rs`), the sender (`requests/identify.rs`), the size and time of its messages
//! ([`frames`]), and the memory that they decode to ([`bounds`]). Then tonic decodes it and calls
//! [`service`].

mod answers;
mod bounds;
pub(crate) mod codec;
mod convert;
mod describe;
mod frames;
mod health;
mod infer;
pub(crate) mod proto;
mod service;
mod settings;
mod status;
mod stream;
mod timeout;

use crate::app::App;
use crate::callers::Callers;
use crate::identity::Principal;
use crate::limits::STREAMS_SHARE;
use crate::otlp::Arrival;
use crate::progress::Progress;
use crate::requests::error::RequestError;
use crate::requests::identify::identify;
use crate::requests::memory::Encoding;
use answers::Pending;
use atoll_engine::Class;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use frames::{Frames, Rooms, Rule};
use health::Health;
use proto::health::health_server::HealthServer;
use proto::inference::grpc_inference_service_server::GrpcInferenceServiceServer;
use service::{Inference, Times};
use std::mem::take;
use std::sync::Arc;
use tokio::sync::watch;
use tonic::codec::CompressionEncoding;
use tonic::{Code, Status};
use tonic_reflection::server::Builder;

/// The RPCs with tensors, files or several messages. All others take one small message.
const RULES: [(&str, Rule); 5] = [
    ("/inference.GRPCInferenceService/ModelInfer", Rule::Infer),
    ("/inference.GRPCInferenceService/RepositoryModelLoad", Rule::Load),
    ("/inference.GRPCInferenceService/ModelStreamInfer", Rule::InferStream),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Rule::SmallStream),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Rule::SmallStream),
];

/// State of the checks in front of the services.
#[derive(Clone)]
struct Entrance {
    app: Arc<App>,
    callers: Arc<Callers>,
    stop: watch::Receiver<bool>,
}

/// All services of the gRPC port. Streams end when `stop` turns true.
pub(crate) fn router(app: Arc<App>, callers: Arc<Callers>, stop: watch::Receiver<bool>) -> Router {
    // `frames` checks the size of messages. Without this setting, tonic would refuse messages above
    // 4 MiB.
    let inference = GrpcInferenceServiceServer::new(Inference { app: app.clone() })
        .send_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(usize::MAX);
    let health = HealthServer::new(Health { app: app.clone(), stop: stop.clone() });
    let described = || Builder::configure().register_encoded_file_descriptor_set(proto::DESCRIPTORS);
    let reflection = described().build_v1().expect("the build has made valid descriptors");
    let old_reflection = described().build_v1alpha().expect("the build has made valid descriptors");
    Router::new()
        .route_service("/inference.GRPCInferenceService/{rpc}", inference)
        .route_service("/grpc.health.v1.Health/{rpc}", health)
        .route_service("/grpc.reflection.v1.ServerReflection/{rpc}", reflection)
        .route_service("/grpc.reflection.v1alpha.ServerReflection/{rpc}", old_reflection)
        .fallback(unknown_service)
        .layer(from_fn_with_state(Entrance { app: app.clone(), callers, stop }, enter))
        .layer(from_fn_with_state(app, log))
}

/// Writes a request to the access log. A stream is one line.
async fn log(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match &app.access_log {
        Some(log) => log.around("grpc", request, next).await,
        None => next.run(request).await,
    }
}

async fn unknown_service(request: Request) -> Response {
    let text = format!("there is no RPC {}; this is the service inference.GRPCInferenceService", request.uri().path());
    Status::unimplemented(text).into_http()
}

/// The answer to a request of a connection that has too many ([`Reason::Streams`]), counted.
///
/// [`Reason::Streams`]: crate::identity::Reason::Streams
pub(crate) fn too_many_requests(app: &App) -> Response {
    app.recorder.note_grpc(Code::ResourceExhausted);
    let text = format!(
        "the server has reached its limit of open requests, and this connection has more than {STREAMS_SHARE} of \
        them; wait for answers before you send more"
    );
    Status::resource_exhausted(text).into_http()
}

/// Checks a request, and counts its answer.
async fn enter(State(entrance): State<Entrance>, mut request: Request, next: Next) -> Response {
    let is_grpc = |value: &[u8]| value.starts_with(b"application/grpc");
    if !request.headers().get(header::CONTENT_TYPE).is_some_and(|value| is_grpc(value.as_bytes())) {
        // The specification of gRPC requires this status for other content types.
        let text = "this port serves gRPC; HTTP with JSON is on another port (--http-port)\n";
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, text).into_response();
    }
    let pending = Pending::new(entrance.app.clone());
    let answer = match check(&entrance, &mut request) {
        Ok(()) => next.run(request).await,
        Err(error) => Status::from(error).into_http(),
    };
    pending.answered_by(answer)
}

fn check(entrance: &Entrance, request: &mut Request) -> Result<(), RequestError> {
    let arrival = Arrival::now("grpc", request.headers());
    let Entrance { app, callers, stop } = entrance;
    callers.check(app, request)?;
    identify(app, request)?;
    let deadline = timeout::of(request.headers())?.and_then(|timeout| arrival.at.checked_add(timeout));
    let encoding = encoding(request.headers_mut())?;
    let rule = RULES.iter().find(|(path, _)| *path == request.uri().path()).map_or(Rule::Small, |(_, rule)| *rule);
    let caller = request.extensions().get::<Arc<Principal>>();
    let class = caller.map_or(Class::BestEffort, |caller| caller.limits.class);
    let rooms = Rooms::default();
    let (app, stop) = (app.clone(), stop.clone());
    let progress = request.extensions().get::<Arc<Progress>>().cloned().unwrap_or_default();
    if rule.is_stream() {
        progress.set_stream();
    }
    let body = take(request.body_mut());
    let frames = Frames { app, body, encoding, rule, class, rooms: rooms.clone(), progress: progress.clone(), stop };
    *request.body_mut() = frames.into_body();
    request.extensions_mut().insert(Times { arrival, deadline });
    request.extensions_mut().insert(rooms);
    request.extensions_mut().insert(progress);
    Ok(())
}

/// How the messages of a request are compressed. Answers are compressed only if the request is:
/// clients announce that they accept gzip even if they do not want it.
fn encoding(headers: &mut HeaderMap) -> Result<Encoding, RequestError> {
    let encoding = headers.remove("grpc-encoding");
    let encoding = Encoding::of(encoding.as_ref().map_or(b"", |value| value.as_bytes()))?;
    if encoding == Encoding::Identity {
        headers.remove("grpc-accept-encoding");
    }
    Ok(encoding)
}
