//! `grpc.health.v1`: the readiness of the server, for load balancers and Kubernetes.

use super::proto::health::health_check_response::ServingStatus;
use super::proto::health::health_server::Health as HealthService;
use super::proto::health::{HealthCheckRequest, HealthCheckResponse};
use crate::app::App;
use crate::progress::Progress;
use crate::requests::health::is_ready;
use crate::shutdown::stopped;
use futures_util::stream::unfold;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

/// The services whose readiness is that of the server. The empty name stands for the server.
const SERVICES: [&str; 2] = ["", "inference.GRPCInferenceService"];

/// How often the state is polled for a watching client.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// The health service.
pub(super) struct Health {
    pub(super) app: Arc<App>,
    pub(super) stop: watch::Receiver<bool>,
}

type Answers = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

#[tonic::async_trait]
impl HealthService for Health {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let name = request.into_inner().service;
        if !SERVICES.contains(&&*name) {
            return Err(Status::not_found(format!("there is no service `{name}`")));
        }
        Ok(Response::new(answer(state(&self.app).await)))
    }

    type WatchStream = Answers;

    /// For an unknown service the answer is the state `SERVICE_UNKNOWN`, not an error, as the
    /// specification of the health service says.
    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Answers>, Status> {
        if let Some(progress) = request.extensions().get::<Arc<Progress>>() {
            // It lasts as long as the client wants, and seldom has an answer.
            progress.set_stream();
        }
        let is_known = SERVICES.contains(&&*request.into_inner().service);
        let watch = Watch { app: self.app.clone(), stop: self.stop.clone(), is_known, last: None };
        Ok(Response::new(Box::pin(unfold(Some(watch), |watch| async move {
            let mut watch = watch?;
            Some(match watch.change().await {
                Some(status) => (Ok(answer(status)), Some(watch)),
                None => (Err(Status::unavailable("the server is stopping")), None),
            })
        }))))
    }
}

struct Watch {
    app: Arc<App>,
    stop: watch::Receiver<bool>,
    is_known: bool,
    last: Option<ServingStatus>,
}

impl Watch {
    /// Waits for a state that differs from the last one; `None` when the server stops.
    async fn change(&mut self) -> Option<ServingStatus> {
        loop {
            let now = if self.is_known { state(&self.app).await } else { ServingStatus::ServiceUnknown };
            if self.last.replace(now) != Some(now) {
                return Some(now);
            }
            tokio::select! {
                () = tokio::time::sleep(WATCH_INTERVAL) => {}
                () = stopped(&mut self.stop) => return None,
            }
        }
    }
}

async fn state(app: &App) -> ServingStatus {
    if is_ready(app).await { ServingStatus::Serving } else { ServingStatus::NotServing }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}
